"""Kind `noop`: succeed without doing anything."""

from __future__ import annotations

from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.tool import Field, ToolCall, ToolSpec

SPEC = ToolSpec(
    kind="noop",
    doc="Does nothing and succeeds. Use it for `set`, for policy rules, or for a step that only routes. "
    "The output is its `input` (null if there is none), or the value of `returns`.",
    fields={"returns": Field("any", "The output: any value, not only a mapping.")},
    open_fields=True,
    pure=True,
    example="- name: first_page\n  kind: noop\n  set:\n    iter.page: 1\n",
)


async def run(call: ToolCall) -> Outcome:
    """Return `returns`, or the input."""
    return ok(call.input["returns"]) if "returns" in call.input else ok(call.input or None)
