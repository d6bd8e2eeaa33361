"""Runs that wait for a worker, in this process's memory.

Fair between executions: a claim takes from each waiting execution in turn, so a loop of a
million items does not stand before a playbook of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from noetl.model.work import Claim
from noetl.ports import PoolDepth, QueuedRun


class MemoryRunQueue:
    """`ports.RunQueue` for one process."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[str, dict[str, QueuedRun]]] = {}  # pool -> execution -> run id -> run
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool, in the order they came

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait."""
        for run in runs:
            self._pools.setdefault(run.pool, {}).setdefault(run.execution_id, {})[run.run_id] = run
        for pool in {run.pool for run in runs}:
            self._wake(pool)

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs that wait now, fair between executions."""
        executions = self._pools.get(claim.pool)
        taken: list[QueuedRun] = []
        while executions and len(taken) < claim.slots:
            # A share for each execution, so that one append can lease several runs of it.
            share = max(1, (claim.slots - len(taken)) // len(executions))
            execution_id = next(iter(executions))
            runs = executions.pop(execution_id)
            taken += [runs.pop(run_id) for run_id in tuple(islice(runs, share))]
            if runs:
                executions[execution_id] = runs  # to the end of the line
        return taken

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait; the answer ends it."""
        watchers = self._watchers.setdefault(pool, {})
        watchers[wake] = None
        return lambda: watchers.pop(wake, None)

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Forget these runs of an execution, or all of them."""
        for executions in self._pools.values():
            if runs is None:
                executions.pop(execution_id, None)
            elif execution_id in executions:
                for run_id in runs:
                    executions[execution_id].pop(run_id, None)
                if not executions[execution_id]:
                    del executions[execution_id]

    async def close(self) -> None:
        """Let go; who watches is woken, and nothing is there."""
        for pool in self._watchers:
            self._wake(pool)

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits."""
        found = []
        for pool, executions in self._pools.items():
            since = [run.since for runs in executions.values() for run in runs.values()]
            if since:
                found.append(PoolDepth(pool, len(since), min((each for each in since if each), default=None)))
        return found

    def waiting(self, pool: str = "default") -> int:
        """How many runs wait in a pool."""
        return sum(len(runs) for runs in self._pools.get(pool, {}).values())

    def _wake(self, pool: str) -> None:
        for wake in list(self._watchers.get(pool, ())):
            wake()
