"""One SQLite file of this installation: who may write it, when, and what an answer means.

Several back ends (events, playbooks, credentials) keep their tables in one file and share this
object. It keeps four promises:

*Acknowledged means on disk.* WAL with `synchronous=FULL`; `write` answers after COMMIT returned.

*Group commit.* One thread writes. Everything that waits when it becomes free is one transaction
with one flush. A job that refuses does so before it changes anything; when one breaks, the group is
undone and each of its jobs gets a transaction of its own. So a job that fails fails alone.

*Two processes at once are safe.* SQLite before 3.51.3 can damage a WAL when one connection resets it
while another one writes. So every write transaction, every checkpoint, the first opening and
the last closing happen under an advisory lock on a file beside the database, and SQLite's own
automatic checkpoints are off.

*Nothing is guessed.* A file that is not ours, was written by a newer version, cannot be
written, or is damaged is an error that says so and what to do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

from noetl.errors import CorruptLog, NoetlError, StoreUnavailable
from noetl.observability import metrics

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

APPLICATION_ID = 0x4E6F4554  # "NoET", in the file's header
MAX_GROUP = 512  # jobs in one transaction
PAGE = 4096
CHECKPOINT_PAGES = 2_000  # of WAL, when nobody waits
CHECKPOINT_PAGES_AT_ONCE = 16_000  # of WAL, even when somebody waits
TRUNCATE_PAGES = 64_000  # of WAL file: give the space back; below that, the file is written over
PAGES_A_JOB = 3  # that any job touches, beside its own bytes
WAL_HEADER, FRAME_HEADER = 32, 24  # bytes of the WAL file, and before each page in it
LEAST_AHEAD, MOST_AHEAD = 256 * 1024, 1024 * 1024  # bytes of WAL file that are laid out at once
BUSY_SECONDS = 30.0


class _Waiting:
    """A job and the future its caller holds."""

    __slots__ = ("failure", "future", "job", "loop", "result", "size")

    def __init__(self, job: Job[Any], future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.job = job
        self.future = future
        self.loop = loop
        self.size = size
        self.result: Any = None
        self.failure: BaseException | None = None


class SqliteFile:
    """The file, its one writer thread and its readers."""

    def __init__(self, path: str, *, readers: int = 2) -> None:
        self.path = os.path.abspath(path)
        self._jobs: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = _FileLock(self.path + ".lock", self.path)
        self._closed = False
        self._versions: dict[str, int] = {}  # of the tables, as this version of NoETL knows them
        self._wal_pages = 0  # an estimate of what a checkpoint would have to move
        self._local = threading.local()
        self._reader_connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(max_workers=readers, thread_name_prefix="noetl-sqlite-read")
        self._connection = self._open()
        self._wal_file = self._wal_size()  # how long it was when we last looked
        self._wal_pages = self._wal_file // PAGE
        self._writer = threading.Thread(target=self._write_forever, name="noetl-sqlite-write", daemon=True)
        self._writer.start()

    # ── for back ends ───────────────────────────────────────────────────────────────────

    def migrate(self, name: str, scripts: Sequence[str]) -> None:
        """Bring the tables of one back end to the newest of its `scripts` (version n is script n-1).

        Called while joining the parts, before the first `write`."""
        self._versions[name] = len(scripts)
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    found = self._schema_version(name)
                    if found > len(scripts):
                        raise StoreUnavailable(
                            f"{self.path}: its {name} tables have schema {found}, this version of NoETL knows "
                            f"{len(scripts)}; run the newer NoETL that wrote it, or choose another --store"
                        )
                    for script in scripts[found:]:
                        for statement in script.split(";"):
                            if statement.strip():
                                self._connection.execute(statement)
                    if found < len(scripts):
                        self._connection.execute(
                            "INSERT INTO noetl_schema(name, version) VALUES (?, ?) "
                            "ON CONFLICT(name) DO UPDATE SET version = excluded.version",
                            (name, len(scripts)),
                        )
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as problem:
                explain(problem, self.path)

    async def write(self, job: Job[T], size: int = 0) -> T:
        """Run `job` in the next group's transaction; answered after it is on disk.

        A job may be run twice (when the group it was in could not be committed), and must
        change nothing but the database; one that refuses (a NoetlError) does so before it has changed
        anything. `size` is about how many bytes it writes."""
        return await self.submit(job, size)

    def submit(self, job: Job[T], size: int = 0) -> asyncio.Future[T]:
        """Like `write`, but gives the future: the job happens even if nobody waits."""
        if self._closed:
            raise StoreUnavailable(f"{self.path} has been closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Waiting(job, future, loop, size))
        return future

    async def read(self, query: Job[T]) -> T:
        """Run `query` on a read-only connection, in a thread of its own."""
        if self._closed:
            raise StoreUnavailable(f"{self.path} has been closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read_now, query)

    async def check(self) -> None:
        """Write one row and flush it; the error says why nothing can be written, or nothing should be."""
        await self.write(self._probe)

    def _probe(self, db: sqlite3.Connection) -> None:
        found = dict(db.execute("SELECT name, version FROM noetl_schema").fetchall())
        for name, version in self._versions.items():
            if found.get(name, 0) != version:
                raise StoreUnavailable(
                    f"{self.path}: its {name} tables have schema {found.get(name, 0)} now, this process knows "
                    f"{version}; start it again with the NoETL that changed them"
                )
        db.execute(
            "INSERT INTO noetl_schema(name, version) VALUES ('probe', 1) "
            "ON CONFLICT(name) DO UPDATE SET version = version % 1000000 + 1"
        )

    async def close(self) -> None:
        """Write what waits, then let go of the file."""
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
                f"cannot create the folder {folder} ({problem.strerror}); set NOETL_HOME or --store to a place "
                "you can write to"
            ) from None
        if os.path.isdir(self.path):
            raise StoreUnavailable(f"{self.path} is a folder; --store takes the path of a file")
        try:
            with self._lock:
                connection = sqlite3.connect(
                    self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                try:
                    self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except sqlite3.Error as problem:
            explain(problem, self.path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application or tables:
                raise StoreUnavailable(
                    f"{self.path} is an SQLite database of another program; choose another file with --store"
                )
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: this file system does not support SQLite's write-ahead log "
                f"(journal mode stays {mode}); put the store on a local disk"
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

    def _schema_version(self, name: str) -> int:
        row = self._connection.execute("SELECT version FROM noetl_schema WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _close_now(self) -> None:
        self._writer.join()
        self._pool.shutdown(wait=True)
        # The last connection of a database checkpoints when it closes: under the lock, too.
        with self._lock:
            for connection in self._reader_connections:
                connection.close()
            self._connection.close()
        self._lock.close()

    # ── readers ─────────────────────────────────────────────────────────────────────────

    def _read_now(self, query: Job[T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                uri = "file:" + self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23") + "?mode=ro"
                connection = sqlite3.connect(
                    uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._local.connection = connection
                self._reader_connections.append(connection)
            # One snapshot for all statements of a query.
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as problem:
            explain(problem, self.path)

    # ── the writer ──────────────────────────────────────────────────────────────────────

    def _write_forever(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._commit_under_lock(group)
                _deliver(group, self.path)
                if self._wal_size() != self._wal_file:
                    self._lay_out_wal()
            if self._wal_pages > (CHECKPOINT_PAGES if self._jobs.empty() else CHECKPOINT_PAGES_AT_ONCE):
                self._checkpoint()

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        first = self._jobs.get()
        group: list[_Waiting] = []
        while first is not None:
            group.append(first)
            if len(group) >= MAX_GROUP:
                return group, False
            try:
                first = self._jobs.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit_under_lock(self, group: list[_Waiting]) -> None:
        try:
            with self._lock:
                self._commit(group)
        except StoreUnavailable as problem:
            for waiting in group:
                waiting.failure = problem

    def _commit(self, group: list[_Waiting]) -> None:
        self._wal_pages += sum(waiting.size for waiting in group) // PAGE + PAGES_A_JOB * len(group)
        if self._try_together(group) or len(group) == 1:
            return
        # The transaction as a whole was lost (a full disk, say): find out whose fault it was.
        for waiting in group:
            waiting.result, waiting.failure = None, None
            self._try_together([waiting])

    def _try_together(self, group: list[_Waiting]) -> bool:
        connection = self._connection
        began = time.perf_counter()
        try:
            connection.execute("BEGIN IMMEDIATE")
            for waiting in group:
                try:
                    waiting.result = waiting.job(connection)
                except NoetlError as refusal:
                    waiting.failure = refusal
            connection.execute("COMMIT")
            metrics.FLUSH.observe(time.perf_counter() - began)
            metrics.BATCH.observe(len(group))
            return True
        except Exception as problem:  # noqa: BLE001 - handed to the callers
            metrics.STORE_FAILURES.add()
            for waiting in group:
                waiting.result, waiting.failure = None, problem
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error as second:
                    # A transaction that cannot be undone: begin again with a new connection.
                    problem.add_note(f"and the transaction could not be rolled back: {second}")
                    self._reconnect()
            return False

    def _reconnect(self) -> None:
        self._connection.close()
        self._connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._prepare(self._connection)

    def _wal_size(self) -> int:
        try:
            return os.stat(self.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    def _lay_out_wal(self) -> None:
        """Write zeros where the WAL goes on, as much again as there is.

        To flush what was written over a file's own blocks takes a third of the time of flushing a file that has
        grown, since a file that grows is a change of the file system too. SQLite takes zeros for the end of the log,
        as it does the remains of an earlier one. SQLite's own right to write is held meanwhile: somebody may write to
        the file with another program, which does not know of our lock."""
        connection = self._connection
        try:
            with self._lock, open(self.path + "-wal", "r+b", buffering=0) as file:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    self._wal_file = _laid_out(file.fileno())
                finally:
                    connection.execute("ROLLBACK")
        except (OSError, sqlite3.Error, StoreUnavailable):
            return  # the next commit says what is wrong, if it meets it

    def _checkpoint(self) -> None:
        kind = "TRUNCATE" if self._wal_size() > TRUNCATE_PAGES * PAGE else "PASSIVE"
        try:
            with self._lock:
                self._connection.execute(f"PRAGMA wal_checkpoint({kind})").fetchone()
        except (sqlite3.Error, StoreUnavailable):
            # A checkpoint that cannot be done now (a full disk, a slow reader) loses nothing:
            # the WAL has it all, and the next one tries again.
            pass
        self._wal_pages = 0


def _laid_out(wal: int) -> int:
    """The size of a WAL file after zeros were added to it, unless another process had done so."""
    size = os.fstat(wal).st_size
    last = (size - WAL_HEADER) // (FRAME_HEADER + PAGE) - 1
    page = os.pread(wal, 4, WAL_HEADER + last * (FRAME_HEADER + PAGE)) if last >= 0 else b""
    if any(page):
        size += os.pwrite(wal, bytes(min(max(size, LEAST_AHEAD), MOST_AHEAD)), size)
    return size


class _FileLock:
    """An advisory lock between the threads of this process and all other processes."""

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
                f"cannot lock {self._path} ({problem.strerror}), so {self._database} cannot be written; "
                "set NOETL_HOME or --store to a place on a local disk that you can write to"
            ) from None

    def __exit__(self, *_: object) -> None:
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._mutex.release()

    def close(self) -> None:
        """Let go of the lock's file (it stays: another process may hold it)."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _deliver(group: list[_Waiting], path: str) -> None:
    """Answer every caller, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
    for waiting in group:
        by_loop.setdefault(waiting.loop, []).append(waiting)
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer, answered, path)
        except RuntimeError:
            # The loop is gone and with it everybody who waited; the data is on disk.
            continue


def _answer(group: list[_Waiting], path: str) -> None:
    for waiting in group:
        if waiting.future.done():
            continue
        if waiting.failure is None:
            waiting.future.set_result(waiting.result)
        else:
            waiting.future.set_exception(in_our_words(waiting.failure, path))


def in_our_words(problem: BaseException, path: str) -> BaseException:
    """SQLite's errors as ours; others as they are."""
    if isinstance(problem, sqlite3.Error):
        try:
            explain(problem, path)
        except NoetlError as ours:
            return ours
    return problem


