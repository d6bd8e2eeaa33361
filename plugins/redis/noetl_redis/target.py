"""Writes rows as keys, or as elements of a list or stream.

Rows are collected in a list of the server and moved to their keys by a script when the transfer commits: each call of
the script moves up to MOVED rows at once, so that it does not block the server for long. The list expires by itself if
the worker is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from noetl.tool import ConnectorError, RowTarget, jsonable
from noetl_redis.connection import client_for, text_of

MOVED = 10_000
STAGED_SECONDS = 24 * 3600
DELETED = 1_000  # keys in one round trip
MOST_FIELDS = 3_900  # of an entry of a stream: a script passes at most 8,000 values to a command
_COLUMN = re.compile(r"\{([^{}]*)\}")

# An entry: [key, value] (json, list) or [key, fields and values (hash, stream), fields without a value].
MOVE = """
local function each(command, key, values)
  for first = 1, #values, 1000 do
    redis.call(command, key, unpack(values, first, math.min(first + 999, #values)))
  end
end
local kind, ttl, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
while left > 0 do
  local entry = redis.call('LPOP', KEYS[1])
  if not entry then break end
  local row = cjson.decode(entry)
  if kind == 'json' then redis.call('SET', row[1], row[2])
  elseif kind == 'list' then redis.call('RPUSH', row[1], row[2])
  elseif kind == 'stream' then redis.call('XADD', row[1], '*', unpack(row[2]))
  else
    each('HSET', row[1], row[2])
    each('HDEL', row[1], row[3])
  end
  if ttl > 0 then redis.call('EXPIRE', row[1], ttl) end
  left = left - 1
end
return redis.call('LLEN', KEYS[1])
"""


class RedisTarget(RowTarget):
    """Keys, a list or a stream."""

    _client: Any = None

    async def begin(self, schema: Any) -> None:
        """Check the name of the keys, and connect."""
        fields, label = self.call.fields, self.call.label
        self._format = str(fields.get("format") or "json")
        self._keys = str(fields["name"])
        self._columns = _COLUMN.findall(self._keys)
        if self._format in ("json", "hash"):
            if not self._columns:
                raise ConnectorError(
                    f"{label}: `name` needs a column, such as `{self._keys}:{{id}}`, for a key per row"
                )
            missing = [name for name in self._columns if name not in schema.names]
            if missing:
                raise ConnectorError(f"{label}: the rows have no column {missing[0]!r}, which `name` names")
            others = [name for name in self.call.key if name not in self._columns]
            if self.call.mode == "upsert" and others:
                raise ConnectorError(f"{label}: `name` has to contain the key column {others[0]!r}")
        elif self._columns or self.call.mode == "upsert":
            reason = "mode upsert" if self.call.mode == "upsert" else "columns in `name`"
            raise ConnectorError(f"{label}: a {self._format} has no {reason}; use format json or hash")
        elif self._format == "stream" and len(schema.names) > MOST_FIELDS:
            raise ConnectorError(f"{label}: an entry of a stream has at most {MOST_FIELDS:,} columns; use format list")
        await self._connect()
        if self._format in ("list", "stream"):
            await self._check_types([self._keys])

    async def write(self, table: Any) -> None:
        """Collect the rows of a chunk on the server."""
        rows = table.to_pylist()
        if not rows:
            return
        keys = [self._key(row) for row in rows]
        if self._format == "hash":
            await self._check_types(keys)
        entries = list(map(self._entry, keys, rows))
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(self._staging, *entries)
            pipeline.expire(self._staging, STAGED_SECONDS)
            await pipeline.execute()

    async def write_empty(self) -> None:
        """Delete the keys in mode replace."""
        self._keys = str(self.call.fields["name"])
        await self._connect()

    async def prepare(self) -> None:
        """In mode replace, move a row to a key of its own: a user without the rights to move rows must not delete."""
        if self._client is None or self.call.mode != "replace" or not hasattr(self, "_format"):
            return
        staging, key = f"{self._staging}:check", f"{self._staging}:moved"
        value: Any = ["check", "1"] if self._format in ("hash", "stream") else "1"
        try:
            await self._client.rpush(staging, _dumps([key, value, ["none"]]))
            await self._move(staging)
        finally:
            await self._client.delete(staging, key)

    async def commit(self) -> None:
        """Move the rows to their keys; in mode replace, delete the keys first."""
        if self._client is None:
            return
        if self.call.mode == "replace":
            await self._delete()
        while await self._move(self._staging):
            pass

    async def _move(self, staging: str) -> int:
        arguments = [getattr(self, "_format", "json"), int(self.call.fields.get("ttl") or 0), MOVED]
        return int(await self._client.eval(MOVE, 1, staging, *arguments))

    async def abort(self) -> None:
        """Remove the collected rows."""
        if self._client is not None:
            await self._client.delete(self._staging)

    async def _connect(self) -> None:
        self._client = await client_for(self.call, self.call.fields["auth"])
        self._staging = f"noetl:staging:{uuid.uuid4().hex}"

    async def _delete(self) -> None:
        """Delete the keys that rows of this target can have."""
        pattern = "*".join(re.sub(r"([*?\[\]\\])", r"\\\1", part) for part in _COLUMN.split(self._keys)[::2])
        found: list[bytes] = []
        async for key in self._client.scan_iter(match=pattern, count=1000):
            found.append(key)
            if len(found) >= DELETED:
                await self._client.delete(*found)
                found = []
        if found:
            await self._client.delete(*found)

    async def _check_types(self, keys: list[str]) -> None:
        """An error for a key that a row cannot be added to: the script could not undo what it has moved before."""
        if self.call.mode == "replace":
            return
        async with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.type(key)
            kinds = [text_of(kind) for kind in await pipeline.execute()]
        for key, kind in zip(keys, kinds, strict=True):
            if kind not in ("none", self._format):
                raise ConnectorError(f"{self.call.label}: the key {key!r} exists and is a {kind}, not a {self._format}")

    def _key(self, row: dict[str, Any]) -> str:
        return _COLUMN.sub(lambda match: _key_part(row[match[1]], match[1], self.call.label), self._keys)

    def _entry(self, key: str, row: dict[str, Any]) -> str:
        if self._format in ("json", "list"):
            return _dumps([key, _dumps({name: _plain(value) for name, value in row.items()})])
        given = [[name, _text(value)] for name, value in row.items() if value is not None]
        flat = [text for pair in given for text in pair]
        if self._format == "stream" and not flat:
            raise ConnectorError(f"{self.call.label}: an entry of a stream needs a value, and a row has none")
        return _dumps([key, flat, [name for name, value in row.items() if value is None]])


def _key_part(value: Any, column: str, label: str) -> str:
    if value is None:
        raise ConnectorError(f"{label}: a row has no value in the column {column!r}, which `name` names")
    return _text(value)


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else _dumps(plain)


def _plain(value: Any) -> Any:
    """A value as JSON data: decimals keep their digits, and an instant is in UTC, so that it has one text."""
    if isinstance(value, Decimal):
        return str(value)
    return jsonable(value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value)


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
