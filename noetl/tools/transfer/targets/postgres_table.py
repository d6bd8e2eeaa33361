"""SQL statements for a PostgreSQL target table: create, inspect, empty and merge.

The module only builds statements. A missing table is created with the source's columns; with mode upsert the key is
its primary key. Upsert uses a temporary staging table, in which the last row with a key wins.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.connections.postgres import TEXT_SETTINGS
from noetl.data.arrow_tables import meaning_of
from noetl.data.sql import column_list, quote_column, quote_name, split_name
from noetl.data.types.type_lattice import UNTYPED_COMMENT
from noetl.tools.transfer.nested_rows import beginning
from noetl.tools.transfer.schema_contract import Changes
from noetl.tools.transfer.targets.merge_statements import update_and_insert

COLUMNS_QUERY = """
SELECT a.attname, t.typname, t.typcategory::text, a.atttypid::int, format_type(a.atttypid, a.atttypmod),
  col_description(a.attrelid, a.attnum), a.attgenerated <> ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass({name}) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
UNIQUE_QUERY = """
SELECT array_agg(a.attname::text ORDER BY a.attname)
FROM pg_index i JOIN pg_attribute a
  ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass({name}) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid
"""
STAGING = "noetl_incoming"
ORDER = "noetl_order"
OVERRIDING = "OVERRIDING SYSTEM VALUE"  # of columns that are GENERATED ALWAYS AS IDENTITY, as COPY writes them
CREATE_ATTEMPTS = 5  # if another session creates the table concurrently
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '60s'"  # a transfer must not wait forever
# TRUNCATE needs an exclusive lock; if the table is being read (by the transfer's own source), DELETE is used instead.
TRUNCATE_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"


class PgColumn(NamedTuple):
    """A column of an existing table."""

    name: str
    type: str
    category: str  # A: array
    oid: int = 0
    spelled: str = ""
    comment: str | None = None
    generated: bool = False  # PostgreSQL computes its values; they cannot be written


def literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def select_columns(table: str) -> str:
    """The columns of a table; none when it does not exist."""
    return COLUMNS_QUERY.format(name=literal(quote_name(table)))


def select_unique_keys(table: str) -> str:
    """The sets of columns with a unique index."""
    return UNIQUE_QUERY.format(name=literal(quote_name(table)))


def create_table(table: str, types: Mapping[str, str], key: Sequence[str]) -> list[str]:
    """Create the table and its schema."""
    columns = [f"{quote_column(name)} {type}" for name, type in types.items()]
    if key:
        columns.append(f"PRIMARY KEY ({column_list(key)})")
    statements = [f"CREATE TABLE IF NOT EXISTS {quote_name(table)} ({', '.join(columns)})"]
    parts = split_name(table)
    if len(parts) > 1:
        statements.insert(0, f"CREATE SCHEMA IF NOT EXISTS {quote_column(parts[-2])}")
    return statements


def alter_table(table: str, changes: Changes, documents: Container[str]) -> list[str]:
    """Add columns and change types; `documents` are the columns of JSON."""
    actions = [f"ADD COLUMN {quote_column(field.name)} {type_of(field)}" for field in changes.add]
    for name, kind in changes.widen.items():
        column, wide = quote_column(name), _KINDS.get(kind.name) or str(kind)
        # As text on the way: a double would be rounded to 15 digits.
        value = f"{column}::{'text::' if wide == 'numeric' else ''}{wide}"
        if name in documents and wide == "text":
            value = f"COALESCE({column} #>> '{{}}', {column}::text)"  # a text without quotes; null of JSON is a value
        actions.append(f"ALTER COLUMN {column} TYPE {wide} USING {value}")
    actions += [f"ALTER COLUMN {quote_column(field.name)} TYPE {type_of(field)} USING NULL" for field in changes.define]
    altered = [f"ALTER TABLE {quote_name(table)} {', '.join(actions)}"] if actions else []
    return [*_SPELLING, *altered, *untyped(table, changes.add)]


def select_value(table: str, column: str) -> str:
    """Select a row with a value in the column."""
    return f"SELECT 1 FROM {quote_name(table)} WHERE {quote_column(column)} IS NOT NULL LIMIT 1"


def untyped(table: str, fields: Iterable[Any]) -> list[str]:
    """Mark new columns that have no value yet."""
    import pyarrow as pa

    return [comment_on(table, field.name, UNTYPED_COMMENT) for field in fields if pa.types.is_null(field.type)]


def comment_on(table: str, column: str, comment: str | None) -> str:
    """Set or remove the comment of a column."""
    said = "NULL" if comment is None else literal(comment)
    return f"COMMENT ON COLUMN {quote_name(table)}.{quote_column(column)} IS {said}"


_KINDS = {"double": "double precision", "bytes": "bytea"}
# How values become text, and dates become timestamps, does not depend on the settings of the database.
_SPELLING = [f"SET LOCAL {name} = '{value}'" for name, value in {"TimeZone": "UTC", **TEXT_SETTINGS}.items()]


