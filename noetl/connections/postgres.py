"""Postgres: connections, execution of one statement in bounded memory, conversion of errors."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from noetl.connections.auth import renamed
from noetl.connections.connection_pool import Pool, PoolExhausted
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.data.sql import Bound
from noetl.data.types.intervals import interval_text, parse_interval
from noetl.data.values import unique_names
from noetl.runtime.resources import per_loop

if TYPE_CHECKING:
    import psycopg

PREFIXES = ("db_", "pg_", "postgres_")
CONNECT_TIMEOUT = 10.0
POOL_SIZE = 10
CHUNK = 1000

_KEYWORDS = {
    "host": ("host", "hostname", "server"),
    "hostaddr": ("hostaddr",),
    "port": ("port",),
    "user": ("user", "username"),
    "password": ("password", "pass"),
    "dbname": ("database", "dbname", "db", "name"),
    "sslmode": ("sslmode", "ssl_mode"),
    "sslrootcert": ("sslrootcert",),
    "sslcert": ("sslcert",),
    "sslkey": ("sslkey",),
    "options": ("options",),
    "application_name": ("application_name",),
    "target_session_attrs": ("target_session_attrs",),
}
# Settings with which values as text do not depend on those of the database, its role or its user.
TEXT_SETTINGS = {"DateStyle": "ISO", "IntervalStyle": "postgres", "bytea_output": "hex", "extra_float_digits": "1"}
APPLY_TEXT_SETTINGS = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)" for name, value in TEXT_SETTINGS.items()
)
# Everything of DISCARD ALL but the prepared statements, which the driver tracks.
_RESET_SESSION = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); "
    "DISCARD PLANS; DISCARD TEMP; DISCARD SEQUENCES"
)


_RANGES = [
    f"{name}{kind}" for name in ("int4", "int8", "num", "date", "ts", "tstz") for kind in ("range", "multirange")
]


class Column(NamedTuple):
    """A column of a result: its name, its type's number and modifier."""

    name: str
    oid: int
    modifier: int = -1


class ResultChunk(NamedTuple):
    """A piece of a statement's result; the last one has the command's tag (`INSERT 0 3`)."""

    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]
    tag: str | None = None
    affected: int | None = None
    copying: str | None = None  # "in" or "out": the statement is a COPY that waits for its stream


class BadAddress(ValueError):
    """The connection's fields do not say where the server is."""


def conninfo(fields: Mapping[str, Any]) -> str:
    """The libpq connection string of a connection's fields; they win over those of a `dsn` among them."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    dsn = str(fields.get("dsn", ""))
    scheme = re.match(r"([\w+]+)://", dsn)
    if scheme and not re.fullmatch(r"postgres(ql)?(\+\w+)?", scheme[1]):
        raise BadAddress(f"{scheme[1]}:// is not the address of a Postgres server; write postgresql://...")
    dsn = re.sub(r"^postgres(?:ql)?(?:\+\w+)?://", "postgresql://", dsn)
    given = {keyword: str(value) for keyword, value in renamed(fields, _KEYWORDS).items()}
    try:
        whole = {**conninfo_to_dict(dsn), **given}
    except ProgrammingError:
        # The driver's own words repeat the text, and with it the password.
        raise BadAddress("the DSN cannot be read: write postgresql://user:password@host:port/database") from None
    if not whole.get("host") and not whole.get("service") and not whole.get("hostaddr"):
        raise BadAddress("the connection has no host: give `auth` a credential, a DSN, or host, user and database")
    whole.setdefault("application_name", "noetl")
    return make_conninfo("", **whole)


def pool(info: str, *, size: int | None = None) -> Pool[psycopg.AsyncConnection[Any]]:
    """This loop's pool for a server; the first caller decides how many connections it may hold."""
    return per_loop(("postgres", info), lambda: own_pool(info, size=size or POOL_SIZE))


def own_pool(info: str, *, size: int, prepare: bool = True) -> Pool[psycopg.AsyncConnection[Any]]:
    """A pool that the caller closes; without `prepare`, statements are never prepared (behind a pooler)."""

    async def connect() -> psycopg.AsyncConnection[Any]:
        connection = await open_connection(info)
        if not prepare:
            connection.prepare_threshold = None
        return connection

    return Pool(connect, close=lambda old: old.close(), usable=_usable, renew=_renew, size=size)


