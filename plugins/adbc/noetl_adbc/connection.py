"""Connections through the ADBC driver manager, and its errors as error kinds."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

import adbc_driver_manager as manager
from adbc_driver_manager import dbapi

from noetl.tool import BadAuth, ErrorInfo, Host, auth_fields, error_info

T = TypeVar("T")
_lock = threading.Lock()
CANCEL_SECONDS = 5.0  # to wait for the end of a cancelled statement
_SNOWFLAKE = {
    "account": "adbc.snowflake.sql.account", "database": "adbc.snowflake.sql.db", "schema": "adbc.snowflake.sql.schema",
    "warehouse": "adbc.snowflake.sql.warehouse", "role": "adbc.snowflake.sql.role",
    "host": "adbc.snowflake.sql.uri.host",
    "private_key": "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_value",
    "passphrase": "adbc.snowflake.sql.client_option.jwt_private_key_pkcs8_password",
    "token": "adbc.snowflake.sql.client_option.auth_token", "user": "username", "password": "password",
}  # fmt: skip
_BIGQUERY = {
    "project": "adbc.bigquery.sql.project_id", "dataset": "adbc.bigquery.sql.dataset_id",
    "location": "adbc.bigquery.sql.location", "credentials": "adbc.bigquery.sql.auth_credentials",
}  # fmt: skip


class Quoting:
    """How names are quoted."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def column(self, name: str) -> str:
        """A column's name."""
        return self._mark + name.replace(self._mark, self._mark * 2) + self._mark

    def table(self, name: str) -> str:
        """A table's name; dots separate its parts."""
        return ".".join(self.column(part) for part in name.split("."))


def quoting(kind: str) -> Quoting:
    """The quoting of a kind."""
    return Quoting("`" if kind == "bigquery" else '"')


async def connect(kind: str, fields: Mapping[str, Any], host: Host) -> Any:
    """An open connection, which commits every statement until `begin` is called."""
    found = await auth_fields(fields.get("auth"), host, prefixes=(f"{kind}_", "db_"))
    name = str(fields.get("driver") or "") if kind == "adbc" else kind
    options = driver_options(kind, found)
    options |= {str(option): _text(value) for option, value in (fields.get("options") or {}).items()}
    return await in_thread(lambda: _open(name, options), discard=lambda connection: connection.close())


def driver_options(kind: str, fields: Mapping[str, Any]) -> dict[str, str]:
    """The options of the driver from the fields of a credential."""
    given = dict(fields)
    if kind == "adbc":
        given.pop("dsn", None) if given.get("uri") else None
        if given.get("dsn"):
            given["uri"] = given.pop("dsn")
        return {
            str(name): _text(value) for name, value in given.items() if name not in ("type", "kind", "value", "url")
        }
    names, options = (_SNOWFLAKE, {}) if kind == "snowflake" else (_BIGQUERY, {})
    if given.get("username"):
        given.setdefault("user", given["username"])
    for name, option in names.items():
        if given.get(name) not in (None, ""):
            options[option] = _text(given[name])
    if kind == "snowflake":
        if "account" not in given and "host" not in given:
            raise BadAuth("the credential of Snowflake requires `account`")
        if not re.fullmatch(r"[\w.-]*", str(given.get("account") or ""), re.ASCII):
            raise BadAuth("`account` of Snowflake is a name such as myorg-account, or account.region, not an address")
        if given.get("private_key"):
            options["adbc.snowflake.sql.auth_type"] = "auth_jwt"
        elif given.get("token"):
            options["adbc.snowflake.sql.auth_type"] = "auth_oauth"
        if given.get("auth_type"):
            options["adbc.snowflake.sql.auth_type"] = f"auth_{str(given['auth_type']).removeprefix('auth_')}"
    elif "project" not in given:
        raise BadAuth("the credential of BigQuery requires `project`")
    elif given.get("credentials"):
        options["adbc.bigquery.sql.auth_type"] = "adbc.bigquery.sql.auth_type.json_credential_string"
    return options


def _text(value: Any) -> str:
    """The text of an option: drivers read `true`, and the key of a service account as JSON."""
    return json.dumps(value) if isinstance(value, bool | Mapping | list) else str(value)


def _open(name: str, options: dict[str, str]) -> Any:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BadAuth(f"driver {name!r} is not the name of a driver such as sqlite or flightsql")
    try:
        package = import_module(f"adbc_driver_{name}")
    except ImportError:
        raise BadAuth(
            f"the driver {name} is not installed: install the package adbc-driver-{name.replace('_', '-')}"
        ) from None
    if name == "duckdb":
        return _open_duckdb(package.driver_path(), options)
    return dbapi.connect(driver=package._driver_path(), db_kwargs=options, autocommit=True)


