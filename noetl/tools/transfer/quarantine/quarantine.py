"""The quarantine of a transfer: a table or file of its bad rows, and the limit of their number.

It is committed before the targets, so a bad row is never lost. In a table a row has an id that is the same in every
attempt of the task, so a retry does not write it twice.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from noetl.core.model.events import instant
from noetl.core.model.outcome import error_info
from noetl.core.model.tool import ToolCall
from noetl.data.values import jsonable
from noetl.tools.transfer.chunks import Chunk
from noetl.tools.transfer.failures import Explain, ExplainedError
from noetl.tools.transfer.quarantine.bad_rows import BadRow
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import BadRowsPlan

SHOWN = 5  # bad rows in the message of an error
COLUMNS = "its columns are row, reason, source, position, target, execution_id, quarantined_at and id"


class Quarantine:
    """Writes bad rows, and counts them."""

    def __init__(self, call: ToolCall, plan: BadRowsPlan, peers: dict[str, Any], explain: Explain) -> None:
        self._call, self._explain = call, explain
        self.plan = plan
        self.target: Target = open_target(call, plan.quarantine, peers)
        self.count = 0
        self._first: list[BadRow] = []
        self._at = instant(time.time())

    async def add(self, rows: list[BadRow], where: str) -> None:
        """Write bad rows of the source or a target; ExplainedError if they are too many."""
        if not rows:
            return
        self.count += len(rows)
        self._first += rows[: SHOWN - len(self._first)]
        if self.plan.most is not None and self.count > self.plan.most:
            raise self._too_many(f"max_bad_rows is {self.plan.most}")
        for start in range(0, len(rows), 1000):
            try:
                await self._write(rows[start : start + 1000], where)
            except Exception as failure:
                info = self.target.explain(failure) or self._explain(failure)
                if info is None:
                    raise
                raise ExplainedError(replace(info, message=f"the quarantine: {info.message}; {COLUMNS}")) from failure

    def check(self, read: int) -> None:
        """ExplainedError if the share of bad rows is too large."""
        share = self.plan.share
        if share is not None and self.count > read * share:
            raise self._too_many(f"max_bad_rows is {float(share * 100):g}% of {read:,} rows")

    def _too_many(self, limit: str) -> ExplainedError:
        shown = "; ".join(f"{row.source}, {row.position}: {row.reason}" for row in self._first)
        bad = "1 bad row" if self.count == 1 else f"{self.count:,} bad rows"
        return ExplainedError(error_info("limit", f"{bad}, and {limit}: {shown}"))

    async def _write(self, rows: list[BadRow], where: str) -> None:
        import pyarrow as pa

        texts = [msgspec.json.encode(jsonable(row.row)).decode() for row in rows]
        key, mask = self._call.idempotency_key, self._call.host.mask
        is_table = self.plan.quarantine.kind != "object"
        ids = [
            hashlib.sha256("\0".join((key, where, row.source, str(row.position), text)).encode()).hexdigest()[:32]
            for row, text in zip(rows, texts, strict=True)
        ]
        count = len(rows)
        columns = {
            "row": (pa.array(_storable(texts) if is_table else texts, pa.string()), {"noetl": "json"}),
            "reason": (pa.array([mask(_visible(row.reason)) for row in rows], pa.string()), None),
            "source": (pa.array([mask(_visible(row.source)) for row in rows], pa.string()), None),
            "position": (pa.array([row.position for row in rows], pa.int64()), None),
            "target": (pa.array([where] * count, pa.string()), None),
            "execution_id": (pa.array([self._call.execution_id] * count, pa.string()), None),
            "quarantined_at": (pa.array([self._at] * count, pa.string()).cast(pa.timestamp("us", "UTC")), None),
            "id": (pa.array(ids, pa.string()), None),
        }
        schema = pa.schema([pa.field(name, array.type, metadata=meaning) for name, (array, meaning) in columns.items()])
        table = pa.Table.from_arrays([array for array, _ in columns.values()], schema=schema)
        await self.target.write_chunk(Chunk(self.target.chunks, table, last=False))

    async def prepare(self) -> None:
        """Complete the writes; without bad rows the table or file is there, too, and a file is empty."""
        if self.count == 0 and self.plan.is_folder:
            return
        if self.count == 0:
            await self._write([], "")
        await self.target.prepare()

    def summary(self) -> dict[str, Any]:
        """Where the rows are, and how many."""
        plan = self.target.plan
        return {"kind": plan.kind, "place": plan.location, "rows": self.count}


def _visible(text: str) -> str:
    """Text without the character NUL, which is not allowed in texts of PostgreSQL."""
    return text.replace("\0", "\\u0000")


def _storable(texts: list[str]) -> list[str]:
    """JSON without the character NUL in its texts and keys, which `jsonb` cannot have."""
    return [
        msgspec.json.encode(_without_nul(msgspec.json.decode(text))).decode() if "\\u0000" in text else text
        for text in texts
    ]


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return _visible(value)
    if isinstance(value, list):
        return [_without_nul(each) for each in value]
    if isinstance(value, dict):
        return {_visible(name): _without_nul(each) for name, each in value.items()}
    return value
