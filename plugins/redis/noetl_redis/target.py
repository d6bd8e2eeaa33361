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

from noetl.tool import ConnectorError, RowTarget
from noetl_redis.connection import client_for

MOVED = 10_000
STAGED_SECONDS = 24 * 3600
DELETED = 1_000  # keys in one round trip
_COLUMN = re.compile(r"\{([^{}]*)\}")

# An entry: [key, value] (json, list) or [key, fields and values (hash, stream), fields without a value].
MOVE = """
local kind, ttl, left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
while left > 0 do
  local entry = redis.call('LPOP', KEYS[1])
  if not entry then break end
  local row = cjson.decode(entry)
  if kind == 'json' then redis.call('SET', row[1], row[2])
  elseif kind == 'list' then redis.call('RPUSH', row[1], row[2])
  elseif kind == 'stream' then redis.call('XADD', row[1], '*', unpack(row[2]))
  else
    if #row[2] > 0 then redis.call('HSET', row[1], unpack(row[2])) end
    if #row[3] > 0 then redis.call('HDEL', row[1], unpack(row[3])) end
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
        await self._connect()

    async def write(self, table: Any) -> None:
        """Collect the rows of a chunk on the server."""
        entries = [self._entry(row) for row in table.to_pylist()]
        if not entries:
            return
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(self._staging, *entries)
            pipeline.expire(self._staging, STAGED_SECONDS)
            await pipeline.execute()

    async def write_empty(self) -> None:
        """Delete the keys in mode replace."""
        self._keys = str(self.call.fields["name"])
        await self._connect()

    async def commit(self) -> None:
        """Move the rows to their keys; in mode replace, delete the keys first."""
        if self._client is None:
            return
        if self.call.mode == "replace":
            await self._delete()
        arguments = [getattr(self, "_format", "json"), int(self.call.fields.get("ttl") or 0), MOVED]
        while await self._client.eval(MOVE, 1, self._staging, *arguments):
            pass

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

    def _entry(self, row: dict[str, Any]) -> str:
        key = _COLUMN.sub(lambda match: _key_part(row[match[1]], match[1], self.call.label), self._keys)
        if self._format in ("json", "list"):
            return _dumps([key, _dumps(row)])
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
    return value if isinstance(value, str) else str(_plain(value)) if _is_scalar(value) else _dumps(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Decimal | datetime | bytes) or not isinstance(value, list | dict | bool | float | int)


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
