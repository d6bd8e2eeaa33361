"""The plug-in SDK: everything that a tool kind in a package of its own imports.

    from noetl.tool import Field, Outcome, ToolCall, ToolSpec, error, ok

    SPEC = ToolSpec(kind="greet", doc="Says hello.", fields={"who": Field("string", "The name.", required=True)})

    async def run(call: ToolCall) -> Outcome:
        return ok({"said": f"hello {call.input['who']}"})

A plug-in imports this module and nothing else of `noetl` (its tests import `noetl.testing` too). The names listed in
`__all__` follow semantic versioning: docs/reference/stability.md. Importing this module is cheap, because a plug-in
is imported by every command that needs to know its parameters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import structs

from noetl.connections.auth import BadAuth
from noetl.connections.auth import fields_of as auth_fields
from noetl.connections.server_fields import flag, port_number, server_fields, tls_context
from noetl.core.model.connector import (
    ConnectorError,
    Explain,
    RowTarget,
    SourceCall,
    SourceSpec,
    SqlResult,
    SqlSession,
    TargetCall,
    TargetSpec,
    TriggerCall,
    TriggerSpec,
)
from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, Outcome, error, error_info, ok
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import (
    Field,
    FieldType,
    Host,
    Members,
    RemoteTask,
    Runtime,
    Timeout,
    ToolCall,
    ToolFunction,
    ToolSpec,
    count,
)
from noetl.data.values import jsonable
from noetl.errors import NoetlError, PayloadUnavailable, SecretUnavailable, StoreUnavailable, WorkerLost
from noetl.tools._common.sql_fields import COMMAND, PARAMS, SCRIPT, SPEC_FIELDS, SPEC_KEYS

__all__ = [
    "ERROR_KINDS",
    "SQL_FIELDS",
    "SQL_OPTIONS",
    "SQL_OPTION_FIELDS",
    "SQL_SOURCE_FIELDS",
    "BadAuth",
    "ConnectorError",
    "ErrorInfo",
    "Field",
    "FieldType",
    "Host",
    "NoetlError",
    "Members",
    "Outcome",
    "PayloadUnavailable",
    "Reference",
    "ReferenceMeta",
    "RemoteTask",
    "Runtime",
    "RowTarget",
    "SecretUnavailable",
    "SourceCall",
    "SourceSpec",
    "SqlResult",
    "SqlSession",
    "StoreUnavailable",
    "TargetCall",
    "TargetSpec",
    "Timeout",
    "ToolCall",
    "ToolFunction",
    "ToolSpec",
    "TriggerCall",
    "TriggerSpec",
    "WorkerLost",
    "auth_field",
    "auth_fields",
    "encode_task",
    "bind_sql",
    "count",
    "decompress_file",
    "error",
    "error_info",
    "file_compression",
    "file_format",
    "flag",
    "jsonable",
    "lazy",
    "mixed_as_text",
    "ok",
    "per_loop",
    "port_field",
    "port_number",
    "read_table",
    "reference_in",
    "run_remote",
    "run_sql",
    "server_fields",
    "table_encoder",
    "tls_context",
]

T = TypeVar("T")

_PORT = count("A number from 1 to 65535.", most=65535)
_STATEMENT = ("sql", "statement")
# What the SQL kinds of plug-ins have in common (`run_sql`): fields, one of `command` and `script` is required; options
# and the values that they accept.
SQL_FIELDS = {
    "command": COMMAND,
    "script": SCRIPT,
    "params": structs.replace(PARAMS, doc=PARAMS.doc.replace("`%s` or", "`%s`, `?` or")),
}
SQL_OPTIONS = {"timeout": "`connect` and `total` seconds; a statement that runs longer is cancelled.", **SPEC_KEYS}
SQL_OPTION_FIELDS = SPEC_FIELDS
# Fields of a source that is a query or a table: one of the two is required.
SQL_SOURCE_FIELDS = {
    "query": Field("string", "The query.", aliases=(*_STATEMENT, "command")),
    "table": Field("string", "The table, instead of a query."),
    "params": Field("any", "Parameters of the query.", aliases=("parameters",), accepts=("mapping", "list")),
}


def auth_field(doc: str, *, required: bool = True) -> Field:
    """The field `auth` (or `credential`): the connection, by a credential's name, a URL or a mapping."""
    return Field(
        "any",
        doc,
        required=required,
        aliases=("credential",),
        accepts=("string", "mapping"),
        members=Members({"port": _PORT}, open=True),
    )


def port_field(default: int) -> Field:
    """The field `port` of a server."""
    return structs.replace(_PORT, doc=f"Port ({default}).")


