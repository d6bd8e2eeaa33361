"""Values in messages: shown whole, or described, but never cut.

Secrets are masked in messages, and a secret that was cut before is not recognized any more. So a message contains a
whole value or none of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
# What the encoder raises for a value that it cannot encode.
NOT_ENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def excerpt(value: object, most: int = 60) -> str:
    """A value for a message: quoted if it is short, otherwise its length."""
    if not isinstance(value, (str, int, float)) and value is not None:
        return f"a {type(value).__name__}"  # the text of nested data may be much longer than the data
    if isinstance(value, int) and value.bit_length() > 8 * most:
        return f"a number of {value.bit_length():,} bits"
    text = value if isinstance(value, str) else repr(value)
    return f'"{text}"' if len(text) <= most else f"a text of {len(text):,} characters"


def written(value: Any, most: int = 1_000) -> str:
    """A value that a template returned, for a message: as Python writes it if it is short, otherwise what it is."""
    if isinstance(value, (dict, list, tuple)):
        return repr(value) if len(_encode(value)) <= most else f"a {type(value).__name__} of {len(value):,} elements"
    if isinstance(value, str) and len(value) > most:
        return f"a text of {len(value):,} characters"
    return repr(value)


def unencodable(value: Any, path: str = "") -> str | None:
    """Why a value cannot be encoded as JSON, with the path of the part that cannot; None if it can be."""
    try:
        _encode(value)
    except NOT_ENCODABLE as problem:
        try:
            parts = _parts(value, path)
            found = next((found for name, each in parts if (found := unencodable(each, name))), None)
        except RecursionError:
            found = None
        return found or f"{path or 'the value'} cannot be encoded as JSON: {_reason(value, problem)}"
    return None


def is_encoding_problem(problem: BaseException) -> bool:
    """Whether an exception says that a value cannot be encoded."""
    return isinstance(problem, UnicodeEncodeError) or (
        isinstance(problem, TypeError) and str(problem).startswith("Encoding objects of type")
    )


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """The parts of a value, each with its path."""
    dot = f"{path}." if path else ""
    if isinstance(value, msgspec.Struct):
        return [(f"{dot}{name}", getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return [(f"{dot}{key!a}" if unencodable(key) else f"{dot}{key}", each) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    return []


def _reason(value: Any, problem: Exception) -> str:
    if isinstance(problem, UnicodeEncodeError):
        return "its text is not valid Unicode (a lone surrogate)"
    if isinstance(problem, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(value, (dict, list, tuple, msgspec.Struct)):
        return str(problem)
    return f"it is of type {type(value).__name__}"
