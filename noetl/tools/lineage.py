"""The datasets that a task has read and written, for the lineage of data.

The record is part of the outcome's `meta` (`lineage: {inputs, outputs}`) and so of the event log. A dataset has a
namespace and a name as in OpenLineage: `postgres://host:5432` and `database.schema.table`, `s3://bucket` and the key,
`file` and the path. It contains neither users nor passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec.structs import replace

from noetl.connections.auth import BadAuth, fields_of, renamed
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
_FILES = frozenset({"object", "file", "delta", *_STORES})
_WRITING = frozenset({"insert", "replace", "update", "merge", "copy"})  # their row count is that of rows written
_WEB_PORTS = {"http": 80, "https": 443}  # not part of names
_DEFAULT_DATABASE = {"clickhouse": "default"}
_SEARCH_PATH = re.compile(r"set\s+(?:session\s+|local\s+)?search_path\s*(?:=|\bto\b)\s*(.+)", re.IGNORECASE | re.DOTALL)
_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306, "clickhouse": 8123, "redis": 6379, "sftp": 22}

Dataset = dict[str, Any]


async def with_lineage(call: ToolCall, outcome: Outcome) -> Outcome:
    """The outcome with the datasets of the task in its `meta`."""
    try:
        if call.kind == "transfer":
            inputs, outputs = await _transfer(call, outcome)
        elif call.kind in SQL_KINDS:
            inputs, outputs = await _sql(call, outcome)
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
        return [_dataset(_web_server(parts), parts.path or "/")] if parts.hostname else []
    if kind == "iceberg":
        return [_iceberg(call, side)]
    if side.get("table") or kind in SQL_KINDS:
        kind = {"postgresql": "postgres", "mariadb": "mysql"}.get(kind, kind)
        query = next((side[name] for name in ("query", "sql", "command", "statement") if side.get(name)), None)
        if side.get("table"):
            from noetl.data.sql import split_name

            return await _tables(call, kind, side, [".".join(split_name(str(side["table"])))])
        return await _tables(call, kind, side, _tables_in(str(query or ""), kind).reads, str(query or ""))
    if kind not in _FILES and not side.get("uri"):
        server = _servers(await _credential(call, side.get("auth"), kind), side, kind)
        names = ("topic", "name", "collection", "path", *(("key",) if kind == "redis" else ()))
        name = next((side[name] for name in names if side.get(name)), None)
        if server and name:
            return [_dataset(f"{kind}://{server}", str(name))]
    places = ("uri", "path", "file", *(("key",) if kind in _FILES else ()))  # elsewhere it is the key of an upsert
    return [await _located(call, side, kind)] if any(side.get(name) for name in places) else []


def _iceberg(call: ToolCall, side: Mapping[str, Any]) -> Dataset:
    """A table of a catalog, which has an address or (Glue) a name; several warehouses may have one catalog."""
    given = side.get("catalog")
    catalog = given if isinstance(given, Mapping) else {}
    parts = urlsplit(str(catalog.get("uri") or ""))
    if parts.scheme.startswith("sqlite"):
        place = str(call.host.resolve_path(parts.path.removeprefix("/")))
    else:
        place = _server(parts.hostname, parts.port) + parts.path.rstrip("/")
    place = place or f"{catalog.get('type', '')}/{catalog.get('name', 'default')}"
    warehouse = str(catalog.get("warehouse") or "")
    named = warehouse if catalog.get("type") == "rest" and re.fullmatch(r"[\w.-]+", warehouse) else ""
    return _dataset(f"iceberg://{place}", ".".join(filter(None, (named, str(side.get("table") or "")))))


async def _sql(call: ToolCall, outcome: Outcome) -> tuple[list[Dataset], list[Dataset]]:
    text = ";\n".join(_texts(next((call.input[name] for name in _COMMANDS if call.input.get(name)), None)))
    found = _tables_in(text, call.kind)
    kind = {"mariadb": "mysql"}.get(call.kind, call.kind)
    inputs = await _tables(call, kind, call.input, found.reads, text)
    outputs = await _tables(call, kind, call.input, found.writes, text)
    written = _written_rows(text, kind, outcome)
    for name, dataset in zip(found.writes, outputs, strict=False):  # a database in memory has no datasets
        if name in written:
            dataset["rows"] = written[name]
    return inputs, outputs


def _written_rows(text: str, kind: str, outcome: Outcome) -> dict[str, int]:
    """The rows that statements have written, by table, if the result has one part for each statement."""
    from noetl.data.sql import first_word
    from noetl.data.sql_statements import split

    results = {**outcome.extracts, **(outcome.data if isinstance(outcome.data, Mapping) else {})}
    statements = split(text, _dialect(kind))
    if outcome.error is not None or f"command_{len(statements)}" in results:
        return {}
    written: dict[str, int] = {}
    for number, statement in enumerate(statements):
        part = results.get(f"command_{number}")
        names = _tables_in(statement, kind).writes
        count = part.get("row_count") if isinstance(part, Mapping) else None
        word = first_word(statement)
        if isinstance(count, int) and len(names) == 1 and (word in _WRITING or (word == "create" and count > 0)):
            written[names[0]] = written.get(names[0], 0) + count
    return written


def _texts(command: Any) -> list[str]:
    if isinstance(command, str):
        return [command]
    if isinstance(command, Mapping):
        return _texts(next((command[name] for name in _COMMANDS if command.get(name)), None))
    return [text for item in command for text in _texts(item)] if isinstance(command, list | tuple) else []


async def _tables(call: ToolCall, kind: str, side: Mapping[str, Any], names: Any, text: str = "") -> list[Dataset]:
    """The datasets of tables; `text` are the statements, which may begin with the schema of the others."""
    if not names:
        return []
    if kind in ("duckdb", "sqlite"):
        file = next((side[name] for name in ("file", "database", "db_path", "db_file", "path") if side.get(name)), None)
        if not file or file == ":memory:":
            return []
        place = await _database_file(call, str(file))
        return [_dataset(place["namespace"], f"{place['name']}#{_in_file(name, str(file))}") for name in names]
    credential = await _credential(call, side.get("auth", side.get("credential")), kind, _written(side))
    host = credential.get("account") or credential.get("project")
    server = str(host) if host else _servers(credential, {}, kind) or str(side.get("driver") or "")
    database, schema = (str(credential.get(name) or "") for name in ("database", "schema"))
    schema = schema or str(credential.get("dataset") or "")
    if kind == "postgres":
        schema = _schema(text, str(credential.get("options") or ""))
    database = database or _DEFAULT_DATABASE.get(kind, "")
    if kind == "bigquery":
        names = [name.removeprefix(f"{server}.") for name in names]
    return [_dataset(f"{kind}://{server}", _qualified(kind, database, schema, name)) for name in names]


def _in_file(name: str, file: str) -> str:
    """A table of DuckDB or SQLite without the names of the database and of the default schema."""
    stem = file.rpartition("/")[2].partition(".")[0]
    return name.removeprefix(f"{stem}.main.").removeprefix("main.")


def _schema(text: str, options: str) -> str:
    """The schema of PostgreSQL for names without one, if the first statements or the options set `search_path`."""
    from noetl.data.sql_statements import split

    given = re.search(r"(?:-c\s*|--)search_path=(\S+)", options)
    path = given[1] if given else ""
    for statement in split(text):
        found = _SEARCH_PATH.match(statement)
        path = found[1] if found else path
        if not re.match(r"(set|begin|start)\b", statement, re.IGNORECASE):
            break
    names = (name.strip().strip("\"'") for name in path.split(","))
    return next((name for name in names if name and name != "$user"), "public")


async def _database_file(call: ToolCall, file: str) -> Dataset:
    """The file of a database; a remote one (`s3://`, `md:`) without its options, which may be a token."""
    scheme = re.match(r"([A-Za-z][\w+.-]+):(//)?", file)
    if scheme is None:
        return _dataset("file", str(call.host.resolve_path(file)))
    if scheme[2]:
        return await _located(call, {"uri": file}, "duckdb")
    name = file[scheme.end() :].partition("?")[0]
    if scheme[1] == "file":
        return _dataset("file", str(call.host.resolve_path(name)))
    return _dataset(scheme[1], name)


def _qualified(kind: str, database: str, schema: str, name: str) -> str:
    """`database.schema.table`; a name without a schema is in that of the connection."""
    dots = name.count(".")
    schema = schema if kind in ("postgres", "snowflake", "bigquery") else ""
    if dots == 0 and schema:
        name, dots = f"{schema}.{name}", 1
    return f"{database}.{name}" if database and dots < (2 if kind in ("postgres", "snowflake") else 1) else name


def _written(side: Mapping[str, Any]) -> dict[str, Any]:
    return {name: side[name] for name in ("dsn", "host", "port", "database") if side.get(name)}


async def _credential(call: ToolCall, auth: Any, kind: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a connection, with those of its DSN."""
    fields = {**await fields_of(auth, call.host, prefixes=("db_", f"{kind}_", "pg_")), **(more or {})}
    if kind == "postgres":
        from psycopg.conninfo import conninfo_to_dict

        from noetl.connections.postgres import conninfo

        options = conninfo_to_dict(conninfo(fields))
        return {**options, "database": _plain(str(options.get("dbname") or options.get("user") or ""))}
    dsn = str(fields.get("dsn") or "")
    found: dict[str, Any] = {}
    if "://" in dsn and kind != "kafka":
        parts = urlsplit(dsn)
        _plain(parts.path + parts.query + parts.fragment)
        found = {"host": parts.hostname, "port": parts.port, "database": unquote(parts.path.strip("/")) or None}
    known = renamed(fields, {"database": ("database", "dbname", "db", "name")})
    return {**{name: value for name, value in found.items() if value}, **fields, **known}


