"""Runs that wait for a worker, in this process's memory.

Fair between executions: a claim takes from each waiting execution in turn, so a loop of a
million items does not stand before a playbook of one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from noetl.model.work import Claim
from noetl.ports import PoolDepth, QueuedRun


class MemoryRunQueue:
    """`ports.RunQueue` for one process."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[str, dict[str, QueuedRun]]] = {}  # pool -> execution -> run id -> run
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # in the order they came
        self._closed = False

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait."""
        for run in runs:
            self._pools.setdefault(run.pool, {}).setdefault(run.execution_id, {})[run.run_id] = run
        for pool in {run.pool for run in runs}:
            self._wake(pool)

    async def take(self, claim: Claim, *, wait: float) -> list[QueuedRun]:
        """Up to `claim.slots` runs, fair between executions; waits up to `wait` seconds."""
        taken = self._take_now(claim)
        if taken or wait <= 0 or self._closed:
            return taken
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while not taken and not self._closed:
            bell = loop.create_future()
            self._waiting.setdefault(claim.pool, {})[bell] = None
            timer = loop.call_at(deadline, _ring, bell)
            try:
                await bell
            finally:
                timer.cancel()
                self._waiting[claim.pool].pop(bell, None)
            taken = self._take_now(claim)
            if loop.time() >= deadline:
                break
        return taken

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
        """Let go; who waits gets nothing."""
        self._closed = True
        for pool in self._waiting:
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

    def _take_now(self, claim: Claim) -> list[QueuedRun]:
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

    def _wake(self, pool: str) -> None:
        for bell in self._waiting.get(pool, ()):
            _ring(bell)


def _ring(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)
