"""The small Protocols the shell asks for: what keeps events, work, results, secrets, playbooks.

Shell folders meet only through these. A back end is a class in `backends/<port>/<scheme>.py`;
the contract suites in `noetl.testing` hold its tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from noetl.model.events import Recorded
from noetl.model.playbook import KeychainEntry
from noetl.model.reference import Reference
from noetl.model.work import Claim, Report, RunOrder, Standing, Verdict


class Clock(Protocol):
    """Time as an argument: real in processes, virtual in simulation."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


# ── events ──────────────────────────────────────────────────────────────────────────────


class ExecutionSummary(Struct, frozen=True, omit_defaults=True, gc=False):
    """One row of the list of executions: a projection, always derivable from the log."""

    execution_id: str
    path: str
    status: str  # pending | running | paused | success | failed | cancelled
    started_at: float
    version: str | None = None
    playbook: str = ""  # digest
    ended_at: float | None = None
    seq: int = 0
    parent: str | None = None
    key: str | None = None  # idempotency key, unique
    error: str | None = None
    steps_done: int = 0
    steps_running: int = 0
    held: dict[str, int] | None = None  # slots of what can be limited (`pool gpu`) that its runs hold now


class Take(Struct, frozen=True, gc=False):
    """Slots of a limited key that an append adds to what is held, and how many may be held in all."""

    key: str
    count: int
    most: int


class Append(Struct, frozen=True, gc=False):
    """One atomic addition to one execution's log, with the projection it leads to."""

    execution_id: str
    expected_seq: int
    events: tuple[Recorded, ...]
    summary: ExecutionSummary
    was: str | None = None  # the status in the row that this one replaces; None: not known
    takes: tuple[Take, ...] = ()  # limits that must hold in its own transaction, for what it takes


class ExecutionFilter(Struct, frozen=True, omit_defaults=True):
    """What a list of executions is narrowed to."""

    status: tuple[str, ...] = ()
    path: str | None = None
    parent: str | None = None
    search: str | None = None
    before: str | None = None  # execution id: page on from there
    limit: int = 100


