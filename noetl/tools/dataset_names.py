"""The names of the datasets of a task: tables, files, objects, topics and addresses, as in OpenLineage.

A dataset has a namespace and a name: `postgres://host:5432` and `database.schema.table`, `s3://bucket` and the key,
`file` and the path. It contains neither users nor passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from noetl.connections.auth import BadAuth, fields_of, renamed
from noetl.core.model.tool import ToolCall

if TYPE_CHECKING:
    from noetl.data.sql.sql_tables import Tables

SQL_KINDS = frozenset(
    {"postgres", "duckdb", "sqlite", "mysql", "mariadb", "clickhouse", "snowflake", "bigquery", "adbc"}
)
_STORES = {"s3": "s3", "gcs": "gs", "gs": "gs", "azure": "az", "az": "az"}
_FILES = frozenset({"object", "file", "delta", *_STORES})
_DATABASE_FILES = ("duckdb", "sqlite")
_WEB_PORTS = {"http": 80, "https": 443}  # not part of names
_DEFAULT_DATABASE = {"clickhouse": "default"}
_SEARCH_PATH = re.compile(r"set\s+(?:session\s+|local\s+)?search_path\s*(?:=|\bto\b)\s*(.+)", re.IGNORECASE | re.DOTALL)
_PORTS = {"postgres": 5432, "mysql": 3306, "mariadb": 3306, "clickhouse": 8123, "redis": 6379, "sftp": 22}

Dataset = dict[str, Any]


async def side_datasets(call: ToolCall, side: Mapping[str, Any]) -> list[Dataset]:
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
        return [dataset_of(_web_server(parts), parts.path or "/")] if parts.hostname else []
    if kind == "iceberg":
        return [_iceberg(call, side)]
    if side.get("table") or kind in SQL_KINDS:
        kind = {"postgresql": "postgres"}.get(kind, kind)
        if side.get("table"):
            from noetl.data.sql import split_name

            return await table_datasets(call, kind, side, [".".join(split_name(str(side["table"])))])
        query = query_of(side)
        found = tables_in(query, kind)
        tables = await database_datasets(call, kind, side, found, query)
        return [dataset for _, dataset in tables] + await file_datasets(call, found.files_read)
    if kind not in _FILES and not side.get("uri"):
        server = _servers(await _credential(call, side.get("auth"), kind), side, kind)
        names = ("topic", "name", "collection", "path", *(("key",) if kind == "redis" else ()))
        name = next((side[name] for name in names if side.get(name)), None)
        if server and name:
            return [dataset_of(f"{kind}://{server}", str(name))]
    places = ("uri", "path", "file", *(("key",) if kind in _FILES else ()))  # elsewhere it is the key of an upsert
    place = next((name for name in places if side.get(name)), None)
    return [await located(call, {**side, place: _folder_of(str(side[place]))}, kind)] if place else []


def query_of(side: Mapping[str, Any]) -> str:
    """The query of a source."""
    return str(next((side[name] for name in ("query", "sql", "command", "statement") if side.get(name)), ""))


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
    return dataset_of(f"iceberg://{place}", ".".join(filter(None, (named, str(side.get("table") or "")))))


async def file_datasets(call: ToolCall, files: Iterable[str]) -> list[Dataset]:
    """The datasets of files that SQL names; those of stores that are unknown here have none."""
    found = []
    for file in files:
        address = file.partition("?")[0] if "://" in file else file  # options of DuckDB, which may be keys
        with suppress(ValueError):
            found.append(await located(call, {"uri": _folder_of(address)}, "object"))
    return found


def _folder_of(path: str) -> str:
    """The folder of a pattern of files, whose parts may be written by another task; other paths are unchanged."""
    return path.partition("*")[0].rpartition("/")[0] if "*" in path else path


async def database_datasets(
    call: ToolCall, kind: str, side: Mapping[str, Any], found: Tables, text: str
) -> list[tuple[str, Dataset]]:
    """The datasets of the tables that statements read, with their names, also of databases that are attached."""
    attached = {**found.attached, **_attached(side)} if kind in _DATABASE_FILES else {}
    other = {
        name: place
        for name in found.reads
        if (place := attached.get(name.rpartition(".")[0].partition(".")[0].lower()))
    }
    own = [name for name in found.reads if name not in other]
    datasets = list(zip(own, await table_datasets(call, kind, side, own, text), strict=False))  # none in memory
    for name, (file, type) in other.items():
        type = type or ("postgres" if "=" in file else kind)
        database = {"auth": file} if type == "postgres" else {"file": file}
        if type in ("postgres", *_DATABASE_FILES):
            table = name.partition(".")[2]
            datasets += [(name, each) for each in await table_datasets(call, type, database, [table])]
    return datasets


def _attached(side: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The databases in `attach` of a task of DuckDB: name -> (file, type)."""
    given = side.get("attach")
    if isinstance(given, list | tuple):
        given = {str(each.get("name") or each.get("alias")): each for each in given if isinstance(each, Mapping)}
    found = {}
    for name, each in given.items() if isinstance(given, Mapping) else ():
        options = each if isinstance(each, Mapping) else {"file": each}
        file = options.get("file") or options.get("path") or options.get("database")
        found[str(name).lower()] = (str(file or ":memory:"), str(options.get("type") or "").lower())
    return found


