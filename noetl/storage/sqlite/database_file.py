"""One SQLite database file, shared by the back ends that store their tables in it.

Invariants:

*Acknowledged means durable.* WAL with `synchronous=FULL`; `write` returns after COMMIT.

*Group commit.* One thread writes. All jobs that are queued when it becomes free run in one transaction
with one flush. A job that raises a NoetlError does so before it changes anything; on any other error the group is
rolled back and each job runs in a transaction of its own. So a failing job does not affect the others.

*Safe for several processes.* SQLite before 3.51.3 can corrupt a WAL when one connection resets it
while another one writes. Therefore every write transaction, every checkpoint, opening and
closing hold an advisory lock on a file beside the database, and SQLite's
automatic checkpoints are off.

*Explicit errors.* A file of another program, of a newer version, without write permission, or with damage
raises an error that states the cause and the remedy.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct

from noetl.errors import CorruptLog, NoetlError, StoreUnavailable
from noetl.observability import metrics
from noetl.runtime.disk_errors import disk_error
from noetl.runtime.private_files import ensure_private
from noetl.storage.ports.sql import Dialect
from noetl.storage.sqlite import wal_check
from noetl.storage.sqlite.commit_mark import CommitMark, count_up, is_older, remove_mark
from noetl.storage.sqlite.wal_check import Committed

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

APPLICATION_ID = 0x4E6F4554  # "NoET", in the file's header
MAX_GROUP = 512  # jobs in one transaction
PAGE = 4096
RELEASED_PAGES = 2_000  # returned to the file system in one transaction
VACUUM_PAGES = 4_000  # free pages of an older file that are worth a VACUUM
CHECKPOINT_PAGES = 2_000  # WAL pages after which an idle writer checkpoints
MAX_WAL_PAGES = 16_000  # WAL pages after which a busy writer checkpoints
TRUNCATE_PAGES = 64_000  # size of the WAL file above which a checkpoint truncates it
PAGES_PER_JOB = 3  # estimated pages that a job writes beside its own bytes
BUSY_SECONDS = 30.0
MIN_FREE_BYTES = 1 << 20  # without which a disk is full
_open_files: Counter[str] = Counter()  # in this process, by path


class _PendingWrite(Struct, eq=False):
    """A queued job and the future of its caller."""

    job: Job[Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    size: int
    result: Any = None
    failure: BaseException | None = None


class SqliteFile:
    """`ports.SqlDatabase` in a file: its writer thread and its reader connections."""

    dialect: Dialect = "sqlite"
    prefix = ""
    like = "LIKE"

    def __init__(self, path: str, *, readers: int = 2, preallocate_wal: bool = False) -> None:
        self.path = os.path.abspath(path)
        self._jobs: queue.SimpleQueue[_PendingWrite | None] = queue.SimpleQueue()
        self._lock = _FileLock(self.path + ".lock", self.path)
        self._closed = False
        self._versions: dict[str, int] = {}  # schema versions by table group, as known to this process
        self._scripts: list[str] = []  # of all groups
        self._wal_pages = 0  # estimate of the pages that a checkpoint has to copy
        self._mark = CommitMark(self.path)
        self._local = threading.local()
        self._reader_connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(max_workers=readers, thread_name_prefix="noetl-sqlite-read")
        self._connection = self._open()
        self._preallocate_wal = preallocate_wal
        self._preallocated = self._wal_size()  # bytes of the WAL file after the last preallocation
        self._wal_pages = self._preallocated // PAGE
        self._writer = threading.Thread(target=self._write_forever, name="noetl-sqlite-write", daemon=True)
        self._writer.start()

    # ── for back ends ───────────────────────────────────────────────────────────────────

    def migrate(self, name: str, scripts: Sequence[str]) -> None:
        """Migrate the tables of one back end to the last of its `scripts` (version n is script n-1).

        Called during construction, before the first `write`."""
        self._versions[name] = len(scripts)
        self._scripts += scripts
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    self._run_migrations(name, scripts)
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as problem:
                raise store_error(problem, self.path) from problem

    def _run_migrations(self, name: str, scripts: Sequence[str]) -> None:
        row = self._connection.execute("SELECT version FROM noetl_schema WHERE name = ?", (name,)).fetchone()
        found = int(row[0]) if row else 0
        if found > len(scripts):
            raise StoreUnavailable(
                f"{self.path}: the {name} tables have schema version {found}, but this version of NoETL supports "
                f"{len(scripts)}; use the newer NoETL that wrote the file, or choose another --store"
            )
        for statement in ";".join(scripts[found:]).split(";"):
            if statement.strip():
                self._connection.execute(statement)
        if found < len(scripts):
            self._connection.execute(
                "INSERT INTO noetl_schema(name, version) VALUES (?, ?) "
                "ON CONFLICT(name) DO UPDATE SET version = excluded.version",
                (name, len(scripts)),
            )

    async def write(self, job: Job[T], size: int = 0) -> T:
        """Run `job` in the transaction of the next group; return its result after the commit.

        A job may run twice (if its group could not be committed), so it must
        change nothing but the database. It raises a NoetlError only before it has changed
        anything. `size` is the approximate number of bytes that it writes."""
        return await self.submit(job, size)

    def submit(self, job: Job[T], size: int = 0) -> asyncio.Future[T]:
        """Like `write`, but return the future; the job runs even if the future is not awaited."""
        if self._closed:
            raise StoreUnavailable(f"{self.path} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_PendingWrite(job, future, loop, size))
        return future

    async def read(self, query: Job[T]) -> T:
        """Run `query` on a read-only connection in a reader thread."""
        if self._closed:
            raise StoreUnavailable(f"{self.path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read_now, query)

    async def fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows."""
        return await self.read(lambda db: db.execute(query, _numbered(values)).fetchall())

    async def row(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row; None if there is none."""
        return await self.read(lambda db: db.execute(query, _numbered(values)).fetchone())

    async def execute(self, statement: str, *values: Any) -> int:
        """Execute a statement in the next group; return the number of changed rows after the commit."""
        return await self.write(lambda db: db.execute(statement, _numbered(values)).rowcount, _size(values))

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each of several rows of values, in one transaction."""
        size = sum(map(_size, rows))
        await self.write(lambda db: db.executemany(statement, map(_numbered, rows)).rowcount, size)

    async def check(self) -> None:
        """Write and flush one row; raise the reason if the file cannot or must not be written."""
        await self.write(self._probe)

    def _probe(self, db: sqlite3.Connection) -> None:
        found = dict(db.execute("SELECT name, version FROM noetl_schema").fetchall())
        for name, version in self._versions.items():
            if found.get(name, 0) != version:
                raise StoreUnavailable(
                    f"{self.path}: the {name} tables were migrated to schema version {found.get(name, 0)}, but this "
                    f"process supports {version}; restart it with the NoETL version that migrated them"
                )
        count_up(db)

    async def release_space(self) -> int:
        """Return free pages to the file system, in small transactions; returns the number of bytes."""
        before = await self._free_pages()
        mode = await self.row("PRAGMA auto_vacuum")
        if mode is not None and mode[0] == 0:  # created by an older version: convert it once
            if before < VACUUM_PAGES:
                return 0
            await asyncio.to_thread(self._alone, _vacuum)
        else:
            left = before
            while left:
                await self.write(lambda db: db.execute(f"PRAGMA incremental_vacuum({RELEASED_PAGES})").fetchall())
                left, previous = await self._free_pages(), left
                if left >= previous:
                    break
        await asyncio.to_thread(self._truncate_wal)
        return max(0, before - await self._free_pages()) * PAGE

    async def rebuild(self, derived: Collection[str]) -> list[str]:
        """Rebuild every index, and the tables of `derived` that cannot be read, which are empty afterwards; returns the
        names of these. CorruptLog if another table cannot be read."""
        from noetl.storage.sqlite.rebuild import rebuild

        return await asyncio.to_thread(self._alone, lambda connection: rebuild(connection, derived, self._scripts))

    async def unreadable(self, derived: Collection[str]) -> list[str]:
        """The tables, except those of `derived`, that cannot be read without their indexes."""
        from noetl.storage.sqlite.rebuild import unreadable

        return await self.read(lambda db: unreadable(db, derived))

    async def missing(self) -> list[str]:
        """The tables and indexes that do not exist, although the stores of this process have created them."""
        from noetl.storage.sqlite.rebuild import missing

        return [f"{kind} {name}" for kind, name, *_ in await self.read(lambda db: missing(db, self._scripts))]

    async def _free_pages(self) -> int:
        row = await self.row("PRAGMA freelist_count")
        return 0 if row is None else int(row[0])

    def _alone(self, job: Job[T]) -> T:
        """Run a job without a transaction on a connection of its own, while no other process writes."""
        try:
            with self._lock:
                connection = _connect(self.path)
                try:
                    return job(connection)
                finally:
                    connection.close()
        except sqlite3.Error as problem:
            raise store_error(problem, self.path) from problem

    def _truncate_wal(self) -> None:
        try:
            self._alone(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
            self._mark.checkpointed()
        except (CorruptLog, StoreUnavailable):
            return  # a reader is active: the next checkpoint truncates it

    async def close(self) -> None:
        """Commit all queued jobs, then close the file."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._close_now)

    # ── opening and closing ─────────────────────────────────────────────────────────────

    def _open(self) -> sqlite3.Connection:
        folder = os.path.dirname(self.path)
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as problem:
            raise StoreUnavailable(
                disk_error(problem, folder)
                or f"cannot create the folder {folder} ({problem.strerror}); set NOETL_HOME or --store to a "
                "writable folder"
            ) from None
        if os.path.isdir(self.path):
            raise StoreUnavailable(f"{self.path} is a folder; --store takes the path of a file")
        try:
            with self._lock:
                committed = self._left_behind()
                if not os.path.exists(self.path):
                    remove_mark(self.path)  # a new database
                connection = _connect(self.path)
                try:
                    self._prepare(connection)
                    if committed is not None:
                        (_, valid, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                        self._refuse_loss(committed.lost(valid))
                    self._refuse_older(connection)
                except BaseException:
                    connection.close()
                    raise
                _open_files[self.path] += 1
                return connection
        except sqlite3.Error as problem:
            raise store_error(problem, self.path) from problem
        except UnicodeDecodeError as problem:  # in the message about a damaged schema
            raise CorruptLog(
                f"{self.path} is damaged ({problem}); restore it from a backup, or move the file"
            ) from None

    def _left_behind(self) -> Committed | None:
        """What a killed process has committed to the write-ahead log; raises CorruptLog if the log is another one."""
        if _open_files[self.path]:
            return None
        found = wal_check.left_behind(self.path)
        self._refuse_loss(wal_check.recorded_loss(self.path) or (found.frames if found and found.replaced else 0))
        return found

    def _refuse_loss(self, frames: int) -> None:
        if frames:
            wal_check.record_loss(self.path, frames)
            raise CorruptLog(
                f"{self.path}: {frames} committed pages of the write-ahead log are damaged or missing, so the last "
                "acknowledged events are lost; restore a backup, or continue without them with `noetl doctor --repair`"
            )

    def _refuse_older(self, connection: sqlite3.Connection) -> None:
        if is_older(connection, self.path):
            raise CorruptLog(
                f"{self.path} is older than its last acknowledged commits: its write-ahead log was deleted, or it was "
                "replaced by an older copy; restore a backup, or continue without the lost events with "
                "`noetl doctor --repair`"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application or tables:
                raise StoreUnavailable(
                    f"{self.path} is an SQLite database of another program; choose another file with --store"
                )
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: this file system does not support SQLite's write-ahead log "
                f"(journal mode is {mode}); use a store on a local disk"
            )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA foreign_keys=OFF")
        if application != APPLICATION_ID:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "CREATE TABLE noetl_schema(name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
            )
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute("COMMIT")

    def _close_now(self) -> None:
        self._writer.join()
        self._pool.shutdown(wait=True)
        # Closing the last connection of a database runs a checkpoint, which needs the lock.
        with self._lock:
            for connection in self._reader_connections:
                connection.close()
            self._connection.close()
            _open_files[self.path] -= 1
        self._mark.close()
        self._lock.close()

    # ── readers ─────────────────────────────────────────────────────────────────────────

    def _read_now(self, query: Job[T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                uri = "file:" + self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23") + "?mode=ro"
                connection = _connect(uri)
                self._local.connection = connection
                self._reader_connections.append(connection)
            # All statements of a query read one snapshot.
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            raise store_error(problem, self.path) from problem

    # ── the writer ──────────────────────────────────────────────────────────────────────

    def _write_forever(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._commit_under_lock(group)
                _deliver(group, self.path)
                if self._preallocate_wal and self._wal_size() != self._preallocated:
                    self._extend_wal()
            if self._wal_pages > (CHECKPOINT_PAGES if self._jobs.empty() else MAX_WAL_PAGES):
                self._checkpoint()

    def _next_group(self) -> tuple[list[_PendingWrite], bool]:
        first = self._jobs.get()
        group: list[_PendingWrite] = []
        while first is not None:
            group.append(first)
            if len(group) >= MAX_GROUP:
                return group, False
            try:
                first = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit_under_lock(self, group: list[_PendingWrite]) -> None:
        try:
            with self._lock:
                self._commit(group)
        except StoreUnavailable as problem:
            for waiting in group:
                waiting.failure = problem

    def _commit(self, group: list[_PendingWrite]) -> None:
        self._wal_pages += sum(waiting.size for waiting in group) // PAGE + PAGES_PER_JOB * len(group)
        if self._run_transaction(group) or len(group) == 1:
            return
        # The whole transaction failed (for example: disk full). Run each job alone to find the failing one.
        for waiting in group:
            waiting.result, waiting.failure = None, None
            self._run_transaction([waiting])

    def _run_transaction(self, group: list[_PendingWrite]) -> bool:
        connection = self._connection
        began = time.perf_counter()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for waiting in group:
                try:
                    waiting.result = waiting.job(connection)
                except NoetlError as refusal:
                    waiting.failure = refusal
            self._mark.count(connection)
            connection.execute("COMMIT")
            self._mark.committed()
            metrics.FLUSH.observe(time.perf_counter() - began)
            metrics.BATCH.observe(len(group))
            return True
        except Exception as problem:  # noqa: BLE001 - raised in the callers
            metrics.STORE_FAILURES.add()
            for waiting in group:
                waiting.result, waiting.failure = None, problem
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error as second:
                    # The transaction cannot be rolled back: discard the connection.
                    problem.add_note(f"and the transaction could not be rolled back: {second}")
                    self._reconnect()
            return False

    def _reconnect(self) -> None:
        self._connection.close()
        self._connection = _connect(self.path)
        self._prepare(self._connection)

    def _wal_size(self) -> int:
        try:
            return os.stat(self.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    def _extend_wal(self) -> None:
        from noetl.storage.sqlite.wal_preallocation import preallocate

        try:
            with self._lock:
                self._preallocated = preallocate(self._connection, self.path + "-wal")
        except (OSError, sqlite3.Error, StoreUnavailable):
            return  # an optimization only: the next commit reports a persistent error

    def _checkpoint(self) -> None:
        kind = "TRUNCATE" if self._wal_size() > TRUNCATE_PAGES * PAGE else "PASSIVE"
        try:
            with self._lock:
                self._connection.execute(f"PRAGMA wal_checkpoint({kind})").fetchone()
        except (sqlite3.Error, StoreUnavailable):
            # A failed checkpoint (disk full, slow reader) loses nothing: the WAL still has every commit,
            # and the next checkpoint retries.
            pass
        self._wal_pages = 0
        self._mark.checkpointed()


def _connect(place: str) -> sqlite3.Connection:
    """A connection without automatic transactions, for any thread; `place` is an absolute path or a `file:` URI."""
    if not place.startswith(("file:", ":")):
        ensure_private(place)
    connection = sqlite3.connect(
        place, uri=place.startswith("file:"), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = _text
    return connection


def _vacuum(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("VACUUM")


def _text(stored: bytes) -> str:
    """A text; damaged bytes are replaced, so that the other rows of a list can be read. Checksums find the row."""
    return stored.decode("utf-8", "replace")


class _FileLock:
    """An advisory lock between the threads of this process and other processes."""

    def __init__(self, path: str, database: str) -> None:
        self._path = path
        self._database = database
        self._descriptor: int | None = None
        self._mutex = threading.Lock()

    def __enter__(self) -> None:
        self._mutex.acquire()
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except OSError as problem:
            self._mutex.release()
            raise StoreUnavailable(
                disk_error(problem, self._path)
                or f"cannot lock {self._path} ({problem.strerror}), so {self._database} cannot be written; "
                "set NOETL_HOME or --store to a writable folder on a local disk"
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._mutex.release()

    def close(self) -> None:
        """Close the lock file, but do not delete it: another process may hold the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    """The values of the placeholders `$1`, `$2`, ... (SQLite reads these as the names 1, 2, ...)."""
    return {str(number): value for number, value in enumerate(values, 1)}


def _size(values: Sequence[Any]) -> int:
    return sum(len(value) for value in values if isinstance(value, str | bytes))


def _deliver(group: list[_PendingWrite], path: str) -> None:
    """Resolve the futures of a group, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_PendingWrite]] = {}
    for waiting in group:
        by_loop.setdefault(waiting.loop, []).append(waiting)
    for loop, completed in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_futures, completed, path)
        except RuntimeError:
            # The event loop is closed and has no callers left; the data is on disk.
            continue


def _resolve_futures(group: list[_PendingWrite], path: str) -> None:
    for waiting in group:
        if waiting.future.done():
            continue
        if waiting.failure is None:
            waiting.future.set_result(waiting.result)
        else:
            failure = waiting.failure
            if isinstance(failure, sqlite3.Error):
                failure = store_error(failure, path)
                failure.__cause__ = waiting.failure
            waiting.future.set_exception(failure)


def store_error(problem: sqlite3.Error, path: str) -> NoetlError:
    """An error of SQLite as a NoetlError that names the remedy."""
    text = str(problem)
    name = getattr(problem, "sqlite_errorname", "") or ""
    if "not a database" in text:
        return StoreUnavailable(f"{path} is not a NoETL database; move the file or choose another --store")
    if "malformed" in text or "decode" in text or name.startswith("SQLITE_CORRUPT"):
        return CorruptLog(
            f"{path} is damaged ({text}); `noetl doctor --repair` rebuilds what is derived, else restore a backup"
        )
    if "full" in text or name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and _is_full(path)):
        return StoreUnavailable(f"{path}: the disk is full; nothing acknowledged is lost, free disk space and retry")
    if "readonly" in text or name.startswith("SQLITE_READONLY"):
        return StoreUnavailable(f"{path} is not writable; check its permissions, or choose another --store")
    if "unable to open" in text:
        folder = os.path.dirname(path)
        return StoreUnavailable(
            f"cannot open {path}; check that {folder} is writable, set NOETL_HOME or choose another --store"
        )
    if "locked" in text or "busy" in text:
        return StoreUnavailable(
            f"{path}: the database has been locked by another process{_lock_holders(path)} for more than "
            f"{BUSY_SECONDS:.0f} s; stop that process or choose another --store"
        )
    if name.startswith("SQLITE_IOERR"):
        return StoreUnavailable(
            f"{path}: {text} ({name}); nothing acknowledged is lost, check the disk and its file system, and retry"
        )
    return StoreUnavailable(f"{path}: {text}")


def _is_full(path: str) -> bool:
    """Whether the files beside a database cannot grow: SQLite reports that as an I/O error of its shared memory."""
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < MIN_FREE_BYTES
    except OSError:
        return False


def _lock_holders(path: str) -> str:
    """The processes with an SQLite lock on the file, as ` (pid 7)`; empty where the system does not list locks."""
    try:
        inodes = {str(os.stat(path + suffix).st_ino) for suffix in ("", "-shm")}
        with open("/proc/locks", encoding="ascii") as file:
            locks = [line.split() for line in file]
    except OSError:
        return ""
    pids = {lock[4] for lock in locks if len(lock) > 5 and lock[3] == "WRITE" and lock[5].rpartition(":")[2] in inodes}
    pids.discard(str(os.getpid()))
    return f" (pid {', '.join(sorted(pids))})" if pids else ""