class FileInUse(Exception):
    """Another task of this process has opened a DuckDB file, and each would overwrite what the other commits."""


_duckdb_files: set[str] = set()  # that are open in this process


def _open_duckdb(driver: str, options: dict[str, str]) -> Any:
    """A connection to DuckDB; the driver opens a file anew for every connection, and its lock is one of the process."""
    given = options.get("path") or options.get("uri") or ":memory:"
    file = None if given == ":memory:" else os.path.realpath(given)
    with _lock:
        if file in _duckdb_files:
            raise FileInUse(
                f"another task of this worker has opened {given} with ADBC; use kind duckdb, which shares it"
            )
        if file is not None:
            _duckdb_files.add(file)
    try:
        kwargs = {"entrypoint": "duckdb_adbc_init", **options}
        connection = dbapi.connect(driver=driver, db_kwargs=kwargs, autocommit=True)
    except BaseException:
        _duckdb_files.discard(str(file))
        raise
    close = connection.close

    def close_and_release() -> None:
        close()
        _duckdb_files.discard(str(file))

    connection.close = close_and_release  # type: ignore[method-assign]
    return connection


class Abandoned(Exception):
    """Work that a driver does not cancel goes on in its thread, so its connection cannot be used or closed."""


async def in_thread(
    work: Callable[[], T], cancel: Callable[[], Any] | None = None, discard: Callable[[T], Any] | None = None
) -> T:
    """Run blocking work in a thread; if the task is cancelled, cancel the work and wait for its end for some seconds.

    `discard` releases the result of work that ends nevertheless. Abandoned if it goes on: the thread does not keep the
    process from ending."""
    loop = asyncio.get_running_loop()
    running: asyncio.Future[T] = loop.create_future()

    def deliver(set_result: Callable[[Any], None], value: Any) -> None:
        if not running.done():
            set_result(value)

    def execute() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (running.set_result, work())
        except Exception as failure:  # noqa: BLE001 (passed to the task)
            outcome = (running.set_exception, failure)
        with suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=execute, name="noetl-adbc", daemon=True).start()
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        with suppress(manager.Error):  # a driver that cannot cancel
            if cancel is not None:
                cancel()
        if discard is not None:
            running.add_done_callback(lambda done: done.exception() or discard(done.result()))
        await asyncio.wait([running], timeout=CANCEL_SECONDS)
        if not running.done():
            raise asyncio.CancelledError from Abandoned("the driver does not cancel its statement")
        running.exception()  # it is retrieved: the task was cancelled all the same
        raise


def parameters(values: Sequence[Any]) -> list[Any]:
    """Values for the driver: mappings and lists as JSON text, which drivers cannot bind otherwise."""
    return [
        json.dumps(each, ensure_ascii=False) if isinstance(each, Mapping | list | tuple) else each for each in values
    ]


def is_abandoned(failure: BaseException | None) -> bool:
    """Whether an exception says that a thread still uses the connection."""
    return failure is not None and isinstance(failure.__cause__, Abandoned)


_STATUS = {
    manager.AdbcStatusCode.UNAUTHENTICATED: "auth",
    manager.AdbcStatusCode.UNAUTHORIZED: "auth",
    manager.AdbcStatusCode.NOT_FOUND: "not_found",
    manager.AdbcStatusCode.INVALID_ARGUMENT: "db.syntax",
    manager.AdbcStatusCode.INTEGRITY: "db.constraint",
    manager.AdbcStatusCode.ALREADY_EXISTS: "db.constraint",
    manager.AdbcStatusCode.TIMEOUT: "db.timeout",
    manager.AdbcStatusCode.CANCELLED: "db.timeout",
    manager.AdbcStatusCode.IO: "db.connection",
}


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver manager; None for other exceptions."""
    if isinstance(failure, OverflowError) or type(failure).__module__.startswith("pyarrow"):
        return error_info("schema", f"a value cannot be bound or converted: {failure}")
    if isinstance(failure, FileInUse):
        return error_info("db.connection", f"adbc: {failure}")
    if not isinstance(failure, manager.Error):
        return None
    kind = _STATUS.get(failure.status_code)
    if kind is None:
        kind = "db.connection" if isinstance(failure, manager.OperationalError) else "db.syntax"
    hint = "; give the authority of the server in `options`, as the driver names it" if "x509" in str(failure) else ""
    return error_info(kind, f"{failure}{hint}", details={"sqlstate": failure.sqlstate} if failure.sqlstate else {})
