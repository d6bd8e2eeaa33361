"""The documentation pages of diagnostics, for readers without access to the online documentation.

Their source is `docs/reference/diagnostics/`; the wheel contains them as `noetl/manual/`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@lru_cache(maxsize=256)
def diagnostic_page(code: str) -> str | None:
    """The page of a diagnostic code as Markdown; None if this installation does not contain the pages."""
    for folder in (_PACKAGE / "manual", _PACKAGE.parent / "docs" / "reference" / "diagnostics"):
        page = folder / f"{code}.md"
        if page.is_file():
            return page.read_text(encoding="utf-8")
    return None
