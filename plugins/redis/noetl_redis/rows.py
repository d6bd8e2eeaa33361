"""Reads keys, lists, sets and streams as rows, with bounded batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from noetl.tool import ConnectorError, SourceCall
from noetl_redis.connection import client_for, parsed, text_of

PATTERN = "*?["  # characters that make a name a pattern


async def read(call: SourceCall) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the rows in batches."""
    name = str(call.fields["name"])
    client = await client_for(call, call.fields["auth"])
    kind = "none" if any(each in name for each in PATTERN) else text_of(await client.type(name))
    if kind in ("none", "string", "hash"):
        rows = _keys(client, call, name)
    elif kind in _ELEMENTS:
        rows = _ELEMENTS[kind](client, call, name)
    else:
        raise ConnectorError(f"redis: the key {name!r} is a {kind}, which has no rows")
    batch: list[dict[str, Any]] = []
    async with aclosing(rows):
        async for row in rows:
            batch.append(row)
            if len(batch) >= call.batch_rows:
                yield batch
                batch = []
    yield batch


async def _keys(client: Any, call: SourceCall, pattern: str) -> AsyncGenerator[dict[str, Any], None]:
    """One row for each string or hash."""
    seen: set[bytes] = set()  # SCAN may return a key twice
    cursor = 0
    while True:
        cursor, found = await client.scan(cursor, match=pattern, count=min(call.batch_rows, 1000))
        keys = [key for key in dict.fromkeys(found) if key not in seen]
        seen.update(keys)
        for key, kind, value in await _values(client, keys):
            if kind == "none":
                continue  # it expired in the meantime
            row = _object(value) if kind == "string" else _fields(value)
            yield _with_key(call, text_of(key), row)
        if not cursor:
            return


async def _values(client: Any, keys: list[bytes]) -> list[tuple[bytes, str, Any]]:
    """Keys with their types and values, in two round trips."""
    async with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.type(key)
        kinds = [text_of(kind) for kind in await pipeline.execute()]
    for key, kind in zip(keys, kinds, strict=True):
        if kind not in ("string", "hash", "none"):
            raise ConnectorError(
                f"redis: the key {text_of(key)!r} is a {kind}: a pattern reads strings and hashes; name one key to "
                "read its elements"
            )
    async with client.pipeline(transaction=False) as pipeline:
        for key, kind in zip(keys, kinds, strict=True):
            pipeline.hgetall(key) if kind == "hash" else pipeline.get(key)
        values = await pipeline.execute()
    # A key that expired between the round trips has neither value nor fields.
    return [
        (key, kind if value else "none" if value is None or kind == "hash" else kind, value)
        for key, kind, value in zip(keys, kinds, values, strict=True)
    ]


async def _list(client: Any, call: SourceCall, name: str) -> AsyncGenerator[dict[str, Any], None]:
    start = 0
    while found := await client.lrange(name, start, start + call.batch_rows - 1):
        for value in found:
            yield _with_key(call, name, _object(value))
        start += len(found)


async def _stream(client: Any, call: SourceCall, name: str) -> AsyncGenerator[dict[str, Any], None]:
    after = str(call.fields.get("after") or "")
    while found := await client.xrange(name, f"({after}" if after else "-", "+", call.batch_rows):
        for entry, fields in found:
            after = text_of(entry)
            yield _with_key(call, after, _fields(fields))


async def _set(client: Any, call: SourceCall, name: str) -> AsyncGenerator[dict[str, Any], None]:
    async for value in client.sscan_iter(name, count=1000):
        yield _with_key(call, name, _object(value))


async def _sorted_set(client: Any, call: SourceCall, name: str) -> AsyncGenerator[dict[str, Any], None]:
    async for value, score in client.zscan_iter(name, count=1000):
        yield _with_key(call, name, {**_object(value), "score": score})


_ELEMENTS = {"list": _list, "stream": _stream, "set": _set, "zset": _sorted_set}


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object is a row; another value is in the column `value`."""
    value = parsed(data)
    return value if isinstance(value, dict) else {"value": value}


def _fields(found: Any) -> dict[str, Any]:
    return {text_of(name): text_of(value) for name, value in found.items()}


def _with_key(call: SourceCall, key: str, row: dict[str, Any]) -> dict[str, Any]:
    column = call.fields.get("key_column")
    return {str(column): key, **row} if column else row
