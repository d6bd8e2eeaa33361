"""The datasets that a task has read and written, for the lineage of data.

The record is part of the outcome's `meta` (`lineage: {inputs, outputs}`) and so of the event log. A dataset has a
namespace and a name as in OpenLineage: `postgres://host:5432` and `database.schema.table`, `s3://bucket` and the key,
`file` and the path. It contains neither users nor passwords.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from noetl.connections.auth import BadAuth, fields_of
from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import ToolCall
from noetl.errors import NoetlError

if TYPE_CHECKING:
    from noetl.data.sql_tables import Tables

SQL_KINDS = frozenset(
    {"postgres", "duckdb", "sqlite", "mysql", "mariadb", "clickhouse", "snowflake", "bigquery", "adbc"}
)
KINDS = SQL_KINDS | {"transfer", "object", "s3", "gcs", "azure", "object_store"}
MAX_DATASETS, MAX_FIELDS = 100, 500
_COMMANDS = ("command", "commands", "query", "queries", "sql", "statement", "statements")
_STORES = {"s3": "s3", "gcs": "gs", "gs": "gs", "azure": "az", "az": "az"}
_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306, "clickhouse": 8123}

Dataset = dict[str, Any]


async def with_lineage(call: ToolCall, outcome: Outcome) -> Outcome:
    """The outcome with the datasets of the task in its `meta`."""
    try:
        if call.kind == "transfer":
            inputs, outputs = await _transfer(call, outcome)
        elif call.kind in SQL_KINDS:
            inputs, outputs = await _sql(call)
        else:
            inputs, outputs = await _object(call)
    except (BadAuth, NoetlError, ValueError):
        return outcome  # the task itself has failed for the same reason
    meta = {name: value for name, value in outcome.meta.items() if name != "columns"}
    if inputs or outputs:
        meta["lineage"] = {"inputs": inputs[:MAX_DATASETS], "outputs": outputs[:MAX_DATASETS]}
    return replace(outcome, meta=meta)


async def _transfer(call: ToolCall, outcome: Outcome) -> tuple[list[Dataset], list[Dataset]]:
    given = call.input
    fields = [{"name": str(name), "type": str(type)} for name, type in outcome.meta.get("columns", ())][:MAX_FIELDS]
    source = given.get("source")
    inputs: list[Dataset] = []
    if isinstance(source, Mapping):
        inputs = await _side(call, source)
    if len(inputs) == 1 and fields:
        inputs[0]["fields"] = fields
    targets = given.get("targets", given.get("target"))
    targets = [targets] if isinstance(targets, Mapping) else targets or []
    done = outcome.data.get("targets", []) if isinstance(outcome.data, Mapping) else []
    outputs: list[Dataset] = []
    for number, target in enumerate(targets):
        if not isinstance(target, Mapping):
            continue
        found = await _side(call, target)
        state = done[number] if number < len(done) else {}
        for each in found:
            if fields and not target.get("mapping") and "data" not in target:
                each["fields"] = fields
            if outcome.error is None and isinstance(state.get("rows"), int):
                each["rows"] = state["rows"]
        outputs += found
    return inputs, outputs


async def _side(call: ToolCall, side: Mapping[str, Any]) -> list[Dataset]:
    """The datasets of a source or target."""
    kind = str(side.get("kind") or side.get("type") or "").lower()
    if not kind:
        kind = (
            "http"
            if side.get("url") or side.get("endpoint")
            else "object"
            if side.get("path") or side.get("uri")
            else ""
        )
    if kind in ("", "data", "ref", "reference"):
        return []
    if kind in ("http", "https", "api", "webhook"):
        parts = urlsplit(str(side.get("url") or side.get("endpoint") or ""))
        return [_dataset(f"{parts.scheme}://{parts.hostname or ''}{_port(parts.port)}", parts.path or "/")]
    if side.get("table") or kind in SQL_KINDS:
        kind = {"postgresql": "postgres", "mariadb": "mysql"}.get(kind, kind)
        query = next((side[name] for name in ("query", "sql", "command", "statement") if side.get(name)), None)
        names = [str(side["table"])] if side.get("table") else list(_tables_in(str(query or ""), kind).reads)
        return await _tables(call, kind, side, names)
    if kind in ("sftp", "kafka"):
        credential = await _credential(call, side.get("auth"), kind)
        place = credential.get("servers") or f"{credential.get('host', '')}{_port(credential.get('port'))}"
        return [_dataset(f"{kind}://{place}", str(side.get("topic") or side.get("path") or ""))]
    if side.get("uri") or side.get("path") or side.get("file") or side.get("key"):
        return [await _located(call, side, kind)]
    return []


async def _sql(call: ToolCall) -> tuple[list[Dataset], list[Dataset]]:
    text = ";\n".join(_texts(next((call.input[name] for name in _COMMANDS if call.input.get(name)), None)))
    found = _tables_in(text, call.kind)
    kind = {"mariadb": "mysql"}.get(call.kind, call.kind)
    return await _tables(call, kind, call.input, found.reads), await _tables(call, kind, call.input, found.writes)


def _texts(command: Any) -> list[str]:
    if isinstance(command, str):
        return [command]
    if isinstance(command, Mapping):
        return _texts(next((command[name] for name in _COMMANDS if command.get(name)), None))
    return [text for item in command for text in _texts(item)] if isinstance(command, list | tuple) else []


async def _tables(call: ToolCall, kind: str, side: Mapping[str, Any], names: Any) -> list[Dataset]:
    if not names:
        return []
    if kind in ("duckdb", "sqlite"):
        file = next((side[name] for name in ("file", "database", "db_path", "db_file", "path") if side.get(name)), None)
        if not file or file == ":memory:":
            return []
        path = call.host.resolve_path(str(file))
        return [_dataset("file", f"{path}#{name}") for name in names]
    credential = {**await _credential(call, side.get("auth", side.get("credential")), kind), **_written(side)}
    host = credential.get("account") or credential.get("project") or credential.get("host") or side.get("driver") or ""
    port = credential.get("port") or (_PORTS.get(kind) if credential.get("host") else None)
    database = credential.get("database") or credential.get("dbname") or ""
    return [_dataset(f"{kind}://{host}{_port(port)}", _qualified(kind, str(database), name)) for name in names]


def _qualified(kind: str, database: str, name: str) -> str:
    """`database.schema.table`; a name without a schema is in that of the connection."""
    dots = name.count(".")
    if kind == "postgres" and dots == 0:
        name, dots = f"public.{name}", 1
    return f"{database}.{name}" if database and dots < (2 if kind in ("postgres", "snowflake") else 1) else name


def _written(side: Mapping[str, Any]) -> dict[str, Any]:
    return {name: side[name] for name in ("host", "port", "database") if side.get(name)}


async def _credential(call: ToolCall, auth: Any, kind: str) -> dict[str, Any]:
    """The fields of a connection, with those of its DSN."""
    fields = await fields_of(auth, call.host, prefixes=("db_", f"{kind}_", "pg_"))
    dsn = str(fields.get("dsn") or "")
    if "://" in dsn:
        parts = urlsplit(dsn)
        found = {"host": parts.hostname, "port": parts.port, "database": parts.path.strip("/") or None}
    else:
        words = dict(word.split("=", 1) for word in dsn.split() if "=" in word)
        found = {"host": words.get("host"), "port": words.get("port"), "database": words.get("dbname")}
    return {**{name: value for name, value in found.items() if value}, **fields}


async def _object(call: ToolCall) -> tuple[list[Dataset], list[Dataset]]:
    given = call.input
    action = str(given.get("action") or given.get("operation") or given.get("op") or "").removeprefix("object_")
    writes = any(given.get(name) is not None for name in ("data", "body", "content", "value", "rows", "ref"))
    action = action or ("put" if writes else "get")
    if action not in ("put", "write", "upload", "get", "read", "download"):
        return [], []
    place = await _located(call, given, call.kind)
    return ([], [place]) if action in ("put", "write", "upload") else ([place], [])


async def _located(call: ToolCall, side: Mapping[str, Any], kind: str) -> Dataset:
    """A file or object."""
    address = str(next((side[name] for name in ("uri", "url", "path", "file", "key", "address") if side.get(name)), ""))
    if "://" not in address:
        provider = _STORES.get(str(side.get("provider") or kind).lower())
        bucket = side.get("bucket") or side.get("container")
        if provider and not bucket:
            bucket = (await _credential(call, side.get("auth"), kind)).get("bucket")
        if not provider:
            return _dataset("file", call.host.resolve_path(f"{bucket}/{address}" if bucket else address))
        return _dataset(f"{provider}://{bucket or ''}", address.lstrip("/"))
    parts = urlsplit(address)
    if parts.scheme == "file":
        return _dataset("file", parts.path)
    return _dataset(
        f"{_STORES.get(parts.scheme, parts.scheme)}://{parts.netloc.rpartition('@')[2]}", parts.path.lstrip("/")
    )


def _tables_in(text: str, kind: str) -> Tables:
    from noetl.data.sql_tables import tables_of  # its patterns take a while to compile

    dialect: Any = {"mariadb": "mysql", "bigquery": "mysql"}.get(
        kind, kind if kind in ("postgres", "duckdb", "sqlite", "mysql") else "ansi"
    )
    return tables_of(text, dialect)


def _dataset(namespace: str, name: str) -> Dataset:
    return {"namespace": namespace, "name": name}


def _port(port: Any) -> str:
    return f":{port}" if port else ""
