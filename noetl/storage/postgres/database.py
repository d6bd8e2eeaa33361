"""One Postgres database that keeps an installation's truth: connections, migrations, wake-ups.

Connections are opened when they are first needed and again after the server went away. NOTIFY
only wakes: whoever listens also looks by itself now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import asyncpg

from noetl.errors import StoreUnavailable
from noetl.storage.ports.cluster import WakeBus

log = logging.getLogger("noetl.store")

POOL_SIZE = 8
CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0
PAUSES = (0.05, 0.2, 0.5, 1.0)
WAKE = "wake"  # the kind of words that wake other servers over NATS
MOST_BYTES = 7_000  # Postgres refuses a notice of 8000

# A connection that is cut between two messages can leave the client in a state it does not know (InternalClientError).
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresError,
)

_MIGRATIONS = "CREATE TABLE IF NOT EXISTS noetl_migrations(part text PRIMARY KEY, version integer NOT NULL)"
_LOCK = 0x6E6F65746C  # "noetl": one process migrates at a time


def unavailable(problem: BaseException) -> StoreUnavailable:
    """What went wrong, as the store's own exception."""
    if isinstance(problem, asyncpg.InvalidAuthorizationSpecificationError):
        kind = "auth"
    elif isinstance(problem, asyncpg.DiskFullError):
        kind = "storage.quota"
    elif isinstance(problem, asyncpg.InsufficientPrivilegeError):
        kind = "storage.access"
    else:
        kind = "connection"
    silent = "it did not answer in time" if isinstance(problem, TimeoutError) else type(problem).__name__
    return StoreUnavailable(f"Postgres: {str(problem) or silent}", kind=kind)


