"""What unfinished executions hold of what is limited, read from their rows; and whether an append fits.

A row's `held` is written by the append that changes it, in the append's transaction, so the rows of unfinished
executions *are* the count: there is no other one that could differ from them. Rows of interest are found by the key
as it stands in their JSON; a damaged row is left out, as everywhere.
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

LOCKS = 0x6E6F_6574  # the class of our advisory locks, one of them for each limited key


class _Held(Struct):
    held: dict[str, int] = {}


_decode = msgspec.json.Decoder(_Held).decode


def json_key_pattern(key: str) -> bytes:
    """How a key that is held stands in a row's data."""
    return encode_json(key) + b":"


def counted(rows: Iterable[tuple[bytes]], keys: Iterable[str]) -> dict[str, int]:
    """How many slots of each key these rows hold together."""
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
    """LimitReached when an append takes more than is left."""
    for take in append.takes:
        if counts[take.key] + take.count > take.most:
            raise LimitReached(take.key)


async def held_in_postgres(connection: Any, keys: Iterable[str]) -> dict[str, int]:
    """The same, asked of Postgres."""
    keys = list(keys)
    rows = await connection.fetch(
        "SELECT data FROM noetl_executions WHERE NOT ended AND "
        "EXISTS (SELECT 1 FROM unnest($1::bytea[]) AS n(needle) WHERE position(n.needle IN data) > 0)",
        [json_key_pattern(key) for key in keys],
    )
    return counted(rows, keys)


async def locked_in_postgres(connection: Any, appends: Iterable[Append]) -> dict[str, int]:
    """What is held of the keys that these appends take, and nobody takes more of before this transaction ends.

    Only who takes locks, each key in the same order; who gives back or takes nothing that is limited never waits."""
    keys = sorted({take.key for append in appends for take in append.takes})
    if not keys:
        return {}
    await connection.execute(
        "SELECT pg_advisory_xact_lock($1, k) FROM unnest($2::int4[]) AS k",
        LOCKS,
        sorted({zlib.crc32(key.encode()) - (1 << 31) for key in keys}),
    )
    return await held_in_postgres(connection, keys)  # a statement of its own: it sees what was written before the lock