def create_staging(table: str, columns: Sequence[str]) -> list[str]:
    """Create the temporary table for the rows to merge."""
    selected = column_list(columns)
    return [
        f"DROP TABLE IF EXISTS pg_temp.{STAGING}",
        f"CREATE TEMP TABLE {STAGING} ON COMMIT DROP AS SELECT {selected} FROM {quote_name(table)} LIMIT 0",
        f"ALTER TABLE {STAGING} ADD COLUMN {ORDER} bigserial",
    ]


def merge(table: str, columns: Sequence[str], key: Sequence[str], *, has_unique: bool) -> list[str]:
    """Merge the staging table into the table, and empty it."""
    keys, selected = column_list(key), column_list(columns)
    latest = f"SELECT DISTINCT ON ({keys}) {selected} FROM {STAGING} ORDER BY {keys}, {ORDER} DESC"
    if has_unique:
        others = [name for name in columns if name not in key]
        update = ", ".join(f"{quote_column(name)} = EXCLUDED.{quote_column(name)}" for name in others)
        action = f"UPDATE SET {update}" if update else "NOTHING"
        insert = f"INSERT INTO {quote_name(table)} ({selected}) {OVERRIDING}"
        statements = [f"{insert} {latest} ON CONFLICT ({keys}) DO {action}"]
    else:
        statements = update_and_insert(quote_name(table), columns, key, f"({latest})", OVERRIDING)
    return [*statements, f"TRUNCATE {STAGING}"]


def select_child_tables(table: str) -> tuple[str, list[str]]:
    """The tables of lists beside a table (`nested: tables`)."""
    text = (
        "SELECT c.relname, EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = '_index_1') "
        "FROM pg_class c JOIN pg_class r ON r.oid = to_regclass(%s) AND r.relnamespace = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND starts_with(c.relname, %s) ORDER BY 1"
    )
    return text, [quote_name(table), beginning(split_name(table)[-1])]


def change_by_key(table: str, names: Sequence[str], cleared: Sequence[str]) -> tuple[list[str], str, str]:
    """Statements that create a temporary table of keys, copy into it, and delete the rows that have them.

    With `cleared`, these columns of the rows are set to null instead."""
    keys = "noetl_keys"
    create = [
        f"DROP TABLE IF EXISTS pg_temp.{keys}",
        f"CREATE TEMP TABLE {keys} ON COMMIT DROP AS SELECT {column_list(names)} FROM {quote_name(table)} LIMIT 0",
    ]
    same = " AND ".join(f"t.{quote_column(name)} = k.{quote_column(name)}" for name in names)
    change = f"DELETE FROM {quote_name(table)} AS t USING {keys} AS k WHERE {same}"
    if cleared:
        nulls = ", ".join(f"{quote_column(name)} = NULL" for name in cleared)
        change = f"UPDATE {quote_name(table)} AS t SET {nulls} FROM {keys} AS k WHERE {same}"
    return create, copy_in(keys, names, "csv"), change


def select_missing_key(key: Sequence[str]) -> str:
    """Select a staged row without a value for its key."""
    return f"SELECT 1 FROM {STAGING} WHERE {' OR '.join(f'{quote_column(name)} IS NULL' for name in key)} LIMIT 1"


def copy_in(table: str, columns: Sequence[str], format: str) -> str:
    """COPY into a table, whose name is already quoted."""
    return f"COPY {table} ({column_list(columns)}) FROM STDIN (FORMAT {format})"


def last_lines(table: Any) -> list[int]:
    """The last line of each row in CSV: texts can have line breaks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lines = pa.array([1] * table.num_rows, pa.int64())
    for column, field in zip(table.columns, table.schema, strict=True):
        if pa.types.is_string(field.type):
            breaks = pc.fill_null(pc.count_substring(column.combine_chunks(), "\n"), 0)
            lines = pc.add(lines, breaks.cast(pa.int64()))
    found: list[int] = pc.cumulative_sum(lines).to_pylist()
    return found


_MEANINGS = {"json": "jsonb", "number": "numeric", "uuid": "uuid", "interval": "interval"}


def type_of(field: Any) -> str:
    """The PostgreSQL type of a column in a table that the transfer creates."""
    import pyarrow as pa

    meaning = meaning_of(field)
    named = (field.metadata or {}).get(b"postgres")
    if named:
        name: str = named.decode()
        return name
    if meaning in _MEANINGS:
        return _MEANINGS[meaning]
    kind = field.type
    simple = {
        pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer",
        pa.int64(): "bigint", pa.uint8(): "smallint", pa.uint16(): "integer", pa.uint32(): "bigint",
        pa.uint64(): "numeric(20)", pa.float16(): "real", pa.float32(): "real", pa.float64(): "double precision",
        pa.date32(): "date", pa.date64(): "date", pa.string(): "text", pa.large_string(): "text", pa.binary(): "bytea",
        pa.large_binary(): "bytea",
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_time(kind):
        return "time"
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return "interval"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = type_of(kind.value_field)
        return "jsonb" if inner in ("jsonb", "interval", "bytea") or inner.endswith("[]") else f"{inner}[]"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "jsonb"
    return "text"
