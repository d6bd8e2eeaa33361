"""The Postgres database of an installation: connections, migrations, notifications.

Connections are opened at first use and again after a failure. Notifications are wake-ups only:
every subscriber also polls, so a lost notification costs one poll interval.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from noetl.errors import CorruptLog, NoetlError, RequestRefused, StoreUnavailable
from noetl.storage.ports.cluster import WakeBus
from noetl.storage.ports.sql import Dialect
from noetl.storage.postgres.connection_pool import BROKEN, ConnectionPool, close_quietly

log = logging.getLogger("noetl.store")

POOL_SIZE = 8
CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0
RECOVERY_SECONDS = 30.0
RECONNECT_DELAYS = (0.05, 0.2, 0.5, 1.0)
WAKE = "wake"  # the kind of the messages that wake other servers over NATS
MAX_PAYLOAD = 7_000  # Postgres rejects a notification of 8000 bytes

FAILURES = (*BROKEN, asyncpg.PostgresError, UnicodeDecodeError)
# A page that cannot be read or has impossible content, and a file that does not exist.
DAMAGED = (asyncpg.InternalServerError, asyncpg.UndefinedFileError, UnicodeDecodeError)
# Internal errors of a statement during which a table was changed or dropped: it succeeds when it is repeated.
_CHANGED = re.compile(r"could not open relation with OID|cache lookup failed|tuple concurrently (updated|deleted)")

_MIGRATIONS = "CREATE TABLE IF NOT EXISTS noetl_migrations(part text PRIMARY KEY, version integer NOT NULL)"
_LOCK = 0x6E6F65746C  # "noetl": one process migrates at a time


def unavailable(problem: BaseException) -> NoetlError:
    """An error of Postgres as StoreUnavailable; RequestRefused for text that Postgres cannot store, CorruptLog for data
    that it cannot read."""
    if isinstance(problem, DAMAGED) and not _CHANGED.match(str(problem)):
        return CorruptLog(f"Postgres: {' '.join(str(problem).split())}; `noetl doctor --verify` says what is damaged")
    if isinstance(problem, asyncpg.CharacterNotInRepertoireError | asyncpg.UntranslatableCharacterError):
        return RequestRefused("a text has a null character or is not UTF-8")
    if isinstance(problem, asyncpg.InvalidAuthorizationSpecificationError):
        kind = "auth"
    elif isinstance(problem, asyncpg.DiskFullError):
        kind = "storage.quota"
    elif isinstance(problem, asyncpg.InsufficientPrivilegeError):
        kind = "storage.access"
    else:
        kind = "connection"
    if isinstance(problem, ConnectionRefusedError):  # its text has the number of the error and a tuple
        return StoreUnavailable("Postgres: connection refused; check that it is running at this address", kind=kind)
    default = "no response in time" if isinstance(problem, TimeoutError) else type(problem).__name__
    return StoreUnavailable(f"Postgres: {str(problem) or default}", kind=kind)


def pooled_url(url: str) -> tuple[str, bool]:
    """The URL without `pooler=transaction`, and whether it had it: connections go through a pooler such as PgBouncer
    that gives a connection to another client after each transaction."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    modes = [value for name, value in query if name == "pooler"]
    if any(mode != "transaction" for mode in modes):
        raise RequestRefused(f"unknown pooler {modes[-1]!r} in the URL of the store: it can only be `transaction`")
    rest = urlencode([(name, value) for name, value in query if name != "pooler"])
    return urlunsplit(parts._replace(query=rest)) if modes else url, bool(modes)


class PooledConnection:
    """The block that uses a connection of the pool (a class, because a generator takes longer than a small query)."""

    __slots__ = ("_connection", "_database", "_pool")
    _pool: ConnectionPool

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def __aenter__(self) -> Any:
        try:
            self._pool, self._connection = await self._database.acquire()
        except FAILURES as problem:
            self._database.raise_error(problem)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.release(self._connection, problem)
        if isinstance(problem, FAILURES):
            self._database.raise_error(problem)


