"""Detects commands that evaluate an argument as code: `sh -c '...'` and `eval`.

A variable reference in such an argument is expanded before the nested shell parses it, so the value would become
code. Only values without shell metacharacters are allowed there; others must be passed as arguments:

    bash -c 'echo "$1"' _ {{ x }}

In a list, `[bash, -c, "echo {{ x }}"]`, the argument is treated as a command and its values are bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NESTED = re.compile(
    r"(?:^|[\s;&|({`])(?:(?P<eval>eval)\s+|(?:[\w./-]*/)?(?:ba|da|z|k|a)?sh\s+(?:-[^\s'\"]*\s+)*-[A-Za-z]*c\s+)"
)
_SAFE = re.compile(r"[\w@%+=:,./ -]*")
SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a)?sh")
FIX = "pass it as an argument, as in bash -c 'echo \"$1\"' _ {{ value }}"


def is_safe(text: str) -> bool:
    """Whether a text has no shell metacharacters."""
    return _SAFE.fullmatch(text) is not None


def is_in_nested_code(before: str) -> bool:
    """Whether the position after this part of a command is inside an argument that a nested shell evaluates."""
    found = list(_NESTED.finditer(before))
    if not found:
        return False
    last = found[-1]
    quote = ""
    ends = ";&|\n" if last["eval"] else ";&|\n\t "
    position, end = last.end(), len(before)
    while position < end:
        char = before[position]
        if char == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in ends:
            return False
        position += 1
    return True


def code_argument(words: Sequence[str]) -> int | None:
    """Index of the argument that a shell evaluates as code: the one after `-c`."""
    if not words or not SHELL.fullmatch(words[0]):
        return None
    for number, word in enumerate(words[1:-1], 1):
        if not word.startswith("-"):
            return None
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return number + 1
    return None
