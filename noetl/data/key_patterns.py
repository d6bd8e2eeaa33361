"""Patterns of paths and keys: `*` stays in its folder, `**` does not."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

MARKS, WILDCARDS = re.compile(r"[*?\[]"), re.compile(r"[*?]")


class KeyPattern(NamedTuple):
    """The folder before the first mark of a pattern, and the expression of the whole."""

    folder: str
    expression: re.Pattern[str]

    def matches(self, key: str) -> bool:
        """Whether the pattern matches a whole key."""
        return self.expression.fullmatch(key) is not None


def key_pattern(text: str, *, brackets: bool = True) -> KeyPattern | None:
    """The pattern, or None if the text is a plain key; without `brackets`, they are plain characters."""
    found = (MARKS if brackets else WILDCARDS).search(text)
    if found is None:
        return None
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]*\])" if brackets else r"(\*\*/?|\*|\?)", text)
    plain = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(
        plain.get(part) or (fnmatch.translate(part)[4:-3] if brackets and part.startswith("[") else re.escape(part))
        for part in parts
    )
    return KeyPattern(text[: found.start()].rpartition("/")[0], re.compile(expression))
