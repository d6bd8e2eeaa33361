"""Back-pressure: refuses new executions while too many are being started or too many runs wait.

A request is refused before anything of it is kept, so an overload cannot fill the memory. The waiting runs are counted
from the queue while requests arrive: at most once a second, and again when a bound seems to be reached. Executions that
triggers or callers start are not refused: triggers wait themselves, and a child belongs to an accepted request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from noetl.errors import TooManyRequests
from noetl.runtime.clock import Clock
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.queue import QueuedRun, RunQueue

MAX_STARTING = 4000  # requests that are not stored yet
SAMPLE_SECONDS = 1.0  # between two counts
SAMPLED_PER_SECOND = 50_000  # runs that are counted per second, so that counting costs a constant share
REFUSALS_PER_SECOND = 1_000_000  # the same while requests are refused
STARTING_RETRY_SECONDS = 1
WAITING_RETRY_SECONDS = 5


class Admission:
    """Which requests a server accepts now. `pending` are runs that are not in the queue yet."""

    def __init__(
        self,
        queue: RunQueue,
        limiter: ConcurrencyLimiter,
        background: BackgroundTasks,
        clock: Clock,
        max_waiting: int | None = None,
        pending: Callable[[], Iterable[QueuedRun]] = tuple,
    ) -> None:
        self.limiter = limiter
        self.starting: Counter[str] = Counter()  # requests that are being stored, by tenant
        self.accepted: Counter[str] = Counter()  # those of them that were accepted
        self._queue = queue
        self._background = background
        self._clock = clock
        self._max_waiting = max_waiting
        self._pending = pending
        self._waiting: Counter[str] = Counter()  # by tenant: at the last count, and accepted since
        self._counted_at = float("-inf")

    def start(self, labels: Mapping[str, str]) -> StartingRequest:
        """A context for the time in which a request is stored."""
        return StartingRequest(self, self.limiter.tenant_of(labels))

    async def check(self, tenant: str) -> None:
        """Raise TooManyRequests while more runs wait than the installation or the tenant may have."""
        if self._max_waiting is None and not self.limiter.max_waiting:
            return
        age, waiting = self._clock.monotonic() - self._counted_at, self._waiting.total()
        reason = self._reason(tenant)
        if reason is not None and age > waiting / REFUSALS_PER_SECOND:
            await self._count()
            reason = self._reason(tenant)
        elif age > max(SAMPLE_SECONDS, waiting / SAMPLED_PER_SECOND):
            self._background.run_single("counting waiting runs", self._count)
        if reason is not None:
            raise TooManyRequests(reason, WAITING_RETRY_SECONDS)
        self._waiting[tenant] += 1

    def _reason(self, tenant: str) -> str | None:
        most, count = self.limiter.max_waiting.get(tenant), self._waiting[tenant]
        if most is not None and count >= most:
            return f"{count} runs{_of(tenant)} wait (at most {most}, set by `noetl limit set label`); try again later"
        if self._max_waiting is not None and (total := self._waiting.total()) >= self._max_waiting:
            return f"{total} runs wait (at most {self._max_waiting}, server.max_waiting_runs); try again later"
        return None

    async def _count(self) -> None:
        self._counted_at = self._clock.monotonic()
        waiting = Counter(await self._queue.tenant_depths())
        waiting.update(self.accepted)
        waiting.update(run.tenant for run in self._pending())
        self._waiting = waiting


class StartingRequest:
    """A request that is being stored. A tenant may have as many of them as are left for others: half of all, if it is
    the only one."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission = admission
        self._tenant = tenant
        self._accepted: str | None = None

    def __enter__(self) -> StartingRequest:
        starting, tenant = self._admission.starting, self._tenant
        if starting[tenant] >= MAX_STARTING - starting.total():
            message = f"{starting[tenant]} requests{_of(tenant)} are being stored; try again later"
            raise TooManyRequests(message, STARTING_RETRY_SECONDS)
        starting[tenant] += 1
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        _decrement(self._admission.starting, self._tenant)
        if self._accepted is not None:
            _decrement(self._admission.accepted, self._accepted)

    async def check(self, labels: Mapping[str, str]) -> None:
        """Raise TooManyRequests unless the request is accepted; `labels` include those of the playbook."""
        tenant = self._admission.limiter.tenant_of(labels)
        await self._admission.check(tenant)
        self._accepted = tenant
        self._admission.accepted[tenant] += 1


def _decrement(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _of(tenant: str) -> str:
    return f" of tenant {tenant}" if tenant else ""
