"""Every type, from every source that needs no server, to the targets of a plug-in: its file `types.md`.

The file is part of the plug-in's reference page. `NOETL_WRITE_TYPES=1 make test-plugins PLUGINS=NAME` writes it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from noetl.testing import ToolHost, run_tool

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.tools import type_matrix as matrix

HEAD = (
    "Every value arrives exactly: the tests read the table with the driver of the plug-in and compare. A cell has the "
    "type of the column.\nSQLite, CSV, JSON lines and `data` declare their types with `types`.\n"
)
BACK = (
    "As a source, the plug-in reads the table that a transfer from Parquet has written, and every value arrives "
    "exactly again.\n"
)
EMPTY: Mapping[str, Any] = {}
Targets = dict[str, tuple[Callable[[], dict[str, Any]], Callable[[Any], Any]]]


class Missing(NamedTuple):
    """A type that the system does not have: why, and how its values are read there; without `read` there are none."""

    reason: str
    read: Callable[[Any], Any] | None = None


def as_utc(value: Any) -> Any:
    """An instant that is stored in UTC without a zone."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def as_local(value: Any) -> Any:
    """A timestamp without the zone that it is given with."""
    return as_utc(value).replace(tzinfo=None)


def json_text(value: Any) -> Any:
    """JSON, or its text, or the JSON of its text."""
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            break
    return value


def check(
    page: Path, folder: Path, targets: Targets, *, source: Any = None, exceptions: Mapping[str, Missing] = EMPTY
) -> None:
    """Run all transfers, compare every value, and compare the file.

    A target is (its fields, reader): the reader gives an Arrow table, or a `Stored` for each sample. With `source`, a
    table that was written is read too: it gives the fields of a source for those of a target. `exceptions` are types
    that the system does not have, and why."""
    samples = [
        each._replace(read=exceptions[each.name].read or each.read) if each.name in exceptions else each
        for each in matrix.SAMPLES
        if each.name not in exceptions or exceptions[each.name].read is not None
    ]
    cells: dict[str, dict[str, list[str]]] = {}
    back: dict[str, dict[str, list[str]]] = {}
    wrong: list[str] = []

    def move(what: str, source: Any, target: Any, read: Callable[[], Any]) -> list[str]:
        outcome = run_tool("transfer", {"source": source, "targets": [target]}, host=ToolHost(folder=folder))
        if outcome.error is not None:
            wrong.append(f"{what}: {outcome.error.message}")
            return ["?"] * len(samples)
        stored = read()
        wrong.extend(f"{what}: {each}" for each in matrix.differences(samples, stored))
        return [each.type for each in stored]

    def read_target(read: Callable[[Any], Any], target: Any) -> Any:
        found = read(target)
        return found if isinstance(found, list) else matrix.read_table(found.sort_by("id"), samples)

    sources = matrix.local_sources(folder, samples)
    for kind, (place, read) in targets.items():
        for name, each in sources.items():
            target = place()
            cells.setdefault(kind, {})[name] = move(
                f"{name} -> {kind}", each, target, lambda read=read, target=target: read_target(read, target)
            )
            if source is None or name != "Parquet":
                continue
            for other, (fields, read_back) in matrix.local_targets(folder).items():
                types = move(f"{kind} -> {other}", source(target), fields, lambda read=read_back: read(samples))
                back.setdefault(other, {})[kind] = types
    assert not wrong, "\n".join(wrong)
    lines = [HEAD, *matrix.tables(cells, samples)]
    if back:
        lines += [BACK, *matrix.tables(back, samples)]
    if exceptions:
        lines += ["## Types it does not have", "", "| type | why |", "|---|---|"]
        lines += [f"| {name} | {each.reason} |" for name, each in exceptions.items()]
        lines.append("")
    text = "\n".join(lines)
    if os.environ.get("NOETL_WRITE_TYPES"):
        page.write_text(text)
    assert page.read_text() == text, "run make test-plugins with NOETL_WRITE_TYPES=1"