def lazy(path: str) -> Callable[..., Any]:
    """The function or class `module:name`, imported when it is called: importing a declaration stays cheap."""
    module, _, name = path.partition(":")

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*args, **options)

    return call


def per_loop(key: Hashable, make: Callable[[], T]) -> T:
    """Return the object stored under `key` for the running event loop; the first call creates it with `make`.

    Use it for connections, pools and sessions that calls share. When the worker stops, it calls the object's
    `close()`, which may be a coroutine function."""
    from noetl.runtime.resources import per_loop as stored  # imports asyncio

    return stored(key, make)


def run_remote(task: bytes, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Execute a task that a `Runtime` was given (encoded with `encode_task`) in this process of the cluster.

    Yields messages for the worker: an empty one, printed lines, at last the outcome. Closing the generator cancels the
    task; `is_cancelled` is called several times a second, for clusters that cannot interrupt a task."""
    from noetl.tools._common.remote import run_remote as run  # imports asyncio

    return run(task, is_cancelled)


def encode_task(task: RemoteTask) -> bytes:
    """A task as bytes for `run_remote`."""
    return msgspec.json.encode(task)


def bind_sql(statement: str, params: Any, dialect: Literal["mysql", "ansi"] = "ansi") -> tuple[str, list[Any]]:
    """The statement with the driver's placeholders (`?`; `%s` for `mysql`), and their values in order.

    Parameters are written `%(name)s`, `:name`, `%s`, `?` or `$1`; ValueError if they do not fit to `params`, or if the
    text is not one statement."""
    from noetl.data.sql import bind
    from noetl.data.sql.sql_statements import split

    statements = split(statement, dialect)
    if len(statements) != 1:
        raise ConnectorError(f"`query` must be one statement, not {len(statements)}")
    bound = bind(statements[0], params, dialect)
    return bound.text, bound.values


def file_format(path: str, given: Any = None, default: str = "bytes") -> str:
    """The format of a file (`parquet arrow csv json jsonl text bytes`): given, else by the ending of its name."""
    from noetl.data.files.formats import format_of

    return format_of(given=given, path=path, default=default)


def file_compression(path: str, format: str) -> str | None:
    """How a file is compressed by its extension: `gzip zstd bz2 xz`, None if it is not; ValueError if it cannot be."""
    from noetl.data.files.compression import compression_of

    return compression_of(None, path, format)


def decompress_file(source: str, target: str, compression: str) -> None:
    """Decompress a local file into another; ValueError if it is not compressed in this way."""
    from noetl.data.files.compression import decompress_file as decompress

    decompress(source, target, compression)


def read_table(path: str, format: str, *, rows_path: str | None = None, types: Any = None) -> AsyncGenerator[Any, None]:
    """The rows of a local file (or of several: `*.csv`) as Arrow batches, with bounded memory."""
    from noetl.tools.transfer.sources.file_source import Files, file_batches

    return file_batches(Files(path, format, {}), rows_path, types)


def table_encoder(format: str, schema: Any, path: str = "") -> Any:
    """Encodes Arrow batches as the bytes of a file: `write(batch)` and `close()` return bytes.

    The extension of `path` says whether the file is compressed (`.gz`), and whether it has tabs (`.tsv`)."""
    from noetl.data.files.table_files import encoder_for

    return encoder_for(format, schema, path)


def mixed_as_text(table: Any, is_json: Callable[[str], bool] = lambda name: False) -> Any:
    """The Arrow table with columns of texts beside other values, which are JSON, as text, except where `is_json`."""
    from noetl.tools.transfer.targets.mixed_columns import mixed_as_text as converted

    return converted(table, is_json)


def reference_in(value: Any) -> Reference | None:
    """The reference that a value is, as a playbook passes it on; None for other values."""
    from noetl.data.content import reference_in as found

    return found(value)


async def run_sql(
    call: ToolCall,
    connect: Callable[[ToolCall], AbstractAsyncContextManager[SqlSession]],
    explain: Explain,
    dialect: Literal["mysql", "ansi"] = "ansi",
) -> Outcome:
    """Run a SQL kind: the statements of `command` (or `script`) with `params` on the session of `connect`.

    Parameters, transactions, several statements and large results work as in kind `postgres`. Placeholders are `?`
    (dialect `ansi`) or `%s` (dialect `mysql`). `explain` maps exceptions of the driver to errors."""
    from noetl.tools._common.sql_kind import run_sql as run  # imports asyncio

    return await run(call, connect, explain, dialect)
