"""Comparisons of texts that may come from data, in bounded time.

The most similar name, for a hint such as `did you mean "total"?`: `difflib` compares two texts in quadratic time, so
the number and the length of the compared names are limited. Texts with gaps, without backtracking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

MAX_COMPARED = 500  # names
MAX_LENGTH = 64  # characters of a name


def close_match(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, or None if none is similar."""
    if len(name) > MAX_LENGTH:
        return None
    from difflib import get_close_matches  # for errors only

    compared = [each for each in islice(known, MAX_COMPARED) if len(each) <= MAX_LENGTH]
    found = get_close_matches(name, compared, n=1, cutoff=cutoff)
    return found[0] if found else None


def has_parts(text: str, parts: Sequence[str]) -> bool:
    """Whether a text begins with the first part, ends with the last one and has the others in order between them."""
    if len(parts) == 1:
        return text == parts[0]
    first, *others, last = parts
    if not text.startswith(first):
        return False
    at = len(first)
    for part in others:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - len(last) >= at and text.endswith(last)
