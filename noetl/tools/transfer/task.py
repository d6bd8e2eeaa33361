"""Runs kind `transfer` and maps exceptions of sources and targets to errors."""

from __future__ import annotations

import asyncio
import sqlite3

import duckdb
import msgspec
import pyarrow as pa

from noetl.connections import duckdb as duck
from noetl.connections import objects
from noetl.connections import sqlite as lite
from noetl.connections.auth import BadAuth
from noetl.core.model.connector import ConnectorError
from noetl.core.model.outcome import ErrorInfo, Outcome, error, error_info, ok
from noetl.core.model.tool import ToolCall
from noetl.data.sql import ParameterError
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable, TemplateError
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.engine import Transfer, TransferFailed
from noetl.tools.transfer.failures import ExplainedError
from noetl.tools.transfer.quarantine.bad_rows_plan import with_bad_rows
from noetl.tools.transfer.transfer_plan import read_plan


async def run(call: ToolCall) -> Outcome:
    """Copy the rows and return a summary."""
    transfer: Transfer | None = None
    try:
        async with asyncio.timeout(call.timeout.total):
            transfer = Transfer(call, with_bad_rows(call, read_plan(call)), explain)
            summary = await transfer.run()
            outcome = ok(summary, meta={"datasets": transfer.datasets()})
            return msgspec.structs.replace(outcome, state=transfer.state)
    except TransferFailed as failure:
        info = failure.info
        message = info.message if info.message.startswith(failure.where) else f"{failure.where}: {info.message}"
        info = msgspec.structs.replace(info, message=message)
        return Outcome(status="error", data=failure.summary, error=info)
    except BadInput as wrong:
        return error("schema", str(wrong))
    except TimeoutError:
        written = transfer.summary(done=False) if transfer else None
        return error("timeout", f"the transfer was stopped after {call.timeout.total:g} s (spec.timeout)", data=written)


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of a source or target; None for an internal error."""
    if isinstance(failure, BadInput | BadAuth | ParameterError | ConnectorError):
        return error_info("schema", str(failure))
    if isinstance(failure, ExplainedError):
        return failure.info
    if isinstance(failure, PayloadUnavailable | StoreUnavailable | SecretUnavailable):
        return error_info(failure.kind, str(failure))
    if isinstance(failure, TemplateError):
        return error_info("template", failure.message)
    if isinstance(failure, duckdb.Error):
        return duck.to_error_info(failure)
    if isinstance(failure, sqlite3.Error):
        return lite.to_error_info(failure)
    if type(failure).__module__.partition(".")[0] in ("psycopg", "asyncpg", "adbc_driver_manager"):
        from noetl.connections.postgres import to_error_info as explain_postgres

        return explain_postgres(failure)[0]
    if isinstance(failure, UnicodeEncodeError):
        return error_info("schema", f"a name or text is not valid Unicode (a lone surrogate): {failure.object!a}")
    if type(failure).__name__ == "BadAddress":
        return error_info("schema", str(failure))
    if isinstance(failure, msgspec.DecodeError | UnicodeDecodeError | pa.ArrowInvalid):
        return error_info("parse", f"the rows do not match their format: {failure}")
    if isinstance(failure, objects.errors()):
        return objects.to_error_info(failure, getattr(failure, "filename", None) or "the store")
    return None
