"""Connections to MySQL: from the fields of a task; exceptions of the driver as error kinds."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncmy
from asyncmy import errors

from noetl.tool import ErrorInfo, Host, Timeout, error_info, port_number, server_fields, tls_context

# The driver would print what the server notes about a statement, such as DROP TABLE IF EXISTS.
logging.getLogger("asyncmy").setLevel(logging.ERROR)
PREFIXES = ("db_", "mysql_")
CONNECT_SECONDS = 10.0
# Values that a column cannot hold are errors, and TIMESTAMP columns are read in UTC.
SESSION = (
    "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), time_zone = '+00:00', net_write_timeout = 600"
)
# Rows are stored as they are: 0 in an AUTO_INCREMENT column would become the next number, and an empty text NULL.
EXACT = "SET SESSION sql_mode = CONCAT(REPLACE(@@sql_mode, 'EMPTY_STRING_IS_NULL', ''), ',NO_AUTO_VALUE_ON_ZERO')"


async def settings(fields: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """The arguments of the driver's `connect`."""
    given = await server_fields(fields.get("auth"), host, schemes=("mysql", "mariadb"), prefixes=PREFIXES)
    given |= {name: fields[name] for name in ("host", "port", "user", "password", "database") if fields.get(name)}
    return {
        "host": str(given.get("host") or "127.0.0.1"),
        "port": port_number(given.get("port") or 3306),
        "user": str(given.get("user") or ""),
        "password": str(given.get("password") or ""),
        "database": given.get("database") or given.get("name") or given.get("db") or None,
        "ssl": tls_context(given),
    }


@asynccontextmanager
async def connected(fields: Mapping[str, Any], host: Host, timeout: Timeout) -> AsyncIterator[Any]:
    """A connection in autocommit mode. If the block is left by an exception, its running statement is killed."""
    arguments = await settings(fields, host)
    connection = await connect(arguments, timeout)
    try:
        yield connection
    except BaseException:
        await stop(connection, arguments, timeout)
        raise
    await connection.ensure_closed()


async def stop(connection: Any, arguments: Mapping[str, Any], timeout: Timeout) -> None:
    """Close a connection, whatever it is doing: its statement is killed, and its transaction rolled back."""
    thread = connection.thread_id()
    connection.close()
    with suppress(errors.MySQLError, OSError):  # it may have ended, and the server may be gone
        await _kill(arguments, timeout, thread)


async def connect(arguments: Mapping[str, Any], timeout: Timeout) -> Any:
    """A connection in autocommit mode."""
    return await asyncmy.connect(
        **arguments,
        charset="utf8mb4",
        autocommit=True,
        init_command=SESSION,
        connect_timeout=timeout.connect or CONNECT_SECONDS,
    )


async def begin(connection: Any) -> None:
    """Begin a transaction; the driver sends BEGIN, which starts a block of statements in sql_mode ORACLE."""
    await connection.query("START TRANSACTION")


async def _kill(arguments: Mapping[str, Any], timeout: Timeout, thread: int) -> None:
    other = await connect(arguments, timeout)
    try:
        async with other.cursor() as cursor:
            await cursor.execute(f"KILL CONNECTION {int(thread)}")
    finally:
        await other.ensure_closed()


def parameters(values: Sequence[Any]) -> list[Any]:
    """Values for the driver: mappings and lists as JSON text, because MySQL has no arrays."""
    return [
        json.dumps(each, ensure_ascii=False) if isinstance(each, Mapping | list | tuple) else each for each in values
    ]


_KINDS = {
    1040: "db.connection", 1042: "db.connection", 1043: "db.connection", 1053: "db.connection", 1203: "db.connection",
    1152: "db.connection", 1158: "db.connection", 1159: "db.connection", 1160: "db.connection", 1161: "db.connection",
    1184: "db.connection", 1129: "db.connection", 1130: "auth", 1927: "db.connection",
    1044: "auth", 1045: "auth", 1142: "auth", 1143: "auth", 1227: "auth", 1698: "auth", 1370: "auth",
    1022: "db.constraint", 1048: "db.constraint", 1062: "db.constraint", 1216: "db.constraint", 1217: "db.constraint",
    1451: "db.constraint", 1452: "db.constraint", 1557: "db.constraint", 1586: "db.constraint", 3819: "db.constraint",
    4025: "db.constraint", 1264: "db.constraint", 1265: "db.constraint", 1292: "db.constraint", 1366: "db.constraint",
    1406: "db.constraint", 1364: "db.constraint", 1136: "db.syntax",
    1205: "db.deadlock", 1213: "db.deadlock", 1317: "db.timeout", 1969: "db.timeout", 3024: "db.timeout",
    1049: "not_found", 1051: "not_found", 1146: "not_found", 1054: "db.syntax", 1064: "db.syntax",
    1021: "storage.quota", 1114: "storage.quota", 1153: "limit", 1135: "limit", 1037: "limit", 1226: "rate_limit",
}  # fmt: skip


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver; None for other exceptions."""
    if isinstance(failure, errors.MySQLError):
        code = failure.args[0] if failure.args and isinstance(failure.args[0], int) else None
        text = str(failure.args[1]) if len(failure.args) > 1 else str(failure)
        if "[SSL" in text:
            text += "; check `tls`, `ca` and `verify` of the connection, and whether the server has TLS"
        if code == 1153:
            text += "; raise max_allowed_packet of the server"
        kind = _KINDS.get(code or 0)
        if kind is None:  # the codes of the client, and errors without a code, are those of connections
            lost = code is None or 2000 <= code < 3000
            lost = lost and isinstance(failure, errors.OperationalError | errors.InterfaceError)
            kind = "db.connection" if lost else "db.syntax"
        return error_info(kind, f"mysql: {text}", details={"code": code} if code else {})
    if isinstance(failure, OSError):
        return error_info("db.connection", f"mysql: {failure.strerror or failure}")
    return None
