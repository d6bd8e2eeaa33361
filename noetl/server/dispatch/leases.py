"""Who holds which run, and until when: volatile, since the log has the epochs that fence.

Expiry alone takes nothing away: an expired lease becomes the fact `LeaseExpired`, and only when
that is in the log (the epoch moves on with the next claim) are the old worker's reports refused.
After a restart this table is empty; leases of the log are taken up again with a full term, so
that a worker that lived on meanwhile keeps its runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from noetl.runtime.clock import Clock

_NEVER = float("inf")
MOST_UNTOLD = 10_000  # revocations kept for a worker that does not listen


class Lease(Struct):
    """One run in one worker's hands."""

    run_id: str
    epoch: int
    worker: str
    since: float  # when this process learned of it, on the monotonic clock
    expires_at: float  # on the same


class Leases:
    """All leases this process knows. `term` None: they do not expire (worker and server in one process)."""

    def __init__(self, clock: Clock, term: float | None) -> None:
        self._clock = clock
        self._term = term
        self._leases: dict[str, Lease] = {}
        self._revoked: dict[str, dict[str, None]] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self.tell: Callable[[str, str], bool] = _nobody  # another way to reach (worker, run); True: it was reached

    def grant(self, run_id: str, epoch: int, worker: str) -> None:
        """This worker holds the run from now on."""
        now = self._clock.monotonic()
        self._leases[run_id] = Lease(run_id, epoch, worker, now, now + self._term if self._term is not None else _NEVER)

    def holds(self, worker: str, run_id: str, epoch: int) -> bool:
        """Whether the run is this worker's under this epoch."""
        lease = self._leases.get(run_id)
        return lease is not None and lease.epoch == epoch and lease.worker == worker

    def known(self, run_id: str) -> bool:
        """Whether anybody holds the run."""
        return run_id in self._leases

    def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A sign of life: the runs that are still this worker's are so for another term."""
        end = self._clock.monotonic() + self._term if self._term is not None else _NEVER
        for run_id, epoch in runs:
            if self.holds(worker, run_id, epoch):
                self._leases[run_id].expires_at = end

    def unsaid(self, worker: str, runs: Sequence[tuple[str, int]], grace: float) -> list[Lease]:
        """Leases of a worker which it does not name among all it holds, although it has had `grace` seconds to hear
        of them."""
        named = set(runs)
        heard = self._clock.monotonic() - grace
        return [
            lease
            for lease in self._leases.values()
            if lease.worker == worker and lease.since <= heard and (lease.run_id, lease.epoch) not in named
        ]

    def prolong(self, lease: Lease, seconds: float) -> None:
        """Let a lease that stands last so long from now."""
        if self._leases.get(lease.run_id) is lease:
            lease.expires_at = self._clock.monotonic() + seconds

    def release(self, run_id: str, epoch: int | None = None) -> None:
        """The run is nobody's."""
        lease = self._leases.get(run_id)
        if lease is not None and (epoch is None or lease.epoch <= epoch):
            del self._leases[run_id]

    def revoke(self, run_id: str, epoch: int, worker: str) -> None:
        """The run is taken away: the worker is told, and its tool is to be killed."""
        self.release(run_id, epoch)
        if self.tell(worker, run_id):
            return
        told = self._revoked.setdefault(worker, {})
        if len(told) >= MOST_UNTOLD:
            told.clear()  # nobody listens; a heartbeat would tell it all the same
        told[run_id] = None
        bell = self._bells.get(worker)
        if bell is not None:
            bell.set()

    async def revocations(self, worker: str, wait: float) -> list[str]:
        """Runs this worker must stop; waits up to `wait` seconds for one."""
        if not self._revoked.get(worker) and wait > 0:
            bell = self._bells.setdefault(worker, asyncio.Event())
            bell.clear()
            try:
                await asyncio.wait_for(bell.wait(), wait)
            except TimeoutError:
                return []
        return list(self._revoked.pop(worker, ()))

    def expired(self) -> list[Lease]:
        """Leases without a sign of life for a whole term."""
        if self._term is None:
            return []
        now = self._clock.monotonic()
        return [lease for lease in self._leases.values() if lease.expires_at <= now]

    def __len__(self) -> int:
        return len(self._leases)

    def of_execution(self, execution_id: str) -> list[Lease]:
        """Runs of an execution that somebody holds."""
        prefix = f"{execution_id}:"
        return [lease for lease in self._leases.values() if lease.run_id.startswith(prefix)]

    def remaining(self, lease: Lease) -> float | None:
        """Seconds until a lease ends without a sign of life; None when it does not."""
        return None if self._term is None else lease.expires_at - self._clock.monotonic()

    def held_by(self, worker: str) -> list[Lease]:
        """What a worker holds."""
        return [lease for lease in self._leases.values() if lease.worker == worker]


def _nobody(worker: str, run_id: str) -> bool:
    return False
