"""`state`: the commit of what an execution wrote, and the conflict with another one.

The values that an execution reads are those at its request, recorded in the log. Its writes are part of its own
`ctx` until they are committed: all together when it succeeds, or with every step that succeeds. A commit is an
event; the shell stores its values in the transaction of the append, if the stored versions of these keys are still
those that the execution knows. If they are not, the decision is made again with the conflict, and the execution fails.
"""

from __future__ import annotations

import msgspec

from noetl.core.engine.commands import StartExecution
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.state import State
from noetl.core.model.events import ExecutionCancelled, StateCommitted
from noetl.core.model.ids import event_id
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.playbook import STATE_KEY, state_part

_json = msgspec.json.Encoder().encode


def commit(state: State, env: EvaluationContext) -> StateCommitted | ExecutionCancelled:
    """The commit of the writes to `state`, or the end of the execution because they cannot be committed."""
    if env.conflict is not None:
        return _failed(error_info("state.conflict", env.conflict))
    try:
        values = {key: env.restored(state.ctx[STATE_KEY + key]) for key in state.uncommitted}
        kept = {key: env.restored(value) for key, value in state_part(state.ctx).items() if key not in values}
    except Failure as failure:
        return _failed(failure.error)
    size, limit = len(_json({**kept, **values})), state.playbook.executor.limits.max_state_bytes
    if size > limit:
        message = f"state would have {size:,} bytes, limits.max_state_bytes is {limit:,}; nothing was committed"
        return _failed(error_info("limit", message))
    replaced = {key: state.versions[key] for key in values if key in state.versions}
    return StateCommitted(values, event_id(state.execution_id, state.seq + 1), replaced)


def _failed(error: ErrorInfo) -> ExecutionCancelled:
    return ExecutionCancelled(reason=error.message, error=error)


def changed_since(command: StartExecution) -> ErrorInfo | None:
    """Why a rerun cannot keep what the earlier execution wrote to `state`: another execution has replaced it."""
    rerun = command.request.rerun
    for key, version in (rerun.state_versions if rerun is not None else {}).items():
        stored = command.state_versions.get(key)
        if stored != version and not (rerun and stored and stored.startswith(f"{rerun.execution_id}-")):
            message = (
                f"state.{key} has changed since execution {rerun.execution_id if rerun else ''} read it; "
                "run the playbook again as a whole"
            )
            return error_info("state.conflict", message)
    return None
