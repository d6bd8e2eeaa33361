"""Deliveries in SQLite or Postgres, in the database of the triggers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from noetl.storage.document_checksums import CHECKED_TABLES, is_intact, with_checksum, without_checksum
from noetl.storage.ports.deliveries import Delivery, DeliveryFilter
from noetl.storage.ports.sql import Schemas, SqlDatabase

FIELDS = Delivery.__struct_fields__
COLUMNS = ", ".join(FIELDS)
_CHECKED = CHECKED_TABLES["deliveries"].key + CHECKED_TABLES["deliveries"].others
SCHEMAS: Schemas = {
    "sqlite": (
        """
        CREATE TABLE deliveries(
          id TEXT PRIMARY KEY,
          kind TEXT NOT NULL,
          name TEXT NOT NULL,
          key TEXT NOT NULL UNIQUE,
          received_at REAL NOT NULL,
          data BLOB NOT NULL,
          status TEXT NOT NULL,
          due REAL,
          holds INTEGER NOT NULL,
          execution_id TEXT
        ) WITHOUT ROWID;
        CREATE INDEX deliveries_of ON deliveries(kind, name, id);
        CREATE INDEX deliveries_due ON deliveries(kind, name, due, id) WHERE status = 'pending';
        CREATE INDEX deliveries_holding ON deliveries(kind, name, id) WHERE holds
        """,
        "CREATE INDEX deliveries_status ON deliveries(kind, name, status, id)",
    ),
    "postgres": (
        """
        CREATE TABLE noetl_deliveries(
          id text COLLATE "C" PRIMARY KEY,
          kind text NOT NULL,
          name text COLLATE "C" NOT NULL,
          key text NOT NULL UNIQUE,
          received_at float8 NOT NULL,
          data bytea NOT NULL,
          status text NOT NULL,
          due float8,
          holds bool NOT NULL,
          execution_id text
        );
        CREATE INDEX noetl_deliveries_of ON noetl_deliveries(kind, name, id);
        CREATE INDEX noetl_deliveries_due ON noetl_deliveries(kind, name, due, id) WHERE status = 'pending';
        CREATE INDEX noetl_deliveries_holding ON noetl_deliveries(kind, name, id) WHERE holds
        """,
        "CREATE INDEX noetl_deliveries_status ON noetl_deliveries(kind, name, status, id)",
    ),
}


log = logging.getLogger("noetl.storage")


class SqlDeliveryStore:
    """`ports.DeliveryStore` in a database that other stores share."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        self._table = f"{database.prefix}deliveries"
        database.migrate("deliveries", SCHEMAS[database.dialect])

    async def add(self, delivery: Delivery) -> bool:
        """Record a delivery; False if its key is known."""
        added = await self._database.execute(
            f"INSERT INTO {self._table}({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
            "ON CONFLICT DO NOTHING",
            *msgspec.structs.astuple(msgspec.structs.replace(delivery, data=_document(delivery))),
        )
        return added > 0

    async def save(self, delivery: Delivery, was: str = "pending") -> bool:
        """Replace a delivery; False if its status is not `was`."""
        changed = await self._database.execute(
            f"UPDATE {self._table} SET data = $1, status = $2, due = $3, holds = $4, execution_id = $5 "
            "WHERE id = $6 AND status = $7",
            _document(delivery),
            delivery.status,
            delivery.due,
            delivery.holds,
            delivery.execution_id,
            delivery.id,
            was,
        )
        return changed > 0

    async def get(self, id: str) -> Delivery | None:
        """The delivery of an id."""
        found = await self._select("id = $1", id)
        return found[0] if found else None

    async def by_key(self, key: str) -> Delivery | None:
        """The delivery of a key."""
        found = await self._select("key = $1", key)
        return found[0] if found else None

    async def owners(self, now: float) -> list[tuple[str, str]]:
        """The triggers and rules (kind, name) with a pending delivery that is due."""
        query = f"SELECT DISTINCT kind, name FROM {self._table} WHERE status = 'pending' AND due <= $1"
        return sorted((kind, name) for kind, name in await self._database.fetch(query, now))

    async def next_due(self) -> float | None:
        """The earliest `due` of a pending delivery."""
        found: float | None = (
            await self._database.row(f"SELECT min(due) FROM {self._table} WHERE status = 'pending'")
        )[0]
        return found

    async def pending(self, kind: str, name: str, now: float, limit: int) -> list[Delivery]:
        """The pending deliveries of a trigger that are due, the earliest first."""
        return await self._select(
            "status = 'pending' AND kind = $1 AND name = $2 AND due <= $3 ORDER BY due, id LIMIT $4",
            kind,
            name,
            now,
            limit,
        )

    async def holding(self, kind: str, name: str) -> list[Delivery]:
        """The deliveries of a trigger whose executions count for its concurrency, oldest first."""
        return await self._select("holds AND kind = $1 AND name = $2 ORDER BY id", kind, name)

    async def counts(self, kind: str, name: str) -> dict[str, int]:
        """The number of deliveries of a trigger by status."""
        query = f"SELECT status, count(*) FROM {self._table} WHERE kind = $1 AND name = $2 GROUP BY status"
        return dict(await self._database.fetch(query, kind, name))

    async def counts_of(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """The number of deliveries of each of these triggers by status."""
        query = f"SELECT name, status, count(*) FROM {self._table} WHERE {_of(names)} GROUP BY name, status"
        counts: dict[str, dict[str, int]] = {}
        for name, status, count in await self._database.fetch(query, kind, *names) if names else ():
            counts.setdefault(name, {})[status] = count
        return counts

    async def newest(self, kind: str, names: Sequence[str], status: Sequence[str]) -> dict[str, Delivery]:
        """The newest delivery of each of these triggers with one of these statuses."""
        if not names:
            return {}
        # One entry of the index for each trigger and status, however many deliveries are kept.
        collation = ' COLLATE "C"' if self._database.dialect == "postgres" else ""  # that of the column
        given = _rows(2, len(names), collation), _rows(2 + len(names), len(status))
        values = f"(VALUES {given[0]}) AS n CROSS JOIN (VALUES {given[1]}) AS s"
        # As an order and not as equations, for which Postgres may choose an index without the status.
        last = (
            "SELECT CASE WHEN d.kind = $1 AND d.name = n.column1 AND d.status = s.column1 THEN d.id END "
            f"FROM {self._table} AS d WHERE (d.kind, d.name, d.status) <= ($1, n.column1, s.column1) "
            "ORDER BY d.kind DESC, d.name DESC, d.status DESC, d.id DESC LIMIT 1"
        )
        found = await self._select(f"id IN (SELECT ({last}) FROM {values})", kind, *names, *status)
        return {each.name: each for each in sorted(found, key=lambda each: each.id)}

    async def pending_of(self, kind: str, names: Sequence[str], limit: int) -> dict[str, list[Delivery]]:
        """The first pending deliveries of each of these triggers, the earliest first."""
        if not names:
            return {}
        first = (
            f"SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY name ORDER BY due, id) AS place "
            f"FROM {self._table} WHERE {_of(names)} AND status = 'pending' AND due IS NOT NULL) AS waiting "
            f"WHERE place <= {limit:d}"
        )
        found: dict[str, list[Delivery]] = {}
        for each in await self._select(f"id IN ({first}) ORDER BY due, id", kind, *names):
            found.setdefault(each.name, []).append(each)
        return found

    async def drop(self, before: float) -> int:
        """Delete the ended deliveries that were received before that time; return their number."""
        return await self._database.execute(
            f"DELETE FROM {self._table} WHERE received_at < $1 AND status <> 'pending' AND NOT holds", before
        )

    async def _select(self, where: str, *values: object) -> list[Delivery]:
        rows = await self._database.fetch(f"SELECT {COLUMNS} FROM {self._table} WHERE {where}", *values)
        found = []
        for row in rows:
            values_of = dict(zip(FIELDS, row, strict=True))
            if is_intact(values_of["data"], *(values_of[each] for each in _CHECKED)):
                found.append(_delivery(values_of))
            else:  # it does not stop the others
                log.error("delivery %s is damaged and is not used", values_of["id"])
        return found

    async def list(self, where: DeliveryFilter) -> list[Delivery]:
        """One page, newest first."""
        clauses, values = ["1 = 1"], list[object]()

        def placeholder(value: object) -> str:
            values.append(value)
            return f"${len(values)}"

        if where.kind is not None:
            clauses.append(f"kind = {placeholder(where.kind)}")
        if where.kinds:
            clauses.append(f"kind IN ({', '.join(map(placeholder, where.kinds))})")
        if where.name is not None:
            clauses.append(f"name = {placeholder(where.name)}")
        if where.status:
            clauses.append(f"status IN ({', '.join(map(placeholder, where.status))})")
        if where.before is not None:
            clauses.append(f"id < {placeholder(where.before)}")
        return await self._select(f"{' AND '.join(clauses)} ORDER BY id DESC LIMIT {where.limit:d}", *values)


def _of(names: Sequence[str]) -> str:
    """The condition for triggers of a kind ($1) with these names ($2 and following)."""
    return f"kind = $1 AND name IN ({', '.join(f'${number}' for number in range(2, 2 + len(names)))})"


def _document(delivery: Delivery) -> bytes:
    return with_checksum(delivery.data, *(getattr(delivery, each) for each in _CHECKED))


def _delivery(values: dict[str, Any]) -> Delivery:
    return Delivery(**{**values, "data": without_checksum(values["data"]), "holds": bool(values["holds"])})


def _rows(first: int, count: int, collation: str = "") -> str:
    """Rows of one parameter each, which is a text."""
    return ", ".join(f"(CAST(${number} AS text){collation})" for number in range(first, first + count))
