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

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import msgspec

from noetl.connections.auth import BadAuth
from noetl.connections.auth import fields_of as auth_fields
from noetl.core.model.connector import (
    RowTarget,
    SourceCall,
    SourceSpec,
    TargetCall,
    TargetSpec,
    TriggerCall,
    TriggerSpec,
)
from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, Outcome, error, error_info, ok
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.remote import RemoteTask, Runtime
from noetl.core.model.tool import Field, FieldType, Host, Members, Timeout, ToolCall, ToolFunction, ToolSpec
from noetl.data.values import jsonable
from noetl.errors import NoetlError, PayloadUnavailable, SecretUnavailable, StoreUnavailable, WorkerLost

__all__ = [
    "ERROR_KINDS",
    "BadAuth",
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
    "auth_fields",
    "encode_task",
    "error",
    "error_info",
    "jsonable",
    "ok",
    "per_loop",
    "run_remote",
]

T = TypeVar("T")


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
    from noetl.worker.runtimes import run_remote as run

    return run(task, is_cancelled)


def encode_task(task: RemoteTask) -> bytes:
    """A task as bytes for `run_remote`."""
    return msgspec.json.encode(task)
