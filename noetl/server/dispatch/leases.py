"""Leases of runs: which worker holds which run, and until when. Volatile; the epochs in the log fence.

Expiry alone revokes nothing: an expired lease becomes the command `ExpireLease`, and only after its event is in the
log (the next claim raises the epoch) are reports of the old worker refused. After a restart this table is
empty; the leases of the log are granted again for a full term, so that workers that are alive keep their runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from noetl.runtime.clock import Clock

_NEVER = float("inf")
TOGETHER = 0.5  # of a term between the last signs of two workers that may have been lost together
MAX_PENDING_REVOCATIONS = 10_000  # per worker; more are dropped, since a heartbeat reports them as well


class Lease(Struct):
    """The lease of one run."""

    run_id: str
    epoch: int
    worker: str
    since: float  # when this process granted it, on the monotonic clock
    expires_at: float  # on the monotonic clock
    adopted: bool = False  # from the log: another process granted it, and this one does not know whose token got it


class Leases:
    """The leases that this process knows. `term` None: they do not expire (worker and server in one process)."""

    def __init__(self, clock: Clock, term: float | None) -> None:
        self._clock = clock
        self._term = term
        self._leases: dict[str, Lease] = {}
        self._seen: dict[str, float] = {}  # worker -> its last heartbeat or claim, on the monotonic clock
        self._revoked: dict[str, dict[str, None]] = {}
        self._changed: dict[str, asyncio.Event] = {}  # worker -> set when a revocation is pending
        self._push: Callable[[str, str], bool] | None = None

    def push_revocations(self, push: Callable[[str, str], bool]) -> None:
        """Send revocations through `push(worker, run_id)` first; it returns False when the worker is not connected."""
        self._push = push

    def grant(self, run_id: str, epoch: int, worker: str, *, adopted: bool = False) -> None:
        """Grant the lease of a run to a worker for a full term; `adopted`: the worker may be lost."""
        now = self._clock.monotonic()
        if not adopted:
            self._seen[worker] = now
        end = now + self._term if self._term is not None else _NEVER
        self._leases[run_id] = Lease(run_id, epoch, worker, now, end, adopted)

    def holds(self, worker: str, run_id: str, epoch: int) -> bool:
        """Whether the worker has the lease of the run with this epoch."""
        lease = self._leases.get(run_id)
        return lease is not None and lease.epoch == epoch and lease.worker == worker

    def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Extend the leases that the worker still has by a full term."""
        now = self._seen[worker] = self._clock.monotonic()
        end = now + self._term if self._term is not None else _NEVER
        for run_id, epoch in runs:
            if self.holds(worker, run_id, epoch):
                self._leases[run_id].expires_at = end

    def unreported(self, worker: str, runs: Sequence[tuple[str, int]], grace: float) -> list[Lease]:
        """Leases of a worker that are older than `grace` seconds and missing in its heartbeat."""
        reported = set(runs)
        granted_before = self._clock.monotonic() - grace
        return [
            lease
            for lease in self._leases.values()
            if lease.worker == worker and lease.since <= granted_before and (lease.run_id, lease.epoch) not in reported
        ]

    def is_adopted(self, run_id: str) -> bool:
        """Whether another process granted the lease of a run."""
        lease = self._leases.get(run_id)
        return lease is not None and lease.adopted

    def prolong(self, lease: Lease, seconds: float) -> None:
        """Let a lease expire `seconds` from now, if it is still granted."""
        if self._leases.get(lease.run_id) is lease:
            lease.expires_at = self._clock.monotonic() + seconds

    def release(self, run_id: str, epoch: int | None = None) -> None:
        """Delete the lease of a run."""
        lease = self._leases.get(run_id)
        if lease is not None and (epoch is None or lease.epoch <= epoch):
            del self._leases[run_id]

    def revoke(self, run_id: str, epoch: int, worker: str) -> None:
        """Delete a lease and notify its worker, which stops the tool."""
        self.release(run_id, epoch)
        if self._push is not None and self._push(worker, run_id):
            return
        pending = self._revoked.setdefault(worker, {})
        if len(pending) >= MAX_PENDING_REVOCATIONS:
            pending.clear()
        pending[run_id] = None
        changed = self._changed.get(worker)
        if changed is not None:
            changed.set()

    async def revocations(self, worker: str, wait: float) -> list[str]:
        """Runs that this worker must stop; waits up to `wait` seconds for one."""
        if not self._revoked.get(worker) and wait > 0:
            changed = self._changed.setdefault(worker, asyncio.Event())
            changed.clear()
            try:
                async with asyncio.timeout(wait):  # not wait_for, which may swallow a cancellation before Python 3.12
                    await changed.wait()
            except TimeoutError:
                return []
        return list(self._revoked.pop(worker, ()))

    def forget(self, worker: str) -> None:
        """Drop what is pending for a worker that is not known any more; its leases expire."""
        self._revoked.pop(worker, None)
        self._changed.pop(worker, None)
        self._seen.pop(worker, None)

    def expired(self) -> list[Lease]:
        """Leases that were not extended for a full term."""
        now = self._clock.monotonic()
        return [lease for lease in self._leases.values() if lease.expires_at <= now]

    def lost_together(self, worker: str, term: float) -> bool:
        """Whether another worker was seen last at about the same time as a worker whose lease expired.

        A worker that this process has never seen, because it was started later, counts as lost together."""
        last = self._seen.get(worker)
        return last is None or any(
            abs(seen - last) <= TOGETHER * term for other, seen in self._seen.items() if other != worker
        )

    def __len__(self) -> int:
        return len(self._leases)

    def of_execution(self, execution_id: str) -> list[Lease]:
        """The leases of an execution."""
        prefix = f"{execution_id}:"
        return [lease for lease in self._leases.values() if lease.run_id.startswith(prefix)]

    def remaining(self, lease: Lease) -> float | None:
        """Seconds until a lease expires if it is not extended; None: it does not expire."""
        return None if self._term is None else lease.expires_at - self._clock.monotonic()

    def held_by(self, worker: str) -> list[Lease]:
        """The leases of a worker."""
        return [lease for lease in self._leases.values() if lease.worker == worker]
