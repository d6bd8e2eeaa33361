"""Kind `workbook`: call a block of the playbook's `workbook`, which the pipeline runs as a nested frame."""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.errors import NoetlError

SPEC = ToolSpec(
    kind="workbook",
    doc="Calls a block of the playbook's `workbook`. The block has its own `input`, `output`, task names and `step` "
    "scope, and shares `ctx` with the caller.",
    fields={
        "block": Field("string", "Name of the workbook block.", required=True, aliases=("name", "task")),
        "payload": Field(
            "mapping",
            "The block's `input`. Keys of `input:` that are not fields of this kind are added to it.",
            aliases=("args", "with"),
            default={},
        ),
    },
    open_fields=True,
    pure=True,
    example="workbook:\n  clean_row:\n    tool:\n      kind: python\n      input:\n"
    '        row: "{{ input.row }}"\n      code: |\n        result = {key: text.strip() for key, text in row.items()}\n'
    "workflow:\n  - step: clean\n    tool:\n      kind: workbook\n      block: clean_row\n      input:\n"
    "        row: {name: ' Ada '}\n",
)


async def run(call: ToolCall) -> Outcome:
    """Never called: the pipeline runs the block."""
    raise NoetlError(f"kind workbook runs in the pipeline, but task {call.task_run_id} was sent to a tool")
