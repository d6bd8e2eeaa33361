"""Fair shares of tenants: start-time fair queueing over the tenants that have waiting runs.

Every tenant has a *pass*, the virtual time at which its next run is due; serving a run adds `TURN` divided by the
weight of the tenant. The run with the smallest pass is served first. The virtual clock of a scope is the pass of the
run that was served last, and no pass is before it: a tenant that was idle gets its share from now on, and no credit for
the past. `storage.queue.postgres_queries` computes the same in SQL.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

TURN = 60  # virtual time between two runs of a tenant, or of an execution, with weight 1
MAX_PASSES = 1000  # of one scope before those of idle tenants are removed


class TenantShares:
    """The passes of the tenants of each scope: a pool, or the runs that wait for one limit."""

    def __init__(self) -> None:
        self.weights: Mapping[str, int] = {}  # 1 if missing
        self._passes: dict[str, dict[str, int]] = {}
        self._clocks: dict[str, int] = {}

    def order(self, scope: str, waiting: Mapping[str, int], most: int) -> list[tuple[int, str]]:
        """The tenants whose first runs are served next, up to `most`, once for each run, with the pass of the run."""
        clock, passes = self._clocks.get(scope, 0), self._passes.get(scope, {})
        due = [(max(clock, passes.get(tenant, 0)), tenant) for tenant in waiting]
        heapq.heapify(due)
        left = dict(waiting)
        chosen: list[tuple[int, str]] = []
        while due and len(chosen) < most:
            at, tenant = due[0]
            chosen.append((at, tenant))
            left[tenant] -= 1
            if left[tenant] > 0:
                heapq.heapreplace(due, (at + self._turn(tenant), tenant))
            else:
                heapq.heappop(due)
        return chosen

    def serve(self, scope: str, chosen: Iterable[tuple[int, str]]) -> None:
        """Record that runs were served, in the order of their passes."""
        clock, passes = self._clocks.get(scope, 0), self._passes.setdefault(scope, {})
        for at, tenant in chosen:
            passes[tenant] = at + self._turn(tenant)
            clock = max(clock, at)
        self._clocks[scope] = clock
        if len(passes) > MAX_PASSES:  # a pass before the clock equals a missing one
            self._passes[scope] = {tenant: at for tenant, at in passes.items() if at > clock}

    def _turn(self, tenant: str) -> int:
        return TURN // self.weights.get(tenant, 1)
