"""Opens the stores of a URL. Each back end is a module of its own and is imported on first use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from noetl.errors import RequestRefused, StoreUnavailable

if TYPE_CHECKING:
    from noetl.storage.cluster.postgres import PostgresCluster
    from noetl.storage.ports.deliveries import DeliveryStore
    from noetl.storage.ports.events import EventStore
    from noetl.storage.ports.load_samples import LoadSampleStore
    from noetl.storage.ports.playbooks import PlaybookStore
    from noetl.storage.ports.queue import RunQueue
    from noetl.storage.ports.quotas import QuotaStore
    from noetl.storage.ports.state import StateStore
    from noetl.storage.ports.task_logs import TaskLogStore
    from noetl.storage.ports.triggers import TriggerStore
    from noetl.storage.postgres.database import PostgresDatabase
    from noetl.storage.postgres.replica import ReplicaReads
    from noetl.storage.sqlite.process_locks import ProcessLocks


POSTGRES = ("postgresql", "postgres")


def open_stores(
    url: str, *, preallocate_wal: bool = False, replica: str | None = None
) -> tuple[EventStore, PlaybookStore]:
    """Open the event store and the catalog of a URL; `preallocate_wal` applies to SQLite, `replica` to Postgres."""
    scheme, _, rest = url.partition(":")
    if replica is not None:
        _require_postgres(url)
    if scheme == "memory":
        from noetl.storage.events.memory import MemoryEventStore
        from noetl.storage.playbooks.memory import MemoryPlaybookStore

        return MemoryEventStore(), MemoryPlaybookStore()
    from noetl.storage.events.event_rows import prepare
    from noetl.storage.playbooks.sql import SqlPlaybookStore

    prepare()  # before the reader threads start: the decoders are shared with them
    if scheme == "sqlite" or not rest.startswith("//"):
        from noetl.storage.events.sqlite import SqliteEventStore
        from noetl.storage.sqlite.database_file import SqliteFile

        file = SqliteFile(sqlite_path(url), preallocate_wal=preallocate_wal)
        return SqliteEventStore(file), SqlPlaybookStore(file)
    if scheme in POSTGRES:
        from noetl.storage.events.postgres import PostgresEventStore
        from noetl.storage.postgres.database import PostgresDatabase

        database = PostgresDatabase(f"postgresql:{rest}")
        reads = None if replica is None else _replica_reads(database, replica)
        return PostgresEventStore(database, reads), SqlPlaybookStore(reads or database)
    raise RequestRefused(
        f"unknown event store {scheme!r}: use postgresql://user:password@host/database, sqlite:///path, "
        "the path of a file, or memory:"
    )


def _require_postgres(url: str) -> None:
    if url.partition(":")[0] not in POSTGRES:
        raise RequestRefused("the setting server.replica needs a store in Postgres (setting store)")


def _replica_reads(database: PostgresDatabase, replica: str) -> ReplicaReads:
    from noetl.storage.postgres.replica import ReplicaReads

    return ReplicaReads(database, replica)


async def replica_behind(url: str, replica: str) -> int:
    """How many bytes of the log of a store its replica has not replayed; StoreUnavailable if it cannot be used."""
    from noetl.storage.postgres.database import PostgresDatabase
    from noetl.storage.postgres.replica import NotUsable

    _require_postgres(url)
    database = PostgresDatabase(url)
    reads = _replica_reads(database, replica)
    try:
        return await reads.behind()
    except NotUsable as problem:
        raise StoreUnavailable(str(problem)) from None
    finally:
        await reads.close()
        await database.close()


def open_triggers(events: EventStore) -> TriggerStore:
    """Open the schedules and webhooks in the same database as an event store."""
    database = getattr(events, "sql", None)
    if database is not None:
        from noetl.storage.triggers.sql import SqlTriggerStore

        return SqlTriggerStore(database)
    from noetl.storage.triggers.memory import MemoryTriggerStore

    return MemoryTriggerStore()


def open_task_logs(events: EventStore) -> TaskLogStore:
    """Open the task logs in the same database as an event store."""
    database = getattr(events, "sql", None)
    if database is not None:
        from noetl.storage.task_logs.sql import SqlTaskLogStore

        return SqlTaskLogStore(database)
    from noetl.storage.task_logs.memory import MemoryTaskLogStore

    return MemoryTaskLogStore()


def open_load_samples(events: EventStore) -> LoadSampleStore:
    """Open the load samples in the same database as an event store."""
    database = getattr(events, "sql", None)
    if database is not None:
        from noetl.storage.load_samples.sql import SqlLoadSampleStore

        return SqlLoadSampleStore(database)
    from noetl.storage.load_samples.memory import MemoryLoadSampleStore

    return MemoryLoadSampleStore()


def open_deliveries(events: EventStore) -> DeliveryStore:
    """Open the deliveries of triggers in the same database as an event store."""
    database = getattr(events, "sql", None)
    if database is not None:
        from noetl.storage.triggers.delivery_sql import SqlDeliveryStore

        return SqlDeliveryStore(database)
    from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore

    return MemoryDeliveryStore()


def open_quotas(events: EventStore) -> QuotaStore:
    """Open the token buckets of quotas in the same database as an event store."""
    database = getattr(events, "sql", None)
    if database is None:
        from noetl.storage.quotas.memory import MemoryQuotaStore

        return MemoryQuotaStore()
    from noetl.storage.quotas.sql import PostgresQuotaStore, SqliteQuotaStore

    return SqliteQuotaStore(database) if database.dialect == "sqlite" else PostgresQuotaStore(database)


def open_state(events: EventStore) -> StateStore:
    """Open the state of playbooks, which is stored with the event log."""
    database = getattr(events, "sql", None)
    if database is None:
        from noetl.storage.events.memory import MemoryEventStore

        assert isinstance(events, MemoryEventStore)
        return events.state
    from noetl.storage.state.sql import PostgresStateStore, SqliteStateStore

    return SqliteStateStore(database) if database.dialect == "sqlite" else PostgresStateStore(database)


class ServerStores(NamedTuple):
    """The stores of a server; `cluster` is set where several servers can share them."""

    events: EventStore
    playbooks: PlaybookStore
    queue: RunQueue
    cluster: PostgresCluster | None = None


def open_server_stores(
    url: str, name: str = "", *, preallocate_wal: bool = False, replica: str | None = None
) -> ServerStores:
    """Open the stores of a server and the run queue that belongs to them."""
    events, playbooks = open_stores(url, preallocate_wal=preallocate_wal, replica=replica)
    database = getattr(events, "database", None)
    if database is None:
        from noetl.storage.queue.memory import MemoryRunQueue

        return ServerStores(events, playbooks, MemoryRunQueue())
    from noetl.storage.cluster.postgres import PostgresCluster
    from noetl.storage.queue.postgres import PostgresRunQueue

    return ServerStores(events, playbooks, PostgresRunQueue(database), PostgresCluster(database, name))


def open_process_locks(url: str) -> ProcessLocks | None:
    """The process locks of a store that several processes of this machine can open; None for other stores."""
    if url.startswith("memory:") or ("://" in url and not url.startswith("sqlite:")):
        return None
    from noetl.storage.sqlite.process_locks import ProcessLocks

    return ProcessLocks(sqlite_path(url) + ".owners")


def sqlite_path(url: str) -> str:
    """The file of `sqlite:///absolute`, `sqlite://relative`, or a plain path."""
    path = url.removeprefix("sqlite:").removeprefix("//") if url.startswith("sqlite:") else url
    if not path:
        raise RequestRefused("a sqlite: URL needs the path of a file, for example sqlite:///var/lib/noetl/noetl.db")
    # `sqlite:////absolute` is a common spelling; SQLite reads two leading slashes as a host.
    return os.path.expanduser("/" + path.lstrip("/") if path.startswith("//") else path)
