"""NoETL: declarative YAML workflows over APIs, databases and scripts.

    import noetl

    result = noetl.run("orders.yaml", payload={"day": "2026-01-31"})
    print(result.status, result.data)

    for problem in noetl.validate(text):
        print(problem.line, problem.message)

Everything is imported when it is first used: `import noetl` alone is cheap. `__init__.pyi` has the types.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.2.0"

_MODULES = {
    "AsyncClient": "noetl.client",
    "Client": "noetl.client",
    "InvalidPlaybook": "noetl.errors",
    "NoetlError": "noetl.errors",
    "RunResult": "noetl.server.read_models.summaries",
    "open_local": "noetl.embedded",
    "run": "noetl.api",
    "run_async": "noetl.api",
    "validate": "noetl.embedded",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'noetl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _OldPaths:
    """Finds module paths of 0.1 that no longer exist; consulted last, so that it costs nothing when unused."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("noetl."):
            return None
        from noetl import _deprecated

        return _deprecated.find_spec(name)


sys.meta_path.append(_OldPaths)  # type: ignore[arg-type]
