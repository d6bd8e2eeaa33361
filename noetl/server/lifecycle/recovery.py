"""Recovery: folds every unfinished log after a restart and performs the outstanding effects.

Only the log survives a process. Effects that were lost (a run not enqueued, a child not started, a caller not
answered) are all in `outstanding(state)`. The leases of the log are granted again for a full term: workers that are
alive keep their runs, the leases of others expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from noetl.core.engine.concurrency_keys import SUSPECTS
from noetl.core.engine.outstanding import outstanding
from noetl.core.engine.state import State
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound
from noetl.observability import metrics
from noetl.server.orchestrator.execution_actor import load_states
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

MAX_PARALLEL = 4
BATCH = 50  # executions whose logs are read with one query


async def resume(
    orchestrator: Orchestrator,
    *,
    only: Callable[[list[str]], list[str]] | None = None,
    workers_gone: bool = False,
    waiting: bool = True,
) -> list[str]:
    """Take over unfinished executions and return their ids; a damaged one is logged and skipped.

    `only` selects among them (see `ProcessLocks.orphans`). `workers_gone`: the workers stopped with the process
    that ran them, so their leases expire at once. `waiting` False: those that only wait stay in the store, where their
    timers are found (`wait_timers`)."""
    ids = await orchestrator.store.unfinished(waiting=waiting)
    if only is not None:
        ids = only(ids)
    slots = asyncio.Semaphore(MAX_PARALLEL)

    async def resume_batch(batch: Sequence[str]) -> list[str]:
        async with slots:
            states = await load_states(orchestrator.actors, batch)
            return [each for each in batch if await resume_one(each, states.pop(each, None))]

    async def resume_one(execution_id: str, state: State | None) -> bool:
        try:
            state = state or await orchestrator.state(execution_id)
        except (CorruptLog, InvalidPlaybook, NotFound) as problem:
            fields = {"execution_id": execution_id}
            log.error("execution %s cannot be resumed: %s", execution_id, problem, extra=fields)
            return False
        try:
            orchestrator.effects.take_over(state, outstanding(state), orphaned=workers_gone)
        except Exception:  # a defect in one execution must not keep the others from being resumed
            log.exception("execution %s cannot be resumed", execution_id, extra={"execution_id": execution_id})
            return False
        metrics.RECOVERED.add()
        return True

    batches = [ids[start : start + BATCH] for start in range(0, len(ids), BATCH)]
    resumed = await asyncio.gather(*map(resume_batch, batches))
    orchestrator.limiter.recheck([SUSPECTS])  # a server may have stopped after it freed the slot
    return [each for batch in resumed for each in batch]