def _plain(text: str) -> str:
    """A part of a DSN after its host; BadAuth if it is a part of a password with characters that are not escaped."""
    if "@" in text:
        raise BadAuth("the DSN has `@` after its host: escape the characters of the password")
    return text


def _servers(credential: Mapping[str, Any], side: Mapping[str, Any], kind: str) -> str:
    """The servers of a connection, without users and passwords."""
    named = [fields.get(name) for fields in (side, credential) for name in ("servers", "bootstrap_servers", "brokers")]
    servers = next(filter(None, named), credential.get("dsn") if kind == "kafka" else None)
    if servers:
        each = servers if isinstance(servers, list | tuple) else str(servers).split(",")
        return ",".join(
            sorted(str(server).strip().rpartition("://")[2].rpartition("@")[2].rstrip("/").lower() for server in each)
        )
    hosts = str(credential.get("host") or credential.get("hostaddr") or "").split(",")
    ports = str(credential.get("port") or _PORTS.get(kind) or "").split(",")
    return ",".join(_server(host, ports[min(number, len(ports) - 1)]) for number, host in enumerate(hosts))


def _server(host: Any, port: Any) -> str:
    name = str(host or "").rpartition("@")[2]
    name = name if name.startswith("/") else name.lower().rstrip(".")  # a folder with a socket, or a host
    name = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
    return f"{name}:{port}" if name and port else name


