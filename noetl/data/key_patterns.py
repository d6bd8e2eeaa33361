"""Patterns of paths and keys: `*` stays in its folder, `**` does not; `{a,b}` is one of several texts."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

MARKS, WILDCARDS = re.compile(r"[*?\[]"), re.compile(r"[*?]")
MOST_ALTERNATIVES = 1000
_BRACES = re.compile(r"\[[^\]]*\]|\{([^{}\[\]]*,[^{}\[\]]*)\}")  # not inside of brackets: `[{]` is a brace


class KeyPattern(NamedTuple):
    """The folder before the first mark of a pattern, and the expression of the whole."""

    folder: str
    expression: re.Pattern[str]

    def matches(self, key: str) -> bool:
        """Whether the pattern matches a whole key."""
        return self.expression.fullmatch(key) is not None


def alternatives(text: str) -> list[str]:
    """The patterns without `{a,b}` that a pattern stands for; only itself if they would be too many."""
    done, waiting = [], [text]
    while waiting:
        pattern = waiting.pop()
        found = next((each for each in _BRACES.finditer(pattern) if each[1] is not None), None)
        if found is None:
            done.append(pattern)
        else:
            start, end = pattern[: found.start()], pattern[found.end() :]
            waiting += [f"{start}{choice}{end}" for choice in found[1].split(",")]
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            return [text]
    return sorted(set(done))


def is_pattern(text: str) -> bool:
    """Whether a text may match several paths."""
    return MARKS.search(text) is not None or alternatives(text) != [text]


def key_pattern(text: str, *, brackets: bool = True, braces: bool = False) -> KeyPattern | None:
    """The pattern, or None if the text is a plain key; without `brackets` or `braces`, they are plain characters."""
    several = alternatives(text) if braces else [text]
    if several != [text]:
        expressions = (key_pattern(each) for each in several)
        either = "|".join(
            re.escape(each) if found is None else found.expression.pattern
            for each, found in zip(several, expressions, strict=True)
        )
        start = re.split(r"[*?\[{]", text, maxsplit=1)[0]
        return KeyPattern(start.rpartition("/")[0], re.compile(either))
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
