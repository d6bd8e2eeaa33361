"""Regular expressions whose cost is bounded."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from noetl.errors import TemplateError
from noetl.expr.limits import Run, too_much

MAX_PATTERN = 1000
MAX_SUBJECT = 100_000


@lru_cache(maxsize=256)
def _compiled(pattern: str, ignorecase: bool) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE if ignorecase else 0)
    except (re.error, OverflowError, RecursionError) as problem:
        raise TemplateError(f"the regular expression cannot be read: {problem}") from None


def _prepare(run: Run, pattern: Any, text: str, ignorecase: bool) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise TemplateError("a regular expression is text")
    if len(pattern) > MAX_PATTERN or len(text) > MAX_SUBJECT:
        too_much("a regular expression of that size")
    run.spend(1 + len(text))
    return _compiled(pattern, ignorecase)


def search(run: Run, pattern: Any, text: str, *, ignorecase: bool = False) -> re.Match[str] | None:
    """The first match anywhere."""
    return _prepare(run, pattern, text, ignorecase).search(text)


def match(run: Run, pattern: Any, text: str, *, ignorecase: bool = False) -> re.Match[str] | None:
    """A match at the beginning."""
    return _prepare(run, pattern, text, ignorecase).match(text)


def findall(run: Run, pattern: Any, text: str, *, ignorecase: bool = False) -> list[Any]:
    """All matches."""
    found = _prepare(run, pattern, text, ignorecase).findall(text)
    return [list(each) if isinstance(each, tuple) else each for each in found]


def replace(run: Run, pattern: Any, replacement: str, text: str, *, ignorecase: bool = False) -> str:
    """Every match replaced."""
    try:
        changed = _prepare(run, pattern, text, ignorecase).sub(replacement, text)
    except (re.error, IndexError) as problem:
        raise TemplateError(f"the replacement cannot be read: {problem}") from None
    run.spend_text(len(changed))
    return changed
