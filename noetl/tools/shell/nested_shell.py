"""Finds the argument of a list that a shell evaluates as code: `[bash, -c, "echo {{ x }}"]`.

It is treated as a command, and its values are bound. The shell may follow other programs: `[env, A=1, bash, ...]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|mk|a)?sh")


def code_argument(words: Sequence[str]) -> int | None:
    """Index of the argument that a shell evaluates as code: the one after `-c`, wherever the shell is."""
    for number, word in enumerate(words):
        if SHELL.fullmatch(word):
            return _after_option(words, number)
    return None


def _after_option(words: Sequence[str], shell: int) -> int | None:
    number = shell + 1
    while number < len(words) - 1:
        word = words[number]
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return number + 1
        if not word.startswith(("-", "+")):
            return None
        number += 2 if re.fullmatch(r"[-+][A-Za-z]*[oO]", word) else 1  # `-o pipefail`
    return None
