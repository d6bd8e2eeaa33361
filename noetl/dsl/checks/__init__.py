"""One rule per file, over the shared tree."""

from __future__ import annotations

from collections.abc import Callable

from noetl.dsl.checks import targets
from noetl.dsl.reading import Reader
from noetl.dsl.syntax import DocumentSyntax

Check = Callable[[DocumentSyntax, Reader], None]

CHECKS: tuple[Check, ...] = (targets.check,)
