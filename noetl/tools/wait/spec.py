"""Kind `wait`: wait for a signal, for a duration or until an instant.

The pipeline suspends the run (`wait.started`), and the server resumes it with the outcome. No worker runs this kind.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.errors import NoetlError

SPEC = ToolSpec(
    kind="wait",
    doc="Waits for a signal (an approval, an answer, an event), for a duration or until an instant. The run takes no "
    "worker slot meanwhile, and the wait survives restarts. `output.data` is the data of the signal (null when the "
    "time has come), `output.meta.signal` has its `name`, `by` and `at`.",
    fields={
        "signal": Field("string", "Name of the signal. Default: the name of the task, unless it waits for time."),
        "title": Field("string", "The question to the person who answers."),
        "form": Field("mapping", "JSON Schema of the signal's data; data that does not fit is refused."),
        "roles": Field("list", "Roles that may answer: viewer, operator, author, admin. Default: operator."),
        "timeout": Field("any", "Duration (`48h`) after which the wait ends with an error of kind `timeout`."),
        "for": Field("any", "Duration (`90s`, `15m`, `2d`) after which the wait ends without data."),
        "until": Field("any", "Instant (`2026-03-31T18:00:00Z`) at which the wait ends without data."),
    },
    suspends=True,
    example="- name: approval\n  kind: wait\n  signal: approve\n"
    '  title: "Pay {{ workload.amount }} to {{ workload.payee }}?"\n'
    "  form: {type: object, required: [approved], properties: {approved: {type: boolean}}}\n"
    "  timeout: 48h\n",
)


async def run(call: ToolCall) -> Outcome:
    """Never called: the server ends waits."""
    raise NoetlError(f"kind wait runs on the server, but task {call.task_run_id} was sent to a worker")
