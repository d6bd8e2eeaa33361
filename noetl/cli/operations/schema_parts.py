"""The parts of a database with their migrations: what this version of NoETL supports.

A part is what one store registers with `database.migrate(PART, SCRIPTS)`; version n of a part is its first n scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from noetl.storage.ports.sql import Dialect

Parts = dict[str, Sequence[str]]


class _Recorder:
    """Takes the place of a database and keeps the migrations that stores register."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.prefix = "noetl_" if dialect == "postgres" else ""
        self.like = ""
        self.parts: Parts = {}

    def migrate(self, part: str, scripts: Sequence[str]) -> None:
        """Keep the migrations of a part."""
        self.parts[part] = scripts


def schema_parts(dialect: Dialect) -> Parts:
    """The migrations of every part in a database of this dialect."""
    recorder: Any = _Recorder(dialect)
    for create in (*_COMMON, *(_POSTGRES if dialect == "postgres" else _SQLITE)):
        create(recorder)
    parts: Parts = recorder.parts
    return parts


def _events_sqlite(database: Any) -> None:
    from noetl.storage.events.sqlite import SqliteEventStore

    SqliteEventStore(database)


def _events_postgres(database: Any) -> None:
    from noetl.storage.events.postgres import SCHEMA

    database.migrate("events", SCHEMA)


def _queue(database: Any) -> None:
    from noetl.storage.queue.postgres_queries import SCHEMA

    database.migrate("queue", SCHEMA)


def _cluster(database: Any) -> None:
    from noetl.storage.cluster.postgres import SCHEMA

    database.migrate("cluster", SCHEMA)


def _playbooks(database: Any) -> None:
    from noetl.storage.playbooks.sql import SqlPlaybookStore

    SqlPlaybookStore(database)


def _triggers(database: Any) -> None:
    from noetl.storage.triggers.delivery_sql import SqlDeliveryStore
    from noetl.storage.triggers.sql import SqlTriggerStore

    SqlTriggerStore(database)
    SqlDeliveryStore(database)


def _task_logs(database: Any) -> None:
    from noetl.storage.task_logs.sql import SqlTaskLogStore

    SqlTaskLogStore(database)


def _load_samples(database: Any) -> None:
    from noetl.storage.load_samples.sql import SqlLoadSampleStore

    SqlLoadSampleStore(database)


def _quotas(database: Any) -> None:
    from noetl.storage.quotas.sql import SqlQuotaStore

    SqlQuotaStore(database)


def _credentials(database: Any) -> None:
    from noetl.secrets.credentials.store import SCHEMAS

    database.migrate("credentials", SCHEMAS[database.dialect])


_COMMON: tuple[Callable[[Any], None], ...] = (_playbooks, _triggers, _task_logs, _load_samples, _quotas)
_POSTGRES: tuple[Callable[[Any], None], ...] = (_events_postgres, _queue, _cluster, _credentials)
_SQLITE: tuple[Callable[[Any], None], ...] = (_events_sqlite,)
