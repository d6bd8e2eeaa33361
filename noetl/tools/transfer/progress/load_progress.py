"""The progress of an incremental load, in a table of the database that the load writes to.

It is written in the transaction of the rows: after a crash, either both are there or neither. The next load with the
same stored cursor continues where this one has stopped, so that no page of an API is read again and no row is appended
twice. A load whose cursor was stored, or changed by a user, leaves a record that no later load matches.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from noetl.core.model.events import instant
from noetl.core.model.outcome import error_info
from noetl.core.model.tool import ToolCall
from noetl.data.sql import quote_name
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.failures import ExplainedError
from noetl.tools.transfer.transfer_plan import Plan, SourcePlan

if TYPE_CHECKING:
    from noetl.tools.transfer.chunks import Mark
    from noetl.tools.transfer.progress.incremental import Incremental
    from noetl.tools.transfer.targets import Target

TABLE = "noetl_load_progress"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {quote_name(TABLE)} (target text NOT NULL, load text NOT NULL, "
    "revision bigint NOT NULL, progress text NOT NULL, updated_at text NOT NULL, PRIMARY KEY (target, load))"
)
# The fields of a source that decide which rows it has; credentials may change between two loads.
REQUEST = ("url", "method", "params", "json", "form", "body", "pages", "rows_path", "path", "query", "table")
MAX_BASES = 50  # in one record; an execution may load any number of times
SHARE = 20  # a checkpoint is made this many times the duration of the previous one after it
_encode = msgspec.json.Encoder(order="sorted", enc_hook=str).encode


class Progress(Struct, frozen=True, omit_defaults=True):
    """What a load has committed. Cursors are entries of the state: `{cursor, type, boundary}`."""

    base: str  # fingerprint of the cursor in the state that the load has started from
    source: str  # fingerprint of the request
    execution: str
    before: tuple[str, ...] = ()  # other cursors that the state may have while these rows are in the target
    rows: int = 0  # committed by this load
    done: bool = False
    since: dict[str, Any] = {}  # the cursor that rows are compared with
    start: dict[str, Any] = {}  # `since` without `lag`, or `initial`
    reached: dict[str, Any] = {}  # the greatest cursor of the committed rows
    position: Any = None  # of the source


class Pace:
    """When a checkpoint is due, so that they cost at most 5 % of the time."""

    def __init__(self) -> None:
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() >= self._due

    async def measure(self, checkpoint: Awaitable[None]) -> None:
        """Make a checkpoint."""
        began = time.monotonic()
        await checkpoint
        ended = time.monotonic()
        self._due = ended + SHARE * (ended - began)


class LoadProgress:
    """The progress of one load; its revision detects that another execution has continued the same load."""

    def __init__(
        self, call: ToolCall, incremental: Incremental, target: Target, source: SourcePlan, *, resumes: bool
    ) -> None:
        load = " ".join(filter(None, (call.path, f"{call.step}.{call.task}", incremental.name)))
        self._names = [str(target.plan.fields["table"]), load]
        self._call, self._incremental, self._target = call, incremental, target
        self._source = fingerprint({name: source.fields[name] for name in REQUEST if name in source.fields})
        self._revision = 0
        self._rows = 0  # that an earlier load has committed
        self._before: tuple[str, ...] = ()
        self._position: Any = None
        self._pages: Any = None  # the source
        self._pace = Pace()
        self._resumes = resumes
        self._can_write = True

    @staticmethod
    def is_possible(plan: Plan, target: Target, *, resumes: bool) -> bool:
        """Whether the progress is kept: for pages of an API, and for rows that must not be appended twice."""
        source, only = plan.source, target.plan
        if len(plan.targets) > 1 or not target.remembers or only.warn_on_error or only.static is not None:
            return False
        has_pages = source is not None and source.kind == "http" and bool(source.fields.get("pages"))
        return (has_pages and resumes) or only.mode != "upsert"

    @property
    def resumed(self) -> dict[str, Any]:
        """The page where this load has continued an earlier one, and the rows before it."""
        position = getattr(self._pages, "position", None)  # None: the source has started from the first page
        return {} if position is None else {"page": position["page"] + 1, "rows_before": self._rows}

    # ── the beginning ───────────────────────────────────────────────────────────────────

    async def read(self) -> None:
        """Continue the load that the record describes, if it is this one."""
        self._can_write = await self._target.open_ledger(TABLE, CREATE)
        if not self._can_write:
            self._call.host.log(f"the progress of this load is not kept: the user may not create {TABLE}")
            return
        query = f"SELECT revision, progress FROM {quote_name(TABLE)} WHERE target = ? AND load = ?"
        rows = await self._target.run_sql(query, self._names)
        if rows:
            self._revision = int(rows[0][0])
            await self._follow(msgspec.json.decode(rows[0][1], type=Progress))

    async def _follow(self, found: Progress) -> None:
        appends = self._target.plan.mode != "upsert"
        if self._incremental.base not in (found.base, *found.before):
            if appends and _number(found.execution) > _number(self._call.execution_id):
                raise ExplainedError(conflict(f"execution {found.execution} has loaded later rows already"))
            self._before = self._bases_before(found)
            return  # the cursor was stored, or changed by a user
        if found.done and not appends:
            return  # rows that are read again replace themselves
        if not await self._target.has_rows():
            return  # a user wants to load all rows again
        if not found.done and found.source != self._source:
            if appends:
                raise BadInput(
                    f"{self._target.plan.label}: {found.rows:,} rows of a load that did not end are in the table, and "
                    f"the source has changed since then. Delete these rows and the row of {self._names[1]!r} in {TABLE}"
                )
            return
        self._before = self._bases_before(found)
        self._incremental.follow(found)
        if not found.done:
            self._position, self._rows = found.position, found.rows
        elif fingerprint(found.reached) != self._incremental.base:
            self._call.host.log(
                f"{self._target.plan.label}: execution {found.execution} has appended the rows up to the cursor "
                f"{found.reached.get('cursor')!r} already, so this load starts after them. To load them again, "
                f"delete them and the row of {self._names[1]!r} in {TABLE}"
            )

    def _bases_before(self, found: Progress) -> tuple[str, ...]:
        """The other cursors that the state may have when this load is in the target: those that it continues, as the
        execution may fail, and the one of a concurrent execution that commits its own."""
        base, reached = self._incremental.base, fingerprint(found.reached)
        if base in (found.base, *found.before):
            bases = (*found.before, found.base, *([reached] if found.done else []))
        elif found.execution in self._call.state_writers and base == reached:
            bases = (*found.before, found.base)
        else:
            return ()
        bases = tuple(dict.fromkeys(each for each in bases if each != base))
        return (*bases[:1], *bases[1:][-MAX_BASES:])

    def mark_pages(self, source: Any) -> None:
        """Start the source at the position of the record, and let it mark the pages."""
        if hasattr(source, "marks") and self._can_write:
            self._pages, source.marks = source, self._resumes
            source.position = self._position
            source.may_restart = self._target.plan.mode == "upsert"

    # ── the end, and checkpoints before it ──────────────────────────────────────────────

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._pace.is_due()

    async def checkpoint(self, mark: Mark) -> None:
        """Commit the rows before a mark, with the progress."""
        if self._call.host.mask(position := str(mark.position)) != position:
            return  # such a URL is not stored
        progress = self._progress(reached=mark.reached, position=mark.position)
        await self._pace.measure(self._target.checkpoint(lambda: self._write(progress)))

    async def finish(self) -> None:
        """Write that the load has ended, in the transaction of its last rows."""
        if self._can_write:
            await self._write(self._progress(reached=self._incremental.entry(), done=True))

    def _progress(self, **values: Any) -> Progress:
        return Progress(
            base=self._incremental.base,
            before=self._before,
            source=self._source,
            execution=self._call.execution_id,
            rows=self._rows + self._target.rows,
            **self._incremental.progress,
            **values,
        )

    async def _write(self, progress: Progress) -> None:
        values = [self._revision + 1, _encode(progress).decode(), instant(time.time()), *self._names]
        if self._revision:
            statement = (
                f"UPDATE {quote_name(TABLE)} SET revision = ?, progress = ?, updated_at = ? "
                "WHERE target = ? AND load = ? AND revision = ? RETURNING revision"
            )
            written = await self._target.run_sql(statement, [*values, self._revision])
        else:
            statement = (
                f"INSERT INTO {quote_name(TABLE)} (revision, progress, updated_at, target, load) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING revision"
            )
            written = await self._target.run_sql(statement, values)
        if not written:
            raise ExplainedError(conflict("another execution has continued this load at the same time"))
        self._revision += 1


def _number(execution: str) -> int:
    return int(execution) if execution.isdecimal() else 0


def conflict(reason: str) -> Any:
    """The error of a load that is not the only one."""
    return error_info("state.conflict", f"{reason}; its rows were not written twice. Run the playbook again")


def fingerprint(value: Any) -> str:
    """A short hash of plain data; empty for nothing."""
    return hashlib.sha256(_encode(value)).hexdigest()[:16] if value else ""
