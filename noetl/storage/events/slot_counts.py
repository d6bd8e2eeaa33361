"""Slots of limited keys that unfinished executions hold, counted from their rows, and the check of an append.

Invariant: the field `held` of a row changes in the transaction of the append that changes it. So the rows of
unfinished executions are the only count, and no counter can differ from them. Rows are found by the key in their
JSON; damaged rows are skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from noetl.errors import LimitReached
from noetl.storage.events.event_rows import encode_json
from noetl.storage.ports.events import Append

LOCKS = 0x6E6F_6574  # class of the advisory locks, one lock per limited key


class _Held(Struct):
    held: dict[str, int] = {}


_decode = msgspec.json.Decoder(_Held).decode


def json_key_pattern(key: str) -> bytes:
    """The bytes of a held key in the JSON of a row."""
    return encode_json(key) + b":"


def counted(rows: Iterable[tuple[bytes]], keys: Iterable[str]) -> dict[str, int]:
    """The number of slots of each key in these rows."""
    counts = dict.fromkeys(keys, 0)
    for (data,) in rows:
        try:
            held = _decode(data).held
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        for key in counts:
            counts[key] += held.get(key, 0)
    return counts


def check_capacity(append: Append, counts: Mapping[str, int]) -> None:
    """Raise LimitReached if an append needs more slots than are free."""
    for take in append.takes:
        if counts[take.key] + take.count > take.most:
            raise LimitReached(take.key)


async def held_in_postgres(connection: Any, keys: Iterable[str]) -> dict[str, int]:
    """The number of slots of each key that are in use, from Postgres."""
    keys = list(keys)
    rows = await connection.fetch(
        "SELECT data FROM noetl_executions WHERE NOT ended AND status <> 'waiting' AND "
        "EXISTS (SELECT 1 FROM unnest($1::bytea[]) AS n(needle) WHERE position(n.needle IN data) > 0)",
        [json_key_pattern(key) for key in keys],
    )
    return counted(rows, keys)


async def locked_in_postgres(connection: Any, appends: Iterable[Append]) -> dict[str, int]:
    """Lock the keys that these appends need until the end of the transaction; return the slots in use.

    Only appends that need slots lock, each key in the same order; others never wait."""
    keys = sorted({take.key for append in appends for take in append.takes})
    await connection.execute(
        "SELECT pg_advisory_xact_lock($1, k) FROM unnest($2::int4[]) AS k",
        LOCKS,
        sorted({zlib.crc32(key.encode()) - (1 << 31) for key in keys}),
    )
    return await held_in_postgres(connection, keys)  # a separate statement, which sees the commits before the lock
