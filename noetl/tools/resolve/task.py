"""Fetches a payload or a part of it, or stores one, for kind `resolve`."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import to_builtins

from noetl.connections import objects
from noetl.connections.auth import fields_of
from noetl.core.model.outcome import Outcome, error
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.content import blocks_of, natural_format, reference_in
from noetl.data.files.formats import CONTENT_TYPES, format_of
from noetl.data.files.table_files import encode_value
from noetl.data.payload_reader import Part, StoredPayload, read_part
from noetl.errors import PayloadUnavailable
from noetl.tools._common.payload_task import explain, read_part_fields
from noetl.tools.resolve.spec import MAX_BYTES


async def run(call: ToolCall) -> Outcome:
    """Fetch or store one payload."""
    put = str(call.input.get("action") or "get").lower() == "put"
    try:
        async with asyncio.timeout(call.timeout.total):
            return await (_put(call) if put else _get(call))
    except TimeoutError:
        return error("timeout", f"the payload was not read within {call.timeout.total:g} s (spec.timeout)")
    except Exception as failure:
        info = explain(failure, "the payload")
        if info is not None:
            return Outcome(status="error", error=info)
        if isinstance(failure, ValueError):
            return error("schema", str(failure))
        raise


async def _get(call: ToolCall) -> Outcome:
    fields = call.input
    part = read_part_fields(fields)
    address = fields.get("uri")
    if address and not fields.get("ref"):
        return await _get_address(call, str(address), part)
    reference = parse_reference(fields.get("ref"))
    format = format_of(given=fields.get("format"), content_type=reference.meta.content_type)
    verify = str(fields.get("verify")).lower() != "false"
    data = await read_part(
        StoredPayload(reference, call.host.open_result), format, part, most=_max_bytes(call), verify=verify
    )
    call.host.progress(bytes=reference.meta.bytes)
    return Outcome(status="ok", data=data, meta={"ref": to_builtins(reference)})


def parse_reference(value: Any) -> Reference:
    """The reference in a value: the value itself, or the `ref` of an output."""
    if value in (None, "", {}):
        raise PayloadUnavailable(
            "`ref` is empty: a small result is stored inline and has no reference; read it by name"
        )
    reference = reference_in(value)
    if reference is None:
        raise PayloadUnavailable("`ref` is not a reference (with type, locator and meta): use `output.ref` of a task")
    return reference


def _max_bytes(call: ToolCall) -> int:
    return int(call.spec.get("max_bytes") or MAX_BYTES)


async def _open_store(call: ToolCall, address: str) -> tuple[Any, objects.ObjectLocation]:
    place = objects.parse_location(address if "://" in address else call.host.resolve_path(address))
    fields = await fields_of(call.input.get("auth"), call.host, prefixes=objects.PREFIXES)
    return await objects.checked_store(place, fields, call.host.address_check, call.timeout), place


async def _get_address(call: ToolCall, address: str, part: Part) -> Outcome:
    store, place = await _open_store(call, address)
    try:
        payload = await objects.payload_of(store, place.key)
        format = format_of(given=call.input.get("format"), content_type=payload.content_type, path=place.key)
        data = await read_part(payload, format, part, most=_max_bytes(call), verify=False, path=place.key)
    except objects.errors() as failure:
        return Outcome(status="error", error=objects.to_error_info(failure, address))
    return Outcome(status="ok", data=data)


async def _put(call: ToolCall) -> Outcome:
    fields = call.input
    data, address = fields.get("data"), str(fields.get("uri") or "")
    format = format_of(given=fields.get("format"), path=address, default=natural_format(data))
    content_type = str(fields.get("content_type") or CONTENT_TYPES[format])
    content = encode_value(data, format)
    if address:
        store, place = await _open_store(call, address)
        try:
            await objects.upload(store, place.key, blocks_of(content), content_type=content_type)
        except objects.errors() as failure:
            return Outcome(status="error", error=objects.to_error_info(failure, address))
        return Outcome(status="ok", data={"uri": place.url, "bytes": len(content), "content_type": content_type})
    rows = len(data) if isinstance(data, list) else None
    reference = await call.host.put_result(blocks_of(content), content_type=content_type, rows=rows)
    return Outcome(status="ok", ref=reference)
