"""After a restart: fold every unfinished log, ask what is outstanding, and go on.

Nothing is remembered between processes but the log. Commands that were lost when the process
died (a run not enqueued, a child not started, a caller not answered) are all in
`outstanding(state)`; leases of the log are taken up with a full term, so that workers which
lived on keep their runs and others are taken back when their term is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from noetl.core.engine.outstanding import outstanding
from noetl.core.engine.state import State
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound
from noetl.observability import metrics
from noetl.server.orchestrator.service import Orchestrator

log = logging.getLogger("noetl.control")

AT_ONCE = 4
TOGETHER = 50  # executions whose logs are read with one question


async def resume(
    orchestrator: Orchestrator,
    *,
    only: Callable[[list[str]], list[str]] | None = None,
    workers_gone: bool = False,
) -> list[str]:
    """Take over unfinished executions; their ids. A damaged one is named and left, the others go on.

    `only` picks among them (see `drivers.owners`). `workers_gone`: workers died with the process that
    left them, so leases are taken back at once; otherwise workers that live on keep theirs."""
    ids = await orchestrator.store.unfinished()
    if only is not None:
        ids = only(ids)
    gate = asyncio.Semaphore(AT_ONCE)

    async def some(part: Sequence[str]) -> list[str]:
        async with gate:
            states = await orchestrator.states(part)
            return [each for each in part if await one(each, states.pop(each, None))]

    async def one(execution_id: str, state: State | None) -> bool:
        try:
            state = state or await orchestrator.state(execution_id)
        except (CorruptLog, InvalidPlaybook, NotFound) as problem:
            about = {"execution_id": execution_id}
            log.error("execution %s cannot be resumed: %s", execution_id, problem, extra=about)
            return False
        orchestrator.take_over(state, outstanding(state), orphaned=workers_gone)
        metrics.RECOVERED.add()
        return True

    parts = [ids[start : start + TOGETHER] for start in range(0, len(ids), TOGETHER)]
    return [each for found in await asyncio.gather(*map(some, parts)) for each in found]
