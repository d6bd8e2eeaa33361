"""Call another playbook as a child execution; the control plane carries it out.

The pipeline suspends the run (`child.requested`) and continues it with the child's output, so
no worker slot is held meanwhile. There is nothing to run here: only what authors may write.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.errors import NoetlError

SPEC = ToolSpec(
    kind="playbook",
    doc="Starts a child execution (own id, scopes and log) and returns its output. "
    "Failure and cancellation travel both ways.",
    fields={
        "path": Field(
            "string",
            "Path of the playbook in the catalog, or a file relative to the caller.",
            required=True,
            aliases=("playbook", "playbook_path"),
        ),
        "version": Field("any", "Version in the catalog; the newest when left out."),
        "payload": Field(
            "mapping",
            "Merged over the child's workload. What stands under `input:` and is no parameter of this kind joins it.",
            aliases=("args",),
            default={},
        ),
        "return_step": Field("string", "The child's step whose output is returned."),
        "entry_step": Field("string", "The child's step to begin with."),
        "wait": Field("boolean", "`false`: do not wait; the output is the child's execution id.", default=True),
    },
    open_fields=True,
    spec_keys={"timeout": "`total` seconds for the child; then it is cancelled."},
    suspends=True,
    example="- name: score\n  kind: playbook\n  path: scoring/user\n"
    '  payload:\n    user_id: "{{ iter.user.id }}"\n  return_step: finalize\n',
)


async def run(call: ToolCall) -> Outcome:
    """Never called: a worker cannot start an execution."""
    raise NoetlError(f"kind playbook is carried out by the control plane, yet task {call.task_run_id} reached a worker")
