"""Public test support for authors of playbooks and tools.

`run_tool`, `tool_call` and `ToolHost` run one tool without an engine; `SourceConformance` and `TargetConformance` are
the tests that every source and target of a transfer passes, `RuntimeConformance` those of every worker runtime;
`playbook_tests` runs the files of `noetl test`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetl.testing.connectors import SourceConformance, TargetConformance
    from noetl.testing.runtimes import RuntimeConformance
    from noetl.testing.tools import ToolHost, run_tool, tool_call

__all__ = ["RuntimeConformance", "SourceConformance", "TargetConformance", "ToolHost", "run_tool", "tool_call"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `noetl test` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = {"RuntimeConformance": "runtimes"}.get(name, "connectors" if name.endswith("Conformance") else "tools")
    return getattr(import_module(f"noetl.testing.{module}"), name)
