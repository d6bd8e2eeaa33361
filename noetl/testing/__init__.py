"""Public test support for authors of playbooks, tools and storage back ends.

`run_tool`, `tool_call` and `ToolHost` run one tool without an engine. `noetl.testing.conformance` has the suites that
every implementation of a storage port passes, `noetl.testing.playbook_tests` runs `noetl test` files,
`noetl.testing.services` and `noetl.testing.cluster` start Postgres, NATS and whole clusters on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetl.testing.tools import ToolHost, run_tool, tool_call

__all__ = ["ToolHost", "run_tool", "tool_call"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a command that only starts a cluster needs no tool."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from noetl.testing import tools

    return getattr(tools, name)
