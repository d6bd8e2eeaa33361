"""What a rerun reuses: results and ctx of the execution before the last run of the step it starts from."""

from __future__ import annotations

from typing import Any

from noetl.core.engine.state import State
from noetl.core.model.events import RerunSource, StepScheduled
from noetl.errors import NotFound
from noetl.server.orchestrator.execution_actor import ActorDependencies, load_state


async def rerun_source(dependencies: ActorDependencies, state: State, step: str) -> RerunSource:
    """Results and ctx before the last run of `step`, or the current ones if it never ran."""
    if step not in state.playbook.steps_by_name:
        raise NotFound(f"execution {state.execution_id} has no step {step!r}")
    last = 0
    args: dict[str, Any] = {}
    after = 0
    while page := await dependencies.store.read(state.execution_id, after, 5_000):
        for recorded in page:
            if isinstance(recorded.body, StepScheduled) and recorded.body.step == step:
                last, args = recorded.seq, recorded.body.args
        after = page[-1].seq
    before = (await load_state(dependencies, state.execution_id, last - 1))[0] if last > 1 else state
    results = {name: record.outcome for name, record in before.steps.items() if record.outcome is not None}
    return RerunSource(
        execution_id=state.execution_id, from_step=step, results=results, ctx=dict(before.ctx), args=args
    )