async def open_connection(info: str, *, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
    """A connection that commits each statement by itself, unless a transaction is begun."""
    import psycopg
    from psycopg.types.string import TextLoader

    seconds = max(2, round(timeout or CONNECT_TIMEOUT))  # libpq rounds less than two up to two
    connection = await psycopg.AsyncConnection.connect(info, autocommit=True, connect_timeout=seconds)
    connection.adapters.register_loader("interval", _interval_loader())
    for name in _RANGES:
        connection.adapters.register_loader(name, TextLoader)
    return connection


async def run_statement(
    connection: psycopg.AsyncConnection[Any], bound: Bound, *, chunk: int = CHUNK
) -> AsyncGenerator[ResultChunk, None]:
    """Run one statement and yield its rows in chunks, as the server sends them.

    The client never holds more than a chunk. Closing the generator early, or cancelling the task, cancels the
    statement on the server and leaves the connection usable."""
    from psycopg import generators, pq
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.errors import error_from_result

    pgconn = connection.pgconn
    transformer = Transformer(connection)
    values = [adapted(value, json=number in bound.json) for number, value in enumerate(bound.values)]
    data = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
    pgconn.send_query_params(
        bound.text.encode(), data, param_types=transformer.types, param_formats=transformer.formats
    )
    pgconn.set_chunked_rows_mode(chunk)
    columns: tuple[Column, ...] = ()
    try:
        await connection.wait(generators.send(pgconn))
        while (result := await connection.wait(generators.fetch(pgconn))) is not None:
            status = result.status
            if status in (pq.ExecStatus.TUPLES_CHUNK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                if not columns and result.nfields:
                    columns = _columns(result)
                transformer.set_pgresult(result)
                rows = _load(transformer, result)
                if status == pq.ExecStatus.TUPLES_CHUNK:
                    yield ResultChunk(columns, rows)
                    await asyncio.sleep(0)  # data may arrive without a pause; let other tasks run
                else:
                    tag = (result.command_status or b"").decode()
                    yield ResultChunk(columns, rows, tag, result.command_tuples)
            elif status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
                yield ResultChunk((), [], copying="in" if status == pq.ExecStatus.COPY_IN else "out")
                return
            else:
                failure = error_from_result(result)
                while await connection.wait(generators.fetch(pgconn)) is not None:
                    continue
                raise failure
    finally:
        if pgconn.transaction_status == pq.TransactionStatus.ACTIVE and pgconn.status == pq.ConnStatus.OK:
            await _stop(connection)


async def _stop(connection: psycopg.AsyncConnection[Any]) -> None:
    """Cancel the running statement; close the connection if that fails."""
    import psycopg
    from psycopg import generators

    try:
        async with asyncio.timeout(5):
            await connection.cancel_safe(timeout=5)
            while await connection.wait(generators.fetch(connection.pgconn)) is not None:
                continue
    except (psycopg.Error, TimeoutError):
        await connection.close()


def adapted(value: Any, *, json: bool = False) -> Any:
    """A parameter as the driver can bind it: structures as JSON, lists of plain values as arrays."""
    from psycopg.types.json import Jsonb

    if json and not isinstance(value, str):
        return Jsonb(value) if value is not None else None
    if isinstance(value, Mapping):
        return Jsonb(dict(value))
    if isinstance(value, list | tuple):
        kinds = {type(item) for item in value if item is not None}
        if kinds == {int, float}:  # all are numbers
            return [None if item is None else Decimal(repr(item)) for item in value]
        if any(issubclass(kind, Mapping) for kind in kinds) or len(kinds) > 1:
            return Jsonb(list(value))
        return list(value)
    return value


@cache
def _interval_loader() -> Any:
    """Reads intervals as ISO 8601 durations: a month has no fixed number of days, so Python's own type would not do."""
    from psycopg.adapt import Loader

    class IsoInterval(Loader):
        def load(self, data: Any) -> str:
            return iso_interval(bytes(data).decode())

    return IsoInterval


def iso_interval(text: str) -> str:
    """An interval as Postgres writes it, as an ISO 8601 duration; `infinity` stays as it is."""
    try:
        return interval_text(*parse_interval(text))
    except ValueError:
        return text


def _columns(result: Any) -> tuple[Column, ...]:
    return tuple(
        Column((result.fname(number) or b"").decode(), result.ftype(number), result.fmod(number))
        for number in range(result.nfields)
    )


def _load(transformer: Any, result: Any) -> list[tuple[Any, ...]]:
    from psycopg import DataError

    if not result.ntuples:
        return []
    try:
        rows: list[tuple[Any, ...]] = transformer.load_rows(0, result.ntuples, tuple)
    except DataError:  # a value without a Python type, such as the date `infinity`: use its text
        rows = [
            tuple(_load_one(transformer, result, row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
    return rows


def _load_one(transformer: Any, result: Any, row: int, column: int) -> Any:
    from psycopg import DataError

    raw = result.get_value(row, column)
    if raw is None:
        return None
    try:
        return transformer.get_loader(result.ftype(column), result.fformat(column)).load(raw)
    except DataError:
        return bytes(raw).decode()


def _usable(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection is usable: the server may have closed it."""
    import psycopg
    from psycopg import pq

    pgconn = connection.pgconn
    if connection.closed or pgconn.transaction_status != pq.TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    if poll.poll(0):
        with suppress(psycopg.Error):
            pgconn.consume_input()
        return bool(pgconn.status == pq.ConnStatus.OK and not poll.poll(0))
    return True


async def _renew(connection: psycopg.AsyncConnection[Any]) -> bool:
    import psycopg

    try:
        await connection.execute(_RESET_SESSION)
    except psycopg.Error:
        return False
    return True


# ── errors ──────────────────────────────────────────────────────────────────────────────

_KINDS: tuple[tuple[str, str], ...] = (  # the longest matching prefix applies
    ("08", "db.connection"),
    ("0A", "db.syntax"),
    ("22", "schema"),
    ("23", "db.constraint"),
    ("25P03", "db.timeout"),
    ("26", "db.syntax"),
    ("28", "auth"),
    ("3D", "not_found"),
    ("3F", "db.syntax"),
    ("40", "db.deadlock"),
    ("40002", "db.constraint"),
    ("42", "db.syntax"),
    ("42501", "auth"),
    ("44", "db.constraint"),
    ("53", "server_error"),
    ("53100", "storage.quota"),
    ("53300", "db.connection"),
    ("54", "limit"),
    ("55P03", "db.timeout"),
    ("57014", "db.timeout"),
    ("57P", "db.connection"),
    ("57P05", "db.timeout"),
    ("58", "server_error"),
    ("P0001", "db.constraint"),
    ("XX", "server_error"),
)
# The names of other Postgres drivers for a connection that failed or ended.
_LOST = ("OperationalError", "ConnectionDoesNotExistError", "InterfaceError", "ConnectionFailureError")
_REFUSED = re.compile(
    r"password authentication failed|no password supplied|no pg_hba.conf entry|role \".*\" does not exist|"
    r"authentication failed|permission denied for database",
)


def to_error_info(failure: Exception) -> tuple[ErrorInfo, dict[str, Any]]:
    """Convert an exception of the driver to one of the error kinds, and to the helper `pg`."""
    import psycopg

    if isinstance(failure, PoolExhausted):
        return error_info("db.connection", f"{failure}; raise spec.pool_size or lower the parallelism"), {}
    sqlstate = getattr(failure, "sqlstate", None)
    diag = getattr(failure, "diag", None)
    text = str(failure.args[0]) if hasattr(failure, "detail") and failure.args else str(failure)  # asyncpg appends it
    message = (diag.message_primary if diag is not None else None) or _first_line(text)
    message = re.sub(r"^[A-Z_]+: \[libpq\] |^(?:Failed to [^:]*|[^:]*COPY[^:]*): ", "", message)  # ADBC's own wrapping
    message = re.sub(r"^Execution error \[\w+\]: (?:ERROR:)?\s*", "", message)
    message = re.sub(r"\.?\s*(?:\. )?SQLSTATE: \w{5}\s*$", "", message)
    message = re.sub(
        r'^malformed array literal: "(the column .* has multidimensional arrays; .*?)" DETAIL.*$', r"\1", message
    )
    pg: dict[str, Any] = {}
    if diag is not None and sqlstate:
        pg |= {
            "code": sqlstate,
            "sqlstate": sqlstate,
            "severity": diag.severity_nonlocalized or diag.severity,
            "message": diag.message_primary,
            "detail": diag.message_detail,
            "hint": diag.message_hint,
            "schema": diag.schema_name,
            "table": diag.table_name,
            "column": diag.column_name,
            "constraint": diag.constraint_name,
            "position": int(diag.statement_position) if diag.statement_position else None,
        }
    elif sqlstate:
        pg |= {"code": sqlstate, "sqlstate": sqlstate, "message": message}
        pg |= {name: getattr(failure, name, None) for name in ("detail", "hint")}
    if sqlstate:
        matching = [(prefix, kind) for prefix, kind in _KINDS if sqlstate.startswith(prefix)]
        kind = max(matching)[1] if matching else "unknown"
    elif isinstance(failure, psycopg.errors.ConnectionTimeout):
        kind = "timeout"
    elif isinstance(failure, psycopg.OperationalError | OSError) or type(failure).__name__ in _LOST:
        text = str(failure)
        kind = "auth" if _REFUSED.search(text) else "db.connection"
        if re.search(r'database ".*" does not exist', text):
            kind = "not_found"
    elif isinstance(failure, psycopg.DataError | psycopg.NotSupportedError):
        kind = "schema"
    elif isinstance(failure, psycopg.ProgrammingError):
        kind = "db.syntax"
    else:
        kind = "unknown"
    text = ". ".join(filter(None, [message, pg.get("detail"), pg.get("hint")]))
    details = {key: value for key, value in pg.items() if value and key not in ("code", "message")}
    return error_info(kind, text, details=details), pg


def _first_line(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()) or "the driver gave no reason"


def column_names(columns: Sequence[Column]) -> list[str]:
    """The columns' names, with a number where one comes twice."""
    return unique_names(column.name for column in columns)


# ── rows and types ──────────────────────────────────────────────────────────────────────

# bool, char, name, int8, int2, int4, text, oid, bpchar, varchar: JSON represents them directly.
_PLAIN = frozenset({16, 18, 19, 20, 21, 23, 25, 26, 1042, 1043, 114, 3802})


def plain_rows(part: ResultChunk, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a part as plain JSON data."""
    from noetl.data.values import jsonable

    odd = [number for number, column in enumerate(part.columns) if column.oid not in _PLAIN]
    if not odd:
        return [dict(zip(columns, row, strict=True)) for row in part.rows]
    rows = []
    for row in part.rows:
        values = list(row)
        for number in odd:
            values[number] = jsonable(values[number])
        rows.append(dict(zip(columns, values, strict=True)))
    return rows


def arrow_schema(columns: Sequence[Column]) -> Any:
    """The Arrow schema of a result's columns."""
    from noetl.data.arrow_tables import schema_of

    return schema_of(column_names(columns), [arrow_type(column) for column in columns])


def _is_array(oid: int) -> bool:
    """Whether the driver reads values of a type as lists."""
    from psycopg import adapters

    info = adapters.types.get(oid)
    return info is not None and info.array_oid == oid


def arrow_type(column: Column) -> Any:
    """The Arrow type of a column; types that Arrow does not have are text with a marked meaning."""
    import pyarrow as pa

    from noetl.data.arrow_tables import ColumnType

    simple = {
        16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 26: pa.int64(),
        700: pa.float32(), 701: pa.float64(), 1082: pa.date32(), 1083: pa.time64("us"), 1114: pa.timestamp("us"),
        1184: pa.timestamp("us", "UTC"),
        1000: pa.list_(pa.bool_()), 1005: pa.list_(pa.int16()), 1007: pa.list_(pa.int32()), 1016: pa.list_(pa.int64()),
        1021: pa.list_(pa.float32()), 1022: pa.list_(pa.float64()), 1009: pa.list_(pa.string()),
        1015: pa.list_(pa.string()),
    }  # fmt: skip
    if column.oid in simple:
        return ColumnType(simple[column.oid])
    if column.oid == 1700:
        precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
        if column.modifier >= 4 and 0 < precision <= 38 and scale <= precision:
            return ColumnType(pa.decimal128(precision, scale))
        return ColumnType(pa.string(), "number")
    if column.oid in (114, 3802) or _is_array(column.oid):
        return ColumnType(pa.string(), "json")
    if column.oid == 2950:
        return ColumnType(pa.string(), "uuid")
    return ColumnType(pa.string())