def explain(problem: sqlite3.Error, path: str) -> NoReturn:
    """Raise SQLite's error in words that say what to do."""
    text = str(problem)
    name = getattr(problem, "sqlite_errorname", "") or ""
    if "not a database" in text:
        raise StoreUnavailable(f"{path} is not a NoETL database; move it away or choose another --store") from problem
    if "malformed" in text or "decode" in text or name.startswith("SQLITE_CORRUPT"):
        raise CorruptLog(f"{path} is damaged ({text}); restore it from a backup, or move it away") from problem
    if "full" in text or name == "SQLITE_FULL":
        raise StoreUnavailable(f"{path}: the disk is full; nothing was lost, make room and try again") from problem
    if "readonly" in text or name.startswith("SQLITE_READONLY"):
        raise StoreUnavailable(f"{path} is not writable; check its permissions, or choose another --store") from problem
    if "unable to open" in text:
        folder = os.path.dirname(path)
        raise StoreUnavailable(
            f"cannot open {path}; check that {folder} can be written to, set NOETL_HOME or choose another --store"
        ) from problem
    if "locked" in text or "busy" in text:
        raise StoreUnavailable(f"{path} is held by another program for more than {BUSY_SECONDS:.0f} s") from problem
    raise StoreUnavailable(f"{path}: {text}") from problem
