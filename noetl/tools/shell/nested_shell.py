"""Commands that read an argument as code again: `sh -c '...'` and `eval`.

A reference in such an argument is expanded before the inner shell reads it, so there a value would become
code after all. Only values that mean nothing to a shell may stand there; others are handed over as arguments:

    bash -c 'echo "$1"' _ {{ x }}

In a list, `[bash, -c, "echo {{ x }}"]`, the argument is a command like any other, and its values are bound in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CODE = re.compile(
    r"(?:^|[\s;&|({`])(?:(?P<eval>eval)\s+|(?:[\w./-]*/)?(?:ba|da|z|k|a)?sh\s+(?:-[^\s'\"]*\s+)*-[A-Za-z]*c\s+)"
)
_HARMLESS = re.compile(r"[\w@%+=:,./ -]*")
SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a)?sh")
WAY_OUT = "hand it over as an argument, as in bash -c 'echo \"$1\"' _ {{ value }}"


def is_harmless(text: str) -> bool:
    """Whether a text means nothing to a shell but itself."""
    return _HARMLESS.fullmatch(text) is not None


def reads_code(before: str) -> bool:
    """Whether what follows this part of a command is inside an argument that is read as code again."""
    found = list(_CODE.finditer(before))
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


def code_among(words: Sequence[str]) -> int | None:
    """Which argument of a program is code: the one after `-c` of a shell."""
    if not words or not SHELL.fullmatch(words[0]):
        return None
    for number, word in enumerate(words[1:-1], 1):
        if not word.startswith("-"):
            return None
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return number + 1
    return None
