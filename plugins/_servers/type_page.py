"""Every type, from every source that needs no server, to the targets of a plug-in: its file `types.md`.

The file is part of the plug-in's reference page. `NOETL_WRITE_TYPES=1 make test-plugins PLUGINS=NAME` writes it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noetl.testing import ToolHost, run_tool

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.tools import type_matrix as matrix

HEAD = (
    "Every value arrives exactly: the tests read the table with the driver of the plug-in and compare. A cell has the "
    "type of the column.\nSQLite, CSV, JSON lines and `data` declare their types with `types`.\n"
)


def check(page: Path, folder: Path, targets: dict[str, tuple[Any, Callable[[Any], Any]]]) -> None:
    """Run all transfers, compare every value, and compare the file; a target is (fields for a number, reader)."""
    sources = matrix.local_sources(folder, matrix.SAMPLES)
    cells: dict[str, dict[str, list[str]]] = {}
    wrong: list[str] = []
    for kind, (place, read) in targets.items():
        for name, source in sources.items():
            target = place()
            outcome = run_tool("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=folder))
            assert outcome.error is None, f"{name} -> {kind}: {outcome.error.message}"
            stored = matrix.read_table(read(target).sort_by("id"), matrix.SAMPLES)
            cells.setdefault(kind, {})[name] = [each.type for each in stored]
            wrong += [f"{name} -> {kind}: {each}" for each in matrix.differences(matrix.SAMPLES, stored)]
    assert not wrong, "\n".join(wrong)
    text = "\n".join([HEAD, *matrix.tables(cells)])
    if os.environ.get("NOETL_WRITE_TYPES"):
        page.write_text(text)
    assert page.read_text() == text, "run make test-plugins with NOETL_WRITE_TYPES=1"
