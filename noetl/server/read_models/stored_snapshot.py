"""What a stored snapshot has: the folded state and the step table at the same event.

The step table of a long execution is thus as cheap to show as its state. A snapshot of an older version has only the
state; a table that cannot be decoded is computed from the log again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.server.read_models.summaries import Progress, StepRow

_MAGIC = b"noetl-snapshot-1\n"


class _Table(Struct, array_like=True):
    """`Progress` as stored."""

    steps: list[StepRow]
    status: str
    started_at: float | None
    ended_at: float | None
    ctx: dict[str, Any]
    output: Outcome | None
    error: ErrorInfo | None
    compensation: dict[str, int] | None
    path: str
    seq: int


def pack(state: bytes, progress: Progress | None) -> bytes:
    """A snapshot of an encoded state and the step table at the same event."""
    if progress is None:
        return state
    fields = {name: getattr(progress, name) for name in _Table.__struct_fields__ if name != "steps"}
    table = msgspec.json.encode(_Table(steps=list(progress.steps.values()), **fields))
    return _MAGIC + len(table).to_bytes(8, "big") + table + state


def state_part(data: bytes) -> bytes:
    """The encoded state of a snapshot."""
    return data[_state_begin(data) :]


def progress_part(data: bytes) -> Progress | None:
    """The step table of a snapshot; None if it has none."""
    begin = _state_begin(data)
    if not begin:
        return None
    try:
        table = msgspec.json.decode(data[len(_MAGIC) + 8 : begin], type=_Table)
    except msgspec.DecodeError:
        return None
    progress = Progress()
    for name in _Table.__struct_fields__:
        setattr(progress, name, getattr(table, name))
    progress.steps = {row.step: row for row in table.steps}
    return progress


def _state_begin(data: bytes) -> int:
    if not data.startswith(_MAGIC):
        return 0
    begin = len(_MAGIC) + 8
    return begin + int.from_bytes(data[len(_MAGIC) : begin], "big")