class PostgresDatabase:
    """`ports.SqlDatabase` that the stores of an installation share; the event store closes it.

    Behind a pooler in transaction mode a connection has no state: statements are sent in explicit transactions and are
    not prepared, settings of the session are not made, and there are no notifications except over NATS."""

    dialect: Dialect = "postgres"
    prefix = "noetl_"
    like = "ILIKE"

    def __init__(self, url: str, *, size: int = POOL_SIZE) -> None:
        self._url, self.pooled = pooled_url(url)
        self._size = size
        self._pool: ConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._schemas: dict[str, Sequence[str]] = {}
        self._migrated = False
        self._subscribers: dict[str, list[Callable[[str], None]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._outgoing: dict[str, dict[str, None]] = {}  # channel -> distinct messages
        self._publisher: asyncio.Task[None] | None = None
        self._bus: WakeBus | None = None
        self.closed = False
        self.alone = False  # no other server is known, so there is nothing to notify
        self.patient = False  # new connections have no time limit for a statement: whole tables are read

    def notify_over(self, bus: WakeBus) -> None:
        """Send notifications over NATS while it is connected, which saves a commit in the database for each."""
        self._bus = bus
        for channel in self._subscribers:
            self._subscribe_over(bus, channel)

    def migrate(self, part: str, schema: Sequence[str]) -> None:
        """Register the migrations of one part, oldest first; they run before the next use of the database."""
        self._schemas[part] = schema
        self._migrated = False

    # ── queries ──────────────────────────────────────────────────────────────────────────

    def connection(self) -> PooledConnection:
        """A connection of the pool for the duration of a block; errors are raised as in `unavailable`."""
        return PooledConnection(self)

    async def acquire(self) -> tuple[ConnectionPool, Any]:
        """A connection, and the pool to which it is returned."""
        pool = self._pool
        if pool is None or not self._migrated or self.closed:
            pool = await self._open()
        return pool, await pool.acquire(CONNECT_SECONDS)

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        """All rows."""
        async with self.connection() as connection, self.statement(connection):
            rows: list[Any] = await connection.fetch(query, *values)
            return rows

    async def row(self, query: str, *values: Any) -> Any:
        """The first row; None if there is none."""
        async with self.connection() as connection, self.statement(connection):
            return await connection.fetchrow(query, *values)

    async def execute(self, statement: str, *values: Any) -> int:
        """Execute a statement; return the number of changed rows."""
        async with self.connection() as connection, self.statement(connection):
            tag: str = await connection.execute(statement, *values)
            return int(tag.rpartition(" ")[2])

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each of several rows of values, in one transaction."""
        async with self.connection() as connection, self.statement(connection):
            await connection.executemany(statement, rows)

    def statement(self, connection: Any) -> AbstractAsyncContextManager[Any]:
        """The context of one statement outside of a transaction: behind a pooler, a transaction of its own."""
        context: AbstractAsyncContextManager[Any] = connection.transaction() if self.pooled else nullcontext()
        return context

    async def connect(self, settings: Mapping[str, str] | None = None) -> Any:
        """A connection outside of the pool, which the caller closes; `settings` apply to its session."""
        try:
            await self._open()
            return await self._connect(settings)
        except FAILURES as problem:
            self.raise_error(problem)

    async def check(self) -> None:
        """Write and flush one row; raise the reason if the database cannot or must not be written."""
        rows = await self.fetch("SELECT part, version FROM noetl_migrations")
        found = {row[0]: row[1] for row in rows}
        for part, schema in self._schemas.items():
            if found.get(part, 0) != len(schema):
                raise StoreUnavailable(
                    f"the {part} tables of the database were migrated to schema version {found.get(part, 0)}, but this "
                    f"process supports {len(schema)}; restart it with the NoETL version that migrated them",
                    kind="storage.access",
                )
        await self.execute(
            "INSERT INTO noetl_migrations AS m (part, version) VALUES ('probe', 1) "
            "ON CONFLICT (part) DO UPDATE SET version = m.version % 1000000 + 1"
        )

    async def recovered(self) -> None:
        """Wait until the server responds: a damaged page can end its process, and it restarts."""
        deadline = asyncio.get_running_loop().time() + RECOVERY_SECONDS
        while True:
            try:
                await self.row("SELECT 1")
                return
            except StoreUnavailable:
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(RECONNECT_DELAYS[-1])

    # ── notifications ────────────────────────────────────────────────────────────────────────

    def subscribe(self, channel: str, on_message: Callable[[str], None]) -> None:
        """Call `on_message` for every message on the channel, and with an empty message after a reconnect."""
        if channel not in self._subscribers and self._bus is not None:
            self._subscribe_over(self._bus, channel)
        self._subscribers.setdefault(channel, []).append(on_message)
        if self._listener is None and not self.pooled:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    def publish(self, channel: str, message: str, *, always: bool = False) -> None:
        """Send a message to all subscribers in the background; nothing is stored for later subscribers.

        While this process is alone nothing is sent unless `always`: a server that joined since the last heartbeat of
        this one may be unknown here, and polls."""
        if (self.alone and not always) or (self.pooled and self._bus is None):
            return
        self._outgoing.setdefault(channel, {})[message] = None
        if self._publisher is None and not self.closed:
            self._publisher = asyncio.get_running_loop().create_task(self._publish())

    # ── opening and closing ────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Close every connection."""
        self.closed = True
        for task in (self._listener, self._publisher):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._listener = self._publisher = None
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except (*FAILURES, asyncio.CancelledError):
                pool.terminate()

    async def _open(self) -> ConnectionPool:
        if self.closed:
            raise StoreUnavailable("the store is closed")
        if self._pool is None or not self._migrated:
            async with self._opening:
                while not self._migrated:
                    known = dict(self._schemas)
                    await self._migrate(known)
                    self._migrated = known == self._schemas  # a part may have been registered meanwhile
                if self._pool is None:
                    self._pool = ConnectionPool(self._connect, self._size)
        return self._pool

    async def _connect(self, settings: Mapping[str, str] | None = None) -> Any:
        others: dict[str, Any] = {"statement_cache_size": 0} if self.pooled else {}
        settings = {} if self.pooled else {"synchronous_commit": "on", **(settings or {})}
        if self.patient and not self.pooled:
            settings["statement_timeout"] = "0"
        return await asyncpg.connect(
            self._url,
            timeout=CONNECT_SECONDS,
            command_timeout=None if self.patient else COMMAND_SECONDS,
            server_settings={"application_name": "noetl", **settings},
            **others,
        )

    async def _migrate(self, schemas: Mapping[str, Sequence[str]]) -> None:
        connection = await self._connect()
        try:
            async with connection.transaction():
                if self.pooled and await connection.fetchval("SHOW synchronous_commit") in ("off", "local"):
                    raise StoreUnavailable(
                        "the pooler's connections do not flush commits; ALTER ROLE ... SET synchronous_commit = on",
                        kind="storage.access",
                    )
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                await connection.execute(_MIGRATIONS)
                for part, schema in schemas.items():
                    done = await connection.fetchval("SELECT version FROM noetl_migrations WHERE part = $1", part) or 0
                    if done > len(schema):
                        raise StoreUnavailable(
                            f"the {part} tables of the database have schema version {done}, but this NoETL supports "
                            f"{len(schema)}; use the newer NoETL that wrote them",
                            kind="storage.access",
                        )
                    for step in schema[done:]:
                        await connection.execute(step)
                    if done < len(schema):
                        await connection.execute(
                            "INSERT INTO noetl_migrations(part, version) VALUES ($1, $2) "
                            "ON CONFLICT (part) DO UPDATE SET version = excluded.version",
                            part,
                            len(schema),
                        )
        finally:
            await close_quietly(connection)

    def raise_error(self, problem: BaseException) -> NoReturn:
        """Raise an error of Postgres as one of this package."""
        if self.closed:
            raise StoreUnavailable("the store is closed") from None
        raise unavailable(problem) from None

    async def _listen(self) -> None:
        number = 0
        while True:
            connection = None
            try:
                connection = await self.connect()
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                active: set[str] = set()
                while not lost.is_set():
                    for channel in self._subscribers.keys() - active:
                        await connection.add_listener(channel, self._on_notification)
                        active.add(channel)
                        self._on_notification(None, 0, channel, "")
                    number = 0
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.5):  # not wait_for, which may swallow the cancellation by `close`
                            await lost.wait()
            except (*FAILURES, NoetlError) as problem:
                log.debug("no connection for notifications: %s", problem)
            finally:
                if connection is not None:
                    await close_quietly(connection)
            await asyncio.sleep(RECONNECT_DELAYS[min(number, len(RECONNECT_DELAYS) - 1)])
            number += 1

    def _subscribe_over(self, bus: WakeBus, channel: str) -> None:
        bus.subscribe(WAKE, lambda to, payload: self._on_notification(None, 0, to, payload.decode()), to=channel)

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        for on_message in self._subscribers.get(channel, ()):
            for message in payload.split("\n"):
                on_message(message)

    async def _publish(self) -> None:
        try:
            while self._outgoing:
                channel, messages = self._outgoing.popitem()
                for payload in _payloads(messages):
                    if self._bus is not None and self._bus.publish(WAKE, channel, payload.encode()):
                        continue
                    try:
                        await self.execute("SELECT pg_notify($1, $2)", channel, payload)
                    except NoetlError as problem:
                        log.debug("a notification was not sent: %s", problem)
        finally:
            self._publisher = None


def _payloads(messages: dict[str, None]) -> list[str]:
    payloads: list[list[str]] = [[]]
    size = 0
    for message in messages:
        size += len(message.encode()) + 1
        if size > MAX_PAYLOAD:
            payloads.append([])
            size = len(message.encode()) + 1
        payloads[-1].append(message)
    return ["\n".join(each) for each in payloads if each]
