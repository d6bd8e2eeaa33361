"""Values in messages: shown whole, or described, but never cut.

Secrets are masked in messages, and a secret that was cut before is not recognized any more. So a message contains a
whole value or none of it.
"""

from __future__ import annotations


def excerpt(value: object, most: int = 60) -> str:
    """A value for a message: quoted if it is short, otherwise its length."""
    if not isinstance(value, (str, int, float)) and value is not None:
        return f"a {type(value).__name__}"  # the text of nested data may be much longer than the data
    if isinstance(value, int) and value.bit_length() > 8 * most:
        return f"a number of {value.bit_length():,} bits"
    text = value if isinstance(value, str) else repr(value)
    return f'"{text}"' if len(text) <= most else f"a text of {len(text):,} characters"
