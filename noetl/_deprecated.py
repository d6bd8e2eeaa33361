"""Old module paths of 0.1, for plug-ins and scripts that import them; removed in 0.3.

`noetl` asks `find_spec` only for modules that do not exist. An old path yields a module that warns once and reads
its names from the new modules, so that classes are the same objects under both paths.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

PORTS = ("events", "playbooks", "triggers", "cluster", "results", "secrets", "queue", "work_link")


class Moved(NamedTuple):
    """Where the names of an old module are now."""

    modules: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}  # old name -> new name
    public: str = ""  # the module to import instead, where that is not modules[0]


MOVED: dict[str, Moved] = {
    "noetl.drivers": Moved(),
    "noetl.drivers.lifetime": Moved(
        ("noetl.runtime.resources",), {"shared": "per_loop", "close_shared": "close_loop_resources"}, "noetl.tool"
    ),
    "noetl.local": Moved(("noetl.embedded",), public="noetl"),
    "noetl.model": Moved(),
    **{
        f"noetl.model.{name}": Moved((f"noetl.core.model.{name}",))
        for name in ("events", "ids", "merge", "playbook", "position", "wire")
    },
    **{
        f"noetl.model.{name}": Moved((f"noetl.core.model.{name}",), public="noetl.tool")
        for name in ("outcome", "reference")
    },
    "noetl.model.tool": Moved(("noetl.core.model.tool",), {"Run": "ToolFunction"}, "noetl.tool"),
    "noetl.model.work": Moved(("noetl.core.model.work",), {"Verdict": "ReportAck", "Standing": "HeartbeatReply"}),
    "noetl.ports": Moved(
        (*(f"noetl.storage.ports.{name}" for name in PORTS), "noetl.runtime.clock"),
        {
            "Duties": "LeaderLease",
            "LineDepth": "LimitDepth",
            "MOST_WEIGHT": "MAX_WEIGHT",
            "SignsOfLife": "WorkerHeartbeats",
            "Take": "SlotReservation",
        },
        "noetl.storage.ports",
    ),
}


def find_spec(name: str) -> ModuleSpec | None:
    """The import specification of an old module path; None for any other name."""
    moved = MOVED.get(name)
    return ModuleSpec(name, _Loader(moved), is_package=not moved.modules) if moved is not None else None


class _Loader(Loader):
    """Creates the module of an old path."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        moved, name = self._moved, module.__name__
        if not moved.modules:
            return  # a package: its modules warn

        def find(wanted: str) -> Any:
            if not wanted.startswith("__"):
                for new in map(import_module, moved.modules):
                    if hasattr(new, moved.renamed.get(wanted, wanted)):
                        return getattr(new, moved.renamed.get(wanted, wanted))
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")

        module.__getattr__ = find  # type: ignore[method-assign]
        new = moved.public or moved.modules[0]
        warnings.warn(f"{name} is deprecated and will be removed in 0.3; import {new}", DeprecationWarning, 2)
