"""Succeed at nothing: a place to hang policy rules and `set` on."""

from __future__ import annotations

from noetl.model.outcome import Outcome, ok
from noetl.model.tool import ToolCall, ToolSpec

SPEC = ToolSpec(
    kind="noop",
    doc="Does nothing and succeeds: a place for `set`, for policy rules, for a step that only routes. "
    "Its output is its `input`, or null without one.",
    open_fields=True,
    pure=True,
    example="- name: first_page\n  kind: noop\n  set:\n    iter.page: 1\n",
)


async def run(call: ToolCall) -> Outcome:
    """Succeed."""
    return ok(call.input or None)
