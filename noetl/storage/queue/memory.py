"""The run queue in memory.

Fair between executions: a claim takes runs of each waiting execution in turn, so a loop of a
million items does not delay a playbook of one step. Runs that wait for a limit are parked separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model.work import Claim, count_fitting
from noetl.storage.ports.queue import LimitDepth, PoolDepth, QueuedRun

Executions = dict[str, dict[str, QueuedRun]]  # execution -> run id -> run
_WITH_PRIORITY = " priority"  # after the execution of runs with a priority


class MemoryRunQueue:
    """`ports.RunQueue` for one process; with `one_pool` its workers take the runs of all pools."""

    def __init__(self, *, one_pool: bool = False) -> None:
        self._one_pool = one_pool
        self._pools: dict[str, Executions] = {}
        self._parked: dict[str, Executions] = {}  # by the key whose limit is reached
        self._limit_of: dict[str, str] = {}  # run id of a parked run -> key
        self._served: dict[str, int] = {}  # execution -> runs taken in its current turn
        self._special: set[str] = set()  # pools with runs that have a priority, labels or a cost
        self._too_costly: set[str] = set()  # pools whose next run costs more than the last claim had slots
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool, in order of registration

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs."""
        pools = set()
        for run in runs:
            if self._one_pool and run.pool != DEFAULT_POOL:
                run = msgspec.structs.replace(run, pool=DEFAULT_POOL)
            if self._one_pool and run.labels:
                run = msgspec.structs.replace(run, labels=())
            if self._limit_of and run.run_id in self._limit_of:
                continue
            waiting = self._pools.get(run.pool, {}).get(_line(run))
            if run.limit is not None and (waiting is None or run.run_id not in waiting):
                self._park(run, run.limit)
                continue
            self._pools.setdefault(run.pool, {}).setdefault(_line(run), {})[run.run_id] = run
            if run.special:
                self._special.add(run.pool)
            pools.add(run.pool)
        for pool in pools:
            self._wake(pool)

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release the first runs that wait for a limit."""
        parked = self._parked.get(limit, {})
        out = [run for execution_id in also for run in parked.pop(execution_id, {}).values()]
        if whole:
            first = sorted(parked, key=lambda each: (len(each), each))[: max(0, most)]
            out += [run for execution_id in first for run in parked.pop(execution_id).values()]
        else:
            out += self._turns(parked, most)
        if not parked:
            self._parked.pop(limit, None)
        for run in out:
            del self._limit_of[run.run_id]
            run = msgspec.structs.replace(run, turn=0)
            executions = self._pools.setdefault(run.pool, {})
            executions.setdefault(_line(run), {})[run.run_id] = run
            if run.special:
                self._special.add(run.pool)
        for pool in {run.pool for run in out}:
            self._wake(pool)
        return len(out)

    async def limit_depths(self) -> list[LimitDepth]:
        """Every limit with waiting runs."""
        return [LimitDepth(key, *_depth(parked)) for key, parked in self._parked.items()]

    def _turns(self, executions: Executions, most: int) -> list[QueuedRun]:
        """Take up to `most` runs, from each execution in turn, in proportion to its weight."""
        taken: list[QueuedRun] = []
        # A share for each execution, so that one append can lease several runs of it.
        share = max(1, most // len(executions)) if executions else 1
        while executions and len(taken) < most:
            execution_id, runs = next(iter(executions.items()))
            before = self._served.pop(execution_id, 0)
            own = max(1, share * next(iter(runs.values())).weight - before)
            picked = tuple(islice(runs, min(own, most - len(taken))))
            taken += [runs.pop(run_id) for run_id in picked]
            if runs and len(picked) < own:
                self._served[execution_id] = before + len(picked)  # its turn continues
                continue
            del executions[execution_id]
            if runs:
                executions[execution_id] = runs  # to the end of the queue
        return taken

    def _park(self, run: QueuedRun, limit: str) -> None:
        parked = self._parked.setdefault(limit, {})
        self._limit_of[run.run_id] = limit
        if run.turn is None:
            parked.setdefault(run.execution_id, {})[run.run_id] = run
        else:  # it was the first before, and is the first again
            others = parked.pop(run.execution_id, {})
            self._parked[limit] = {run.execution_id: {run.run_id: run, **others}, **parked}

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Dequeue up to `claim.slots` runs, and at most the worker's share of them, fair between executions."""
        executions = self._pools.get(claim.pool)
        if not executions:
            self._too_costly.discard(claim.pool)
            return []
        slots = claim.slots
        if claim.pool in self._special:
            return self._take_special(executions, claim)
        if claim.workers > 1:
            waiting = sum(len(runs) for runs in executions.values())
            slots = min(slots, -(-waiting // claim.workers))
        return self._turns(executions, slots)

    def _take_special(self, executions: Executions, claim: Claim) -> list[QueuedRun]:
        """Take from a pool in which some runs have a priority, labels or a cost."""
        waiting = [run for runs in executions.values() for run in runs.values()]
        if not any(run.special for run in waiting):
            self._special.discard(claim.pool)
        fitting = [run for run in waiting if set(run.labels) <= set(claim.labels)]
        slots = min(claim.slots, -(-len(fitting) // max(1, claim.workers)))
        plain: Executions = {}
        for run in fitting:
            if not run.priority:
                plain.setdefault(run.execution_id, {})[run.run_id] = run
        fair = self._turns(plain, slots)
        ranked = sorted((run for run in fitting if run.priority), key=lambda run: (run.rank, run.run_id))
        ordered = _merged(fair, ranked)[:slots]
        taken = ordered[: count_fitting((run.cost for run in ordered), claim.slots, claim.capacity)]
        (self._too_costly.add if len(taken) < len(ordered) else self._too_costly.discard)(claim.pool)
        for run in taken:
            runs = executions.pop(_line(run))
            del runs[run.run_id]
            if runs:
                executions[_line(run)] = runs  # to the end of the queue
        return taken

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""
        found: dict[tuple[str, tuple[str, ...]], int] = {}
        for pool in self._special:
            for runs in self._pools.get(pool, {}).values():
                for run in runs.values():
                    if run.labels:
                        found[pool, run.labels] = found.get((pool, run.labels), 0) + 1
        return [(pool, labels, count) for (pool, labels), count in found.items()]

    def waits_for_slots(self, pool: str) -> bool:
        """Whether the last `take` left a run that costs more than the free slots."""
        return pool in self._too_costly

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait; the returned function ends it."""
        watchers = self._watchers.setdefault(pool, {})
        watchers[wake] = None
        return lambda: watchers.pop(wake, None)

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Remove these runs of an execution, or all of them."""
        for executions in (*self._pools.values(), *self._parked.values()):
            for line in (execution_id, execution_id + _WITH_PRIORITY):
                waiting = executions.get(line, {})
                for run_id in list(waiting) if runs is None else runs:
                    waiting.pop(run_id, None)
                    self._limit_of.pop(run_id, None)
                if line in executions and not waiting:
                    del executions[line]
        self._served.pop(execution_id, None)
        for key in [key for key, parked in self._parked.items() if not parked]:
            del self._parked[key]

    async def close(self) -> None:
        """Close the queue and wake all watchers."""
        for pool in self._watchers:
            self._wake(pool)

    async def depths(self) -> list[PoolDepth]:
        """Every pool with waiting runs."""
        return [PoolDepth(pool, *_depth(executions)) for pool, executions in self._pools.items() if executions]

    def _wake(self, pool: str) -> None:
        for wake in list(self._watchers.get(pool, ())):
            wake()


def _line(run: QueuedRun) -> str:
    """The line of the queue in which a run waits: runs with a priority do not take the turns of their execution."""
    return run.execution_id + _WITH_PRIORITY if run.priority else run.execution_id


def _merged(fair: list[QueuedRun], ranked: list[QueuedRun]) -> list[QueuedRun]:
    """Runs in turn, and runs with a priority before those of a larger rank."""
    merged: list[QueuedRun] = []
    ahead = 0
    for run in fair:
        while ahead < len(ranked) and ranked[ahead].rank < run.rank:
            merged.append(ranked[ahead])
            ahead += 1
        merged.append(run)
    return merged + ranked[ahead:]


def _depth(executions: Executions) -> tuple[int, float | None]:
    since = [run.since for runs in executions.values() for run in runs.values()]
    return len(since), min((each for each in since if each), default=None)