async def table_datasets(
    call: ToolCall, kind: str, side: Mapping[str, Any], names: Iterable[str], text: str = ""
) -> list[Dataset]:
    """The datasets of tables; `text` are the statements, which may begin with the schema of the others."""
    if not names:
        return []
    kind = {"mariadb": "mysql"}.get(kind, kind)
    if kind in _DATABASE_FILES:
        file = next((side[name] for name in ("file", "database", "db_path", "db_file", "path") if side.get(name)), None)
        if not file or file == ":memory:":
            return []
        place = await _database_file(call, str(file))
        return [dataset_of(place["namespace"], f"{place['name']}#{_in_file(name, str(file))}") for name in names]
    credential = await _credential(call, side.get("auth", side.get("credential")), kind, _written(side))
    host = credential.get("account") or credential.get("project")
    server = str(host) if host else _servers(credential, {}, kind) or str(side.get("driver") or "")
    database, schema = (str(credential.get(name) or "") for name in ("database", "schema"))
    schema = schema or str(credential.get("dataset") or "")
    if kind == "postgres":
        schema = _schema(text, str(credential.get("options") or ""))
    database = database or _DEFAULT_DATABASE.get(kind, "")
    namespace = f"{kind}://{server}"
    if kind == "bigquery":  # the project is part of the name
        namespace, database = kind, server
    return [dataset_of(namespace, _qualified(kind, database, schema, name)) for name in names]


def _in_file(name: str, file: str) -> str:
    """A table of DuckDB or SQLite without the names of the database and of the default schema."""
    stem = file.rpartition("/")[2].partition(".")[0]
    return name.removeprefix(f"{stem}.main.").removeprefix("main.")


def _schema(text: str, options: str) -> str:
    """The schema of PostgreSQL for names without one, if the first statements or the options set `search_path`."""
    from noetl.data.sql.sql_statements import split

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
        return dataset_of("file", str(call.host.resolve_path(file)))
    if scheme[2]:
        return await located(call, {"uri": file}, "duckdb")
    name = file[scheme.end() :].partition("?")[0]
    if scheme[1] == "file":
        return dataset_of("file", str(call.host.resolve_path(name)))
    return dataset_of(scheme[1], name)


def _qualified(kind: str, database: str, schema: str, name: str) -> str:
    """`database.schema.table`; a name without a schema is in that of the connection."""
    dots = name.count(".")
    has_schemas = kind in ("postgres", "snowflake", "bigquery")
    if dots == 0 and schema and has_schemas:
        name, dots = f"{schema}.{name}", 1
    return f"{database}.{name}" if database and dots < (2 if has_schemas else 1) else name


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


async def located(call: ToolCall, side: Mapping[str, Any], kind: str) -> Dataset:
    """A file or object."""
    from noetl.connections.objects import config_of, parse_location

    address = str(next((side[name] for name in ("uri", "url", "path", "file", "key", "address") if side.get(name)), ""))
    address = re.sub(r"^(\w+://)[^/@]*:[^/@]*@", r"\1", address)  # without user and password
    if kind == "azure":
        address = re.sub(r"\?.*\bsig=.*", "", address)  # the token of a signed address
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.netloc:
        return dataset_of(_web_server(parts), parts.path.lstrip("/"))
    provider = _STORES.get(str(side.get("provider") or kind).lower())
    bucket = side.get("bucket") or side.get("container")
    if "://" not in address and provider and not bucket:
        bucket = (await _credential(call, side.get("auth"), kind)).get("bucket")
    place = parse_location(address, scheme=provider, bucket=str(bucket) if bucket else None)
    if place.scheme == "az" and not place.account:
        place = place._replace(
            account=config_of(place, await _credential(call, side.get("auth"), kind)).get("account_name")
        )
    if place.scheme == "file":
        return dataset_of("file", str(call.host.resolve_path(f"{place.bucket}/{place.key}")))
    key = place.key.rstrip("/") if kind == "delta" else place.key  # a table is a folder
    if place.account:
        return dataset_of(f"abfss://{place.bucket}@{place.account}.dfs.core.windows.net", key or "/")
    return dataset_of(f"{_STORES.get(place.scheme, place.scheme)}://{place.bucket}", key or "/")


def tables_in(text: str, kind: str) -> Tables:
    """What statements of a kind of database read and write."""
    from noetl.data.sql.sql_tables import tables_of  # its patterns take a while to compile

    return tables_of(text, dialect_of(kind))


def dialect_of(kind: str) -> Any:
    """The dialect of SQL of a kind of database."""
    known = ("postgres", "duckdb", "sqlite", "mysql")
    return {"mariadb": "mysql", "bigquery": "mysql"}.get(kind, kind if kind in known else "ansi")


def dataset_of(namespace: str, name: str) -> Dataset:
    """A dataset."""
    return {"namespace": namespace, "name": name}