class PostgresDatabase:
    """The database behind an installation's stores; they share it, and the event store closes it."""

    def __init__(self, url: str, *, size: int = POOL_SIZE) -> None:
        self._url = url
        self._size = size
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._schemas: dict[str, Sequence[str]] = {}
        self._migrated = False
        self._heard: dict[str, list[Callable[[str], None]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._told: dict[str, dict[str, None]] = {}
        self._teller: asyncio.Task[None] | None = None
        self._bus: WakeBus | None = None
        self.closed = False
        self.alone = False  # no other process is there to be woken, as far as is known

    def wake_over(self, bus: WakeBus) -> None:
        """Carry wake-ups over NATS while it is there: a notice costs the database a commit, a word there does not."""
        self._bus = bus
        for channel in self._heard:
            self._hear_over(bus, channel)

    def migrate(self, part: str, schema: Sequence[str]) -> None:
        """Steps that lead to this part's tables, oldest first; taken before the next use of the database."""
        self._schemas[part] = schema
        self._migrated = False

    # ── asking ──────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection of the pool; what goes wrong with it is a StoreUnavailable."""
        try:
            pool = await self._open()
            async with pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection
        except AWAY as problem:
            self._raise(problem)

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        """All rows."""
        async with self.connection() as connection:
            rows: list[Any] = await connection.fetch(query, *values)
            return rows

    async def row(self, query: str, *values: Any) -> Any:
        """The first row, if any."""
        async with self.connection() as connection:
            return await connection.fetchrow(query, *values)

    async def execute(self, query: str, *values: Any) -> None:
        """Run it."""
        async with self.connection() as connection:
            await connection.execute(query, *values)

    async def connect(self, settings: Mapping[str, str] | None = None) -> Any:
        """A connection of the caller's own, which it closes; with settings of its session."""
        try:
            await self._open()
            return await self._connect(settings)
        except AWAY as problem:
            self._raise(problem)

    async def check(self) -> None:
        """Write one row and flush it; the error says why nothing can be written, or nothing should be."""
        rows = await self.fetch("SELECT part, version FROM noetl_migrations")
        found = {row[0]: row[1] for row in rows}
        for part, schema in self._schemas.items():
            if found.get(part, 0) != len(schema):
                raise StoreUnavailable(
                    f"the database's {part} tables have schema {found.get(part, 0)} now, this process knows "
                    f"{len(schema)}; start it again with the NoETL that changed them",
                    kind="storage.access",
                )
        await self.execute(
            "INSERT INTO noetl_migrations AS m (part, version) VALUES ('probe', 1) "
            "ON CONFLICT (part) DO UPDATE SET version = m.version % 1000000 + 1"
        )

    # ── wake-ups ────────────────────────────────────────────────────────────────────────

    def listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Call `heard(word)` for every word told on the channel; with an empty word after a gap."""
        if channel not in self._heard and self._bus is not None:
            self._hear_over(self._bus, channel)
        self._heard.setdefault(channel, []).append(heard)
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    def tell(self, channel: str, word: str) -> None:
        """Wake who listens, in any process; not waited for, and lost when nobody is there.

        Nothing is said while this process is alone: who comes looks by itself before it is known."""
        if self.alone:
            return
        self._told.setdefault(channel, {})[word] = None
        if self._teller is None and not self.closed:
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Let go of every connection."""
        self.closed = True
        for task in (self._listener, self._teller):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._listener = self._teller = None
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), 5)
            except (*AWAY, asyncio.CancelledError):
                pool.terminate()

    async def _open(self) -> Any:
        if self.closed:
            raise StoreUnavailable("the store is closed")
        if self._pool is None or not self._migrated:
            async with self._opening:
                while not self._migrated:
                    known = dict(self._schemas)
                    await self._migrate(known)
                    self._migrated = known == self._schemas  # a part may have come meanwhile
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        min_size=0, max_size=self._size, connect=self._connect_pooled, reset=_leave_as_it_is
                    )
        return self._pool

    async def _connect_pooled(self, *_: Any, **others: Any) -> Any:
        return await self._connect(**{name: others[name] for name in ("loop", "connection_class", "record_class")})

    async def _connect(self, settings: Mapping[str, str] | None = None, **others: Any) -> Any:
        return await asyncpg.connect(
            self._url,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={"synchronous_commit": "on", "application_name": "noetl", **(settings or {})},
            **others,
        )

    async def _migrate(self, schemas: Mapping[str, Sequence[str]]) -> None:
        connection = await self._connect()
        try:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                await connection.execute(_MIGRATIONS)
                for part, schema in schemas.items():
                    done = await connection.fetchval("SELECT version FROM noetl_migrations WHERE part = $1", part) or 0
                    if done > len(schema):
                        raise StoreUnavailable(
                            f"the database was written by a newer NoETL ({part} {done}); use that version",
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
            await _close_quietly(connection)

    def _raise(self, problem: BaseException) -> NoReturn:
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
                heard: set[str] = set()
                while not lost.is_set():
                    for channel in self._heard.keys() - heard:
                        await connection.add_listener(channel, self._hear)
                        heard.add(channel)
                        self._hear(None, 0, channel, "")
                    number = 0
                    with suppress(TimeoutError):
                        await asyncio.wait_for(lost.wait(), 0.5)
            except (*AWAY, StoreUnavailable) as problem:
                log.debug("listening waits for Postgres: %s", problem)
            finally:
                if connection is not None:
                    await _close_quietly(connection)
            await asyncio.sleep(PAUSES[min(number, len(PAUSES) - 1)])
            number += 1

    def _hear_over(self, bus: WakeBus, channel: str) -> None:
        bus.listen(WAKE, lambda told, said: self._hear(None, 0, told, said.decode()), to=channel)

    def _hear(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        for heard in self._heard.get(channel, ()):
            for word in payload.split("\n"):
                heard(word)

    async def _tell(self) -> None:
        try:
            while self._told:
                channel, words = self._told.popitem()
                for payload in _payloads(words):
                    if self._bus is not None and self._bus.tell(WAKE, channel, payload.encode()):
                        continue
                    try:
                        await self.execute("SELECT pg_notify($1, $2)", channel, payload)
                    except StoreUnavailable as problem:
                        log.debug("nobody was woken: %s", problem)
        finally:
            self._teller = None


def _payloads(words: dict[str, None]) -> list[str]:
    payloads: list[list[str]] = [[]]
    size = 0
    for word in words:
        size += len(word.encode()) + 1
        if size > MOST_BYTES:
            payloads.append([])
            size = len(word.encode()) + 1
        payloads[-1].append(word)
    return ["\n".join(each) for each in payloads if each]


async def _leave_as_it_is(_connection: Any) -> None:
    """Nothing of a session outlives its use here (transactions end with their block): no need to ask for a reset."""


async def _close_quietly(connection: Any) -> None:
    """Close without waiting for a server that may be gone."""
    if not connection.is_closed():
        try:
            await asyncio.wait_for(connection.close(), 2)
        except (*AWAY, asyncio.CancelledError):
            connection.terminate()