class EventStore(Protocol):
    """The truth. An append is acknowledged after its commit is flushed."""

    async def append(self, append: Append) -> None:
        """Add events at `expected_seq`; VersionConflict when somebody was first,
        Conflict when a new execution's `key` is taken, LimitReached when it takes more than there is."""

    async def read(self, execution_id: str, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """Events with seq > after, in order."""

    def tail(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """Events as they come, until the execution's last one; NotFound when there is no such execution."""

    async def summary(self, execution_id: str) -> ExecutionSummary | None:
        """The projection of one execution."""

    async def by_key(self, key: str) -> ExecutionSummary | None:
        """The execution that was started under this idempotency key."""

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first, one page."""

    async def unfinished(self) -> list[str]:
        """Ids of executions that have not reached playbook.processed."""

    async def logs(self, executions: Sequence[str], most: int) -> dict[str, tuple[ExecutionSummary, list[Recorded]]]:
        """The rows and whole logs of several executions at once; those with more than `most` events, damaged ones
        and ones that grow just now are left out."""

    async def counts(self) -> dict[str, int]:
        """How many executions there are, by status."""

    async def holders(self, key: str) -> list[ExecutionSummary]:
        """The unfinished executions that hold slots of a key (`held` in their rows), oldest first."""

    async def held(self, keys: Sequence[str]) -> dict[str, int]:
        """How many slots of each key are held now, by all unfinished executions together."""

    async def expired(self, before: float, most: int = 1000) -> list[str]:
        """Executions that ended before that instant and that nobody needs any more, oldest first; a child is needed
        as long as its caller is there."""

    async def drop(self, executions: Sequence[str]) -> None:
        """Forget these executions: they are not listed, not found by their keys, and their logs are gone or go soon."""

    async def tidy(self, now: float) -> int:
        """Give back the space of what was dropped and make room for what comes; how many partitions went."""

    async def check(self) -> None:
        """Write something and flush it; the error says why nothing can be written now."""

    async def save_snapshot(self, execution_id: str, seq: int, data: bytes) -> None:
        """Keep a folded state; losing it costs only time."""

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest folded state, if any."""

    async def close(self) -> None:
        """Flush and let go."""


@runtime_checkable
class SharedLogs(Protocol):
    """An event store whose logs other processes of this machine write to without telling."""

    async def touched(self) -> bool:
        """Whether another process may have written since this was last asked."""

    async def lengths(self, ids: Sequence[str]) -> list[tuple[str, int]]:
        """How long these logs are now (those that exist)."""


# ── playbooks ───────────────────────────────────────────────────────────────────────────


class StoredPlaybook(Struct, frozen=True, omit_defaults=True):
    """A playbook's text as it was registered or run."""

    path: str
    version: int
    digest: str
    text: str
    registered_at: float = 0.0
    file: str = ""  # the folder relative files are found in, when it came from a file


class PlaybookStore(Protocol):
    """The catalogue, and the texts executions were started from (by digest)."""

    async def keep(self, digest: str, text: str, file: str) -> None:
        """Remember the text an execution runs; the same digest is kept once."""

    async def text(self, digest: str) -> tuple[str, str] | None:
        """Text and file of a digest."""

    async def register(self, path: str, digest: str, text: str, at: float) -> StoredPlaybook:
        """A new version of a path (the same text again is the same version)."""

    async def find(self, path: str, version: int | None = None) -> StoredPlaybook | None:
        """A version, or the newest."""

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path."""

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path, newest first; those older than `before`."""


# ── triggers ────────────────────────────────────────────────────────────────────────────


class StoredTrigger(Struct, frozen=True, omit_defaults=True):
    """What starts executions by itself (a schedule, a webhook), as a row: `data` is its document.

    `revision` counts its changes: of two who change the same one, the second is refused."""

    kind: str
    name: str
    data: bytes
    revision: int = 1
    wake: float | None = None  # when it wants to be looked at


class TriggerStore(Protocol):
    """Schedules and webhooks, beside the catalogue they name."""

    async def add(self, trigger: StoredTrigger) -> None:
        """Keep a new one; Conflict when its name is taken (among its kind)."""

    async def save(self, trigger: StoredTrigger) -> bool:
        """Replace the revision before this one; False when it is not there any more: somebody was first."""

    async def get(self, kind: str, name: str) -> StoredTrigger | None:
        """One of them."""

    async def due(self, kind: str, now: float, limit: int = 100) -> list[StoredTrigger]:
        """Those whose `wake` has come, the longest due first."""

    async def next_wake(self, kind: str) -> float | None:
        """The earliest `wake` of all."""

    async def remove(self, kind: str, name: str) -> bool:
        """Forget it; False when there was none."""

    async def list(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[StoredTrigger]:
        """By name, one page."""


class Duties(Protocol):
    """Work that one of several servers does for all of them."""

    async def on_duty(self, duty: str, seconds: float) -> bool:
        """Whether this server has the duty for the next seconds: it had it, or nobody had."""


# ── results ─────────────────────────────────────────────────────────────────────────────


class ResultStore(Protocol):
    """Payloads too large for the log, streamed both ways and verified by checksum."""

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        rows: int | None = None,
        columns: Sequence[str] | None = None,
        ttl: str | None = None,
    ) -> Reference:
        """Store; the reference is returned after the payload is durable."""

    def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream it back; PayloadUnavailable when it is missing or corrupt."""

    async def delete(self, reference: Reference) -> None:
        """Forget it."""

    async def collect(self, now: float) -> int:
        """Delete what has outlived its ttl; how many."""

    async def forget(self, executions: Sequence[str]) -> int:
        """Delete what these executions stored without a ttl; how many."""

    async def close(self) -> None:
        """Let go."""


@runtime_checkable
class ResultStores(Protocol):
    """Several stores behind one: where a playbook's wish (`output: {store: {kind}}`) is granted."""

    def of(self, kind: str | None) -> ResultStore:
        """The store of that kind; RequestRefused when this installation has none."""


# ── secrets ─────────────────────────────────────────────────────────────────────────────


class CredentialStore(Protocol):
    """This installation's encrypted credentials; values are write-only over the API."""

    async def set(self, name: str, type: str, data: Mapping[str, Any]) -> None:
        """Keep (encrypted)."""

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Fields of a credential, decrypted, for the worker that needs it."""

    async def list(self) -> list[tuple[str, str]]:
        """Names and types."""

    async def delete(self, name: str) -> bool:
        """Forget it; False when there was none."""


class Keychain(Protocol):
    """Values of a playbook's keychain entries, from wherever each kind keeps them.

    A value is text (one-value entries, tokens) or a mapping of fields. Tokens that expire are renewed
    by this port when they are asked for, so ask when a value is needed and keep it no longer than a run."""

    async def resolve(
        self,
        entries: Sequence[KeychainEntry],
        names: Sequence[str],
        *,
        workload: Mapping[str, Any] | None = None,
        file: str = "",
    ) -> dict[str, Any]:
        """The values of these names: declared entries, else stored credentials.

        `file` is the playbook's: relative paths of entries start from its folder.
        SecretUnavailable names every one that cannot be had, and why."""

    async def close(self) -> None:
        """Let go."""


# ── work ────────────────────────────────────────────────────────────────────────────────


MOST_WEIGHT = 60  # turns that an execution may get where others get one


class QueuedRun(Struct, frozen=True, omit_defaults=True, gc=False):
    """A run that is owed and that nobody holds: enough to find a worker for it."""

    execution_id: str
    run_id: str
    pool: str = "default"
    affinity: str | None = None  # runs with the same word stay on one worker; the engine sees to it
    since: float = 0.0  # when it began to wait, in seconds since the epoch; 0: not known
    limit: str | None = None  # it stands in the line of this key, whose limit is reached; or was let out of it
    turn: int | None = None  # its place in that line; whoever puts it back there gives it back
    weight: int = 1  # turns its execution gets where others get one


class LineDepth(Struct, frozen=True):
    """How much waits because a limit is reached, and since when the first of it waits."""

    key: str
    runs: int
    since: float | None = None


class PoolDepth(Struct, frozen=True):
    """How much waits for workers of one pool, and since when the first of it waits."""

    pool: str
    runs: int
    since: float | None = None


class RunQueue(Protocol):
    """Runs that wait for a worker. A wake-up, never the truth: what is lost here is found again in
    the log, what is here twice is leased once."""

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Let them wait (one that waits already waits once); those with a `limit` stand in its line, where nobody
        takes them before they are let out."""

    async def let_out(self, limit: str, most: int, *, whole: bool = False, also: Sequence[str] = ()) -> int:
        """Let the first `most` runs of a line wait for workers again, fair between executions; how many.

        `whole`: so many executions, first come, first served, each with all its runs. `also`: all runs of these."""

    async def lines(self) -> list[LineDepth]:
        """Every limit in whose line somebody stands."""

    async def take(self, claim: Claim) -> list[QueuedRun]:
        """Up to `claim.slots` runs of the claim's pool that wait now, fair between executions."""

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever runs of the pool may wait, and once more when the queue closes; the answer ends it."""

    async def remove(self, execution_id: str, runs: Sequence[str] | None = None) -> None:
        """Forget these runs of an execution, or all of them."""

    async def depths(self) -> list[PoolDepth]:
        """Every pool in which something waits for workers."""

    async def close(self) -> None:
        """Let go; who watches is woken, and nothing is there."""


class SignsOfLife(Protocol):
    """When each worker was last heard of by any server, where several work on one store."""

    async def seen(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A worker says that it lives and holds these runs (run id, epoch)."""

    async def silent_for(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the worker last said to any server that it holds this run; None when it does not say so."""


class WorkLink(Protocol):
    """A worker's line to the control plane: local, http or nats."""

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        """Runs this worker now holds the lease of; waits up to `wait` seconds for one."""

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> Standing:
        """A worker names all leases (run id, epoch) that it holds, and they are prolonged. It hears which of them
        are not its own any more, and which others are: their order got lost on its way."""

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        """Runs taken away from this worker (cancelled, timed out, given to another): stop them, kill
        their tools, report nothing more. Waits up to `wait` seconds for one."""

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """A worker that shuts down lets go of runs (run id, epoch) it has not finished; no attempt is lost."""

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[Verdict], list[RunOrder]]:
        """Hand over events; answered after they are on disk. With `free` slots the answer may
        bring the next runs along, leased in the same append."""

    async def playbook(self, digest: str) -> bytes:
        """The compiled playbook (JSON of the IR)."""

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        """Resolved keychain values, handed to the worker that needs them."""

    async def close(self) -> None:
        """Let go."""


class RemoteLink(WorkLink, Protocol):
    """A line whose answers may get lost on their way."""

    doubt: Callable[[], None]  # called when one got lost that may have brought orders
