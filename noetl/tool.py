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

from collections.abc import Callable, Hashable
from typing import TypeVar

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
from noetl.core.model.tool import Field, FieldType, Host, Members, Timeout, ToolCall, ToolFunction, ToolSpec
from noetl.data.values import jsonable
from noetl.errors import NoetlError, PayloadUnavailable, SecretUnavailable, StoreUnavailable

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
    "auth_fields",
    "error",
    "error_info",
    "jsonable",
    "ok",
    "per_loop",
]

T = TypeVar("T")


def per_loop(key: Hashable, make: Callable[[], T]) -> T:
    """Return the object stored under `key` for the running event loop; the first call creates it with `make`.

    Use it for connections, pools and sessions that calls share. When the worker stops, it calls the object's
    `close()`, which may be a coroutine function."""
    from noetl.runtime.resources import per_loop as stored  # imports asyncio

    return stored(key, make)
