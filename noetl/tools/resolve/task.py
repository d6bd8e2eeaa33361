"""What kind `resolve` does: fetch a payload or a part of it, or store one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from msgspec import DecodeError, to_builtins

from noetl.connections import objects
from noetl.connections.auth import fields_of
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.content import blocks_of, natural_format, reference_in
from noetl.data.formats import CONTENT_TYPES, format_of
from noetl.data.payload_reader import Part, PartNotFound, TooLarge, read_part
from noetl.data.table_files import encode_value
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.tools._common.fields import MOST_BYTES


async def perform(call: ToolCall) -> Outcome:
    """Fetch (or store) once."""
    try:
        async with asyncio.timeout(call.timeout.total):
            if str(_given(call, "action") or "get").lower() == "put":
                return await _put(call)
            return await _get(call)
    except PayloadUnavailable as failure:
        return error(failure.kind, str(failure))
    except StoreUnavailable as failure:
        return error(failure.kind, f"the store of the payload: {failure}")
    except SecretUnavailable as failure:
        return error(failure.kind, str(failure))
    except TooLarge as failure:
        return error("limit", str(failure))
    except PartNotFound as failure:
        return error("not_found", str(failure.args[0]))
    except (DecodeError, UnicodeDecodeError) as failure:
        return error("parse", f"the payload is not what its format says: {failure}")
    except TimeoutError:
        return error("timeout", f"the payload was not there after {call.timeout.total:g} s (spec.timeout)")
    except ValueError as wrong:
        return error("schema", str(wrong))


async def _get(call: ToolCall) -> Outcome:
    part = _part(call)
    address = _given(call, "uri")
    if address and not _given(call, "ref"):
        return await _get_address(call, str(address), part)
    reference = reference_of(_given(call, "ref"))
    format = format_of(given=_given(call, "format"), content_type=reference.meta.content_type)
    most = int(call.spec.get("max_bytes") or MOST_BYTES)
    data = await read_part(_Stored(call, reference), format, part, most=most, verify=_flag(_given(call, "verify")))
    call.host.progress(bytes=reference.meta.bytes)
    return Outcome(status="ok", data=data, meta={"ref": to_builtins(reference)})


def reference_of(value: Any) -> Reference:
    """The reference in a value: one as it is, or an output that has one."""
    if value in (None, "", {}):
        raise PayloadUnavailable("`ref` is empty: a small result travels inline and has no reference, read it by name")
    reference = reference_in(value)
    if reference is None:
        raise PayloadUnavailable(
            "`ref` is not a reference (with type, locator and meta): give it `output.ref` of a task"
        )
    return reference


class _Stored:
    """A stored payload as something to take parts of."""

    def __init__(self, call: ToolCall, reference: Reference) -> None:
        self._host = call.host
        self._reference = reference
        self.size = reference.meta.bytes

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self._host.open_result(self._reference):
            yield chunk

    async def read(self, start: int, count: int) -> bytes:
        return b"".join([chunk async for chunk in self._host.open_result(self._reference, offset=start, length=count)])


async def _get_address(call: ToolCall, address: str, part: Part) -> Outcome:
    place = objects.parse_location(address if "://" in address else call.host.resolve_path(address))
    fields = await fields_of(_given(call, "auth"), call.host, prefixes=objects.PREFIXES)
    store = objects.shared_store(place, fields, connect=call.timeout.connect, total=call.timeout.total)
    try:
        payload = await objects.payload_of(store, place.key)
        format = format_of(given=_given(call, "format"), content_type=payload.content_type, path=place.key)
        most = int(call.spec.get("max_bytes") or MOST_BYTES)
        data = await read_part(payload, format, part, most=most, verify=False, path=place.key)
    except objects.errors() as failure:
        info = objects.to_error_info(failure, address)
        return Outcome(status="error", error=info)
    return Outcome(status="ok", data=data)


async def _put(call: ToolCall) -> Outcome:
    data = _given(call, "data")
    address = _given(call, "uri")
    format = format_of(given=_given(call, "format"), path=str(address or ""), default=natural_format(data))
    content_type = str(_given(call, "content_type") or CONTENT_TYPES[format])
    encoded = encode_value(data, format)
    rows = len(data) if isinstance(data, list) else None
    if address:
        place = objects.parse_location(str(address) if "://" in str(address) else call.host.resolve_path(str(address)))
        fields = await fields_of(_given(call, "auth"), call.host, prefixes=objects.PREFIXES)
        store = objects.shared_store(place, fields, connect=call.timeout.connect, total=call.timeout.total)
        try:
            await objects.upload(store, place.key, blocks_of(encoded), content_type=content_type)
        except objects.errors() as failure:
            return Outcome(status="error", error=objects.to_error_info(failure, str(address)))
        return Outcome(status="ok", data={"uri": place.url, "bytes": len(encoded), "content_type": content_type})
    reference = await call.host.put_result(blocks_of(encoded), content_type=content_type, rows=rows)
    return Outcome(status="ok", ref=reference)


def _part(call: ToolCall) -> Part:
    select = _given(call, "select")
    if select is not None and not isinstance(select, str | list | tuple):
        raise ValueError("`select` is a dotted path or a list of columns")
    return Part(select or None, _count(call, "limit"), _count(call, "offset") or 0)


def _count(call: ToolCall, name: str) -> int | None:
    value = _given(call, name)
    if value in (None, ""):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ValueError(f"`{name}` is a number of rows from 0, not {value!r}")
    return number


def _given(call: ToolCall, name: str) -> Any:
    return call.input.get(name)


def _flag(value: Any) -> bool:
    return not (value is False or str(value).lower() == "false")
