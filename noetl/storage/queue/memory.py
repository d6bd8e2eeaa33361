"""The run queue in memory.

Fair between tenants, and between the executions of a tenant: a claim takes runs of each waiting execution in turn, so a
loop of a million items does not delay a playbook of one step. Runs that wait for a limit are parked separately. Taking
a run costs the same whatever the number of waiting ones, unless some of its pool have a priority, labels or a cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import islice

import msgspec
from msgspec import Struct, field

from noetl.core.engine.concurrency_keys import DEFAULT_POOL
from noetl.core.model.work import Claim, count_fitting
from noetl.storage.ports.queue import LimitDepth, PoolDepth, QueuedRun
from noetl.storage.queue.tenant_shares import TenantShares

Executions = dict[str, dict[str, QueuedRun]]  # execution -> run id -> run
_WITH_PRIORITY = " priority"  # after the execution of runs with a priority


class _Waiting(Struct, eq=False):
    """The waiting runs of one tenant."""

    executions: Executions = field(default_factory=dict)
    runs: int = 0

    def add(self, line: str, run: QueuedRun) -> None:
        """Add a run to the line of its execution, unless it is there."""
        waiting = self.executions.setdefault(line, {})
        self.runs += run.run_id not in waiting
        waiting[run.run_id] = run

    def remove(self, line: str, run_id: str) -> QueuedRun | None:
        """Remove a run."""
        waiting = self.executions.get(line, {})
        run = waiting.pop(run_id, None)
        self.runs -= run is not None
        if not waiting:
            self.executions.pop(line, None)
        return run


Tenants = dict[str, _Waiting]  # "": runs without a tenant; those without runs are removed


class MemoryRunQueue:
    """`ports.RunQueue` for one process; with `one_pool` its workers take the runs of all pools."""

    def __init__(self, *, one_pool: bool = False) -> None:
        self._one_pool = one_pool
        self._pools: dict[str, Tenants] = {}
        self._parked: dict[str, Tenants] = {}  # by the key whose limit is reached
        self._shares = TenantShares()
        self._limit_of: dict[str, str] = {}  # run id of a parked run -> key
        self._served: dict[str, int] = {}  # execution -> runs taken in its current turn
        self._special: set[str] = set()  # pools with runs that have a priority, labels or a cost
        self._too_costly: set[str] = set()  # pools whose next run costs more than the last claim had slots
        self._watchers: dict[str, dict[Callable[[], None], None]] = {}  # by pool, in order of registration

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs."""
        pools: dict[str, None] = {}  # in the order of their runs
        for run in runs:
            if self._one_pool and run.pool != DEFAULT_POOL:
                run = msgspec.structs.replace(run, pool=DEFAULT_POOL)
            if self._one_pool and run.labels:
                run = msgspec.structs.replace(run, labels=())
            if self._limit_of and run.run_id in self._limit_of:
                continue
            if run.limit is not None and not self._is_waiting(run):
                self._park(run, run.limit)
                continue
            self._add(run)
            pools[run.pool] = None
        for pool in pools:
            self._wake(pool)

    async def release_waiting(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Release the first runs that wait for a limit."""
        parked = self._parked.get(limit, {})
        names = set(also)
        if whole:
            others = {each for waiting in parked.values() for each in waiting.executions} - names
            names.update(sorted(others, key=lambda each: (len(each), each))[: max(0, most)])
        out: list[QueuedRun] = []
        for tenant in list(parked) if names else ():
            for name in [each for each in parked[tenant].executions if each in names]:
                runs = list(parked[tenant].executions[name].values())
                out += self._removed(parked, tenant, name, runs)
        if not whole:
            out += self._turns(f"limit {limit}", parked, most)
        if not parked:
            self._parked.pop(limit, None)
        for run in out:
            del self._limit_of[run.run_id]
            self._add(msgspec.structs.replace(run, turn=0))
        for pool in dict.fromkeys(run.pool for run in out):
            self._wake(pool)
        return len(out)

    async def limit_depths(self) -> list[LimitDepth]:
        """Every limit with waiting runs."""
        return [LimitDepth(key, *_depth(parked)) for key, parked in self._parked.items()]

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """The weights of tenants; 1 if missing."""
        self._shares.weights = weights

    def waiting_tenants(self, pool: str) -> Set[str]:
        """The tenants with waiting runs."""
        return self._pools.get(pool, {}).keys()

    async def tenant_depths(self) -> dict[str, int]:
        """The number of waiting runs of each tenant, parked ones included."""
        found: dict[str, int] = {}
        for tenants in (*self._pools.values(), *self._parked.values()):
            for tenant, waiting in tenants.items():
                found[tenant] = found.get(tenant, 0) + waiting.runs
        return found

    def _add(self, run: QueuedRun) -> None:
        self._pools.setdefault(run.pool, {}).setdefault(run.tenant, _Waiting()).add(_line(run), run)
        if run.special:
            self._special.add(run.pool)

    def _is_waiting(self, run: QueuedRun) -> bool:
        waiting = self._pools.get(run.pool, {}).get(run.tenant)
        return waiting is not None and run.run_id in waiting.executions.get(_line(run), ())

    @staticmethod
    def _removed(tenants: Tenants, tenant: str, line: str, runs: Sequence[QueuedRun]) -> Sequence[QueuedRun]:
        waiting = tenants[tenant]
        for run in runs:
            waiting.remove(line, run.run_id)
        if not waiting.runs:
            del tenants[tenant]
        return runs

    def _turns(self, scope: str, tenants: Tenants, most: int) -> list[QueuedRun]:
        """Take up to `most` runs: of each tenant in proportion to its weight, and of each of its executions in turn."""
        if len(tenants) == 1:  # nothing to share, and no pass to record
            counts = dict.fromkeys(tenants, most)
        else:
            chosen = self._shares.order(scope, {tenant: each.runs for tenant, each in tenants.items()}, most)
            self._shares.serve(scope, chosen)
            counts = Counter(tenant for _, tenant in chosen)
        taken: list[QueuedRun] = []
        for tenant, count in counts.items():
            waiting = tenants[tenant]
            found = self._execution_turns(waiting.executions, count)
            waiting.runs -= len(found)
            if not waiting.runs:
                del tenants[tenant]
            taken += found
        return taken

    def _execution_turns(self, executions: Executions, most: int) -> list[QueuedRun]:
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
        waiting = self._parked.setdefault(limit, {}).setdefault(run.tenant, _Waiting())
        self._limit_of[run.run_id] = limit
        line = run.execution_id
        if run.turn is not None:  # it was the first before, and is the first again
            others = waiting.executions.pop(line, {})
            waiting.executions = {line: {run.run_id: run, **others}, **waiting.executions}
            waiting.runs += run.run_id not in others
        else:
            waiting.add(line, run)

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Dequeue up to `claim.slots` runs, and at most the worker's share of them, fair between executions."""
        tenants = self._pools.get(claim.pool)
        if not tenants:
            self._too_costly.discard(claim.pool)
            return []
        slots = claim.slots
        if claim.pool in self._special:
            return self._take_special(tenants, claim)
        if claim.workers > 1:
            waiting = sum(each.runs for each in tenants.values())
            slots = min(slots, -(-waiting // claim.workers))
        return self._turns(claim.pool, tenants, slots)

    async def take_each(self, claims: Sequence[Claim]) -> list[list[QueuedRun]]:
        """Dequeue runs for several claims of one pool: the shares of their workers, then what the others have left."""
        shares = [
            await self.take(msgspec.structs.replace(claim, workers=max(1, claim.workers - number)))
            for number, claim in enumerate(claims)
        ]
        if len(claims) >= claims[0].workers:
            for claim, share in zip(claims, shares, strict=True):
                left = claim.slots - sum(run.cost for run in share)
                if left > 0 and self._pools.get(claim.pool):
                    share += await self.take(msgspec.structs.replace(claim, slots=left, workers=1))
        return shares

    def _take_special(self, tenants: Tenants, claim: Claim) -> list[QueuedRun]:
        """Take from a pool in which some runs have a priority, labels or a cost."""
        waiting = list(_runs(tenants))
        if not any(run.special for run in waiting):
            self._special.discard(claim.pool)
        fitting: dict[str, list[QueuedRun]] = {}
        for run in waiting:
            if set(run.labels) <= set(claim.labels):
                fitting.setdefault(run.tenant, []).append(run)
        total = sum(map(len, fitting.values()))
        slots = min(claim.slots, -(-total // max(1, claim.workers)))
        chosen = self._shares.order(claim.pool, {tenant: len(runs) for tenant, runs in fitting.items()}, slots)
        lines = {tenant: iter(self._by_priority(runs, slots)) for tenant, runs in fitting.items()}
        ordered = [next(lines[tenant]) for _, tenant in chosen]
        taken = ordered[: count_fitting((run.cost for run in ordered), claim.slots, claim.capacity)]
        (self._too_costly.add if len(taken) < len(ordered) else self._too_costly.discard)(claim.pool)
        if len(tenants) > 1:
            self._shares.serve(claim.pool, chosen[: len(taken)])
        for run in taken:
            line = _line(run)
            self._removed(tenants, run.tenant, line, [run])
            executions = tenants[run.tenant].executions if run.tenant in tenants else {}
            if line in executions:
                executions[line] = executions.pop(line)  # to the end of the queue
        return taken

    def _by_priority(self, fitting: list[QueuedRun], most: int) -> list[QueuedRun]:
        """The first runs of a tenant: in turn between its executions, and by rank those with a priority."""
        plain: Executions = {}
        for run in fitting:
            if not run.priority:
                plain.setdefault(run.execution_id, {})[run.run_id] = run
        fair = self._execution_turns(plain, most)
        ranked = sorted((run for run in fitting if run.priority), key=lambda run: (run.rank, run.run_id))
        return _merged(fair, ranked)[:most]

    async def kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        """The pools and labels of the runs that wait for workers."""
        found: dict[tuple[str, tuple[str, ...]], None] = {}
        for pool, tenants in self._pools.items():
            runs = _runs(tenants) if pool in self._special else islice(_runs(tenants), 1)
            found |= dict.fromkeys((pool, run.labels) for run in runs)
        return list(found)

    async def labelled(self) -> list[tuple[str, tuple[str, ...], int]]:
        """Pool, labels and number of the waiting runs that require labels."""
        found: dict[tuple[str, tuple[str, ...]], int] = {}
        for pool in self._special:
            for run in _runs(self._pools.get(pool, {})):
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

    async def remove(self, executions: Sequence[str]) -> None:
        """Remove all runs of these executions."""
        for execution_id in executions:
            self._remove(execution_id)

    def _remove(self, execution_id: str) -> None:
        for tenants in (*self._pools.values(), *self._parked.values()):
            for tenant, waiting in list(tenants.items()):
                for line in (execution_id, execution_id + _WITH_PRIORITY):
                    for run_id in list(waiting.executions.get(line, ())):
                        if waiting.remove(line, run_id) is not None:
                            self._limit_of.pop(run_id, None)
                if not waiting.runs:
                    del tenants[tenant]
        self._served.pop(execution_id, None)
        for key in [key for key, parked in self._parked.items() if not parked]:
            del self._parked[key]

    async def close(self) -> None:
        """Close the queue and wake all watchers."""
        for pool in self._watchers:
            self._wake(pool)

    async def depths(self) -> list[PoolDepth]:
        """Every pool with waiting runs."""
        return [PoolDepth(pool, *_depth(tenants)) for pool, tenants in self._pools.items() if tenants]

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


def _runs(tenants: Tenants) -> Iterator[QueuedRun]:
    return (run for each in tenants.values() for runs in each.executions.values() for run in runs.values())


def _depth(tenants: Tenants) -> tuple[int, float | None]:
    since = [run.since for run in _runs(tenants)]
    return len(since), min((each for each in since if each), default=None)
