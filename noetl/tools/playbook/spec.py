"""Kind `playbook`: run another playbook as a child execution.

The pipeline suspends the run (`child.requested`) and resumes it with the child's output, so that
no worker slot is occupied in between. The server starts the child; no worker runs this kind.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.errors import NoetlError

SPEC = ToolSpec(
    kind="playbook",
    doc="Starts a child execution (with its own id, scopes and log) and returns its output. "
    "Failure and cancellation propagate in both directions.",
    fields={
        "path": Field(
            "any",
            "Path of the playbook in the catalog, or a file relative to the calling playbook.",
            required=True,
            accepts=("string",),
            aliases=("playbook", "playbook_path"),
        ),
        "version": Field("any", "Version in the catalog. Default: the latest.", accepts=("integer", "string"), least=1),
        "payload": Field(
            "mapping",
            "Merged into the child's workload. Keys of `input:` that are not fields of this kind are added to it.",
            aliases=("args",),
            default={},
        ),
        "return_step": Field("string", "Step of the child whose output is returned.", aliases=("result_step",)),
        "return_result": Field("boolean", "Accepted and ignored: the call returns the child's output."),
        "entry_step": Field("string", "Step at which the child starts."),
        "wait": Field("boolean", "`false`: do not wait; the output is the child's execution id.", default=True),
    },
    open_fields=True,
    spec_keys={"timeout": "`total`: seconds after which the child is cancelled."},
    suspends=True,
    example="- name: score\n  kind: playbook\n  path: scoring/user\n"
    '  payload:\n    user_id: "{{ iter.user.id }}"\n  return_step: finalize\n',
)


async def run(call: ToolCall) -> Outcome:
    """Never called: the server starts child executions."""
    raise NoetlError(f"kind playbook runs on the server, but task {call.task_run_id} was sent to a worker")
