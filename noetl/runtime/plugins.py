"""Plug-ins of other distributions: their entry points in the groups of noetl.

Groups: `noetl.tools` (kinds), `noetl.sources`, `noetl.targets` (sides of a transfer), `noetl.triggers`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

TOOLS, SOURCES, TARGETS, TRIGGERS = "noetl.tools", "noetl.sources", "noetl.targets", "noetl.triggers"


class Plugin(NamedTuple):
    """An entry point of a plug-in."""

    name: str
    value: str
    distribution: str
    load: Callable[[], Any]


class Problem(NamedTuple):
    """An installed plug-in that cannot be used, and the reason."""

    kind: str
    plugin: str
    message: str


def plugins(group: str) -> Iterator[Plugin]:
    """The entry points of a group, in a stable order."""
    if not _files_with_entry_points():
        return
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        yield Plugin(entry.name, entry.value, distribution, entry.load)


def imported(plugin: Plugin) -> tuple[Any, str | None]:
    """The object of an entry point; with the reason if it cannot be imported."""
    try:
        return plugin.load(), None
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a plug-in can raise anything
        return None, f"cannot be imported: {type(failure).__name__}: {failure}"


def refresh() -> None:
    """Repeat the discovery, after a plug-in was installed or removed."""
    _files_with_entry_points.cache_clear()


@cache
def _files_with_entry_points() -> bool:
    """Whether any distribution on the path has entry points in a group of noetl.

    importlib.metadata takes about 100 ms for this, on every `noetl` command; reading the few entry_points.txt
    files takes a few milliseconds."""
    sections = [f"[{group}]".encode() for group in (TOOLS, SOURCES, TARGETS, TRIGGERS)]
    for folder in dict.fromkeys(sys.path):
        if os.path.isfile(folder):
            return True  # an archive: importlib.metadata can read it
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # the directory does not exist
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb", buffering=0) as file:
                        content = file.read()
                except OSError:
                    continue  # no entry points
                if any(section in content for section in sections):
                    return True
    return False