def _web_server(parts: SplitResult) -> str:
    port = None if parts.port == _WEB_PORTS.get(parts.scheme) else parts.port
    return f"{parts.scheme}://{_server(parts.hostname, port)}"


async def _object(call: ToolCall) -> tuple[list[Dataset], list[Dataset]]:
    given = call.input
    action = str(given.get("action") or given.get("operation") or given.get("op") or "").removeprefix("object_")
    writes = any(given.get(name) is not None for name in ("data", "body", "content", "value", "rows", "ref"))
    action = action or ("put" if writes else "get")
    if action not in ("put", "write", "upload", "get", "read", "download", "copy", "move", "rename"):
        return [], []
    place = await _located(call, given, call.kind)
    if action in ("copy", "move", "rename"):
        return [place], [await _copied(call, place)]
    return ([], [place]) if action in ("put", "write", "upload") else ([place], [])


async def _copied(call: ToolCall, place: Dataset) -> Dataset:
    """Where an object is copied to: an address, or a key in its bucket; one that ends with `/` keeps the name."""
    to = str(next((call.input[name] for name in ("to", "target", "destination") if call.input.get(name)), ""))
    if to.endswith("/"):
        to += place["name"].rpartition("/")[2]
    if "://" in to or place["namespace"] == "file":
        return await _located(call, {"uri": to}, "object")
    return _dataset(place["namespace"], to.lstrip("/"))


async def _located(call: ToolCall, side: Mapping[str, Any], kind: str) -> Dataset:
    """A file or object."""
    from noetl.connections.objects import parse_location

    address = str(next((side[name] for name in ("uri", "url", "path", "file", "key", "address") if side.get(name)), ""))
    address = re.sub(r"^(\w+://)[^/@]*:[^/@]*@", r"\1", address)  # without user and password
    if kind == "azure":
        address = re.sub(r"\?.*\bsig=.*", "", address)  # the token of a signed address
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.netloc:
        return _dataset(_web_server(parts), parts.path.lstrip("/"))
    provider = _STORES.get(str(side.get("provider") or kind).lower())
    bucket = side.get("bucket") or side.get("container")
    if "://" not in address and provider and not bucket:
        bucket = (await _credential(call, side.get("auth"), kind)).get("bucket")
    place = parse_location(address, scheme=provider, bucket=str(bucket) if bucket else None)
    if place.scheme == "file":
        return _dataset("file", str(call.host.resolve_path(f"{place.bucket}/{place.key}")))
    key = place.key.rstrip("/") if kind == "delta" else place.key  # a table is a folder
    return _dataset(f"{_STORES.get(place.scheme, place.scheme)}://{place.bucket}", key)


def _tables_in(text: str, kind: str) -> Tables:
    from noetl.data.sql_tables import tables_of  # its patterns take a while to compile

    return tables_of(text, _dialect(kind))


def _dialect(kind: str) -> Any:
    known = ("postgres", "duckdb", "sqlite", "mysql")
    return {"mariadb": "mysql", "bigquery": "mysql"}.get(kind, kind if kind in known else "ansi")


def _dataset(namespace: str, name: str) -> Dataset:
    return {"namespace": namespace, "name": name}
