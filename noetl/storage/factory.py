"""What keeps data: one file per back end, opened here by the URL that names it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.storage.cluster.postgres import PostgresCluster
    from noetl.storage.ports.events import EventStore
    from noetl.storage.ports.playbooks import PlaybookStore
    from noetl.storage.ports.queue import RunQueue
    from noetl.storage.ports.triggers import TriggerStore
    from noetl.storage.sqlite.process_locks import ProcessLocks


POSTGRES = ("postgresql", "postgres")


def open_stores(url: str) -> tuple[EventStore, PlaybookStore]:
    """The event store and the catalog that a URL names."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        from noetl.storage.events.memory import MemoryEventStore
        from noetl.storage.playbooks.memory import MemoryPlaybookStore

        return MemoryEventStore(), MemoryPlaybookStore()
    from noetl.storage.events.event_rows import prepare

    prepare()  # before any thread of a store reads: this one decodes too
    if scheme == "sqlite" or not rest.startswith("//"):
        from noetl.storage.events.sqlite import SqliteEventStore
        from noetl.storage.playbooks.sqlite import SqlitePlaybookStore
        from noetl.storage.sqlite.database_file import SqliteFile

        file = SqliteFile(sqlite_path(url))
        return SqliteEventStore(file), SqlitePlaybookStore(file)
    if scheme in POSTGRES:
        try:
            from noetl.storage.postgres.database import PostgresDatabase
        except ImportError:
            raise RequestRefused("a store on Postgres needs its driver: pip install 'noetl[postgres]'") from None
        from noetl.storage.events.postgres import PostgresEventStore
        from noetl.storage.playbooks.postgres import PostgresPlaybookStore

        database = PostgresDatabase(f"postgresql:{rest}")
        return PostgresEventStore(database), PostgresPlaybookStore(database)
    raise RequestRefused(
        f"no event store is called {scheme!r}: use postgresql://user:password@host/database, sqlite:///path, "
        "the path of a file, or memory:"
    )


def open_triggers(events: EventStore) -> TriggerStore:
    """The schedules and webhooks that lie beside an event store."""
    database, file = getattr(events, "database", None), getattr(events, "file", None)
    if database is not None:
        from noetl.storage.triggers.postgres import PostgresTriggerStore

        return PostgresTriggerStore(database)
    if file is not None:
        from noetl.storage.triggers.sqlite import SqliteTriggerStore

        return SqliteTriggerStore(file)
    from noetl.storage.triggers.memory import MemoryTriggerStore

    return MemoryTriggerStore()


class ServerStores(NamedTuple):
    """What a server works on; `cluster` where several servers can share it."""

    events: EventStore
    playbooks: PlaybookStore
    queue: RunQueue
    cluster: PostgresCluster | None = None


def open_server_stores(url: str, name: str = "") -> ServerStores:
    """The stores of a server, and the queue that fits them."""
    events, playbooks = open_stores(url)
    database = getattr(events, "database", None)
    if database is None:
        from noetl.storage.queue.memory import MemoryRunQueue

        return ServerStores(events, playbooks, MemoryRunQueue())
    from noetl.storage.cluster.postgres import PostgresCluster
    from noetl.storage.queue.postgres import PostgresRunQueue

    return ServerStores(events, playbooks, PostgresRunQueue(database), PostgresCluster(database, name))


def open_process_locks(url: str) -> ProcessLocks | None:
    """Who works on a store that several processes of this machine can open; None for other stores."""
    if url.startswith("memory:") or ("://" in url and not url.startswith("sqlite:")):
        return None
    from noetl.storage.sqlite.process_locks import ProcessLocks

    return ProcessLocks(sqlite_path(url) + ".owners")


def sqlite_path(url: str) -> str:
    """The file of `sqlite:///absolute`, `sqlite://relative`, or a plain path."""
    path = url.removeprefix("sqlite:").removeprefix("//") if url.startswith("sqlite:") else url
    if not path:
        raise RequestRefused("sqlite: needs the path of a file, for example sqlite:///var/lib/noetl/noetl.db")
    # `sqlite:////absolute` is how some write it; two slashes in front would be a host to SQLite.
    return os.path.expanduser("/" + path.lstrip("/") if path.startswith("//") else path)
