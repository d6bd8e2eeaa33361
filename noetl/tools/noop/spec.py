"""Succeed at nothing: a place to hang policy rules and `set` on."""

from __future__ import annotations

from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.tool import Field, ToolCall, ToolSpec

SPEC = ToolSpec(
    kind="noop",
    doc="Does nothing and succeeds: a place for `set`, for policy rules, for a step that only routes. "
    "Its output is its `input`, or null without one; `returns` gives it another.",
    fields={"returns": Field("any", "The output itself: any value, not only a mapping.")},
    open_fields=True,
    pure=True,
    example="- name: first_page\n  kind: noop\n  set:\n    iter.page: 1\n",
)


async def run(call: ToolCall) -> Outcome:
    """Succeed."""
    return ok(call.input["returns"]) if "returns" in call.input else ok(call.input or None)
