"""Sources and targets of a transfer, and triggers, that plug-ins add: their declarations and the calls they receive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.tool import Field, Host, Timeout

Explain = Callable[[Exception], "ErrorInfo | None"]


class ConnectorError(ValueError):
    """A source or target cannot be used as the playbook says; the message is shown to the user (kind `schema`)."""


class SourceCall(Struct, frozen=True):
    """What a source reads: its fields in the playbook, and the services of the worker.

    `fields` has every field under its declared name. `batch_rows` is a good size of a batch. `memo` is for what `read`
    leaves to `finish`."""

    kind: str
    fields: dict[str, Any]
    host: Host
    timeout: Timeout = Timeout()
    batch_rows: int = 10_000
    memo: dict[str, Any] = field(default_factory=dict)


class SourceSpec(Struct, frozen=True, omit_defaults=True):
    """A kind of source: `transfer` reads its rows with `read`.

    `read` is an async generator function, or a function that returns the generator of a module that it imports (do not
    wrap one generator in another: only the outer one would be closed). A batch is a list of rows (mappings), a
    `pyarrow.RecordBatch` or a `pyarrow.Table`. The generator is closed when the transfer ends, also when it fails or is
    cancelled, so `finally` and `async with` release what it has opened. A source that knows its columns yields an empty
    Arrow batch if it has no rows. `finish` is called after all targets have committed: it acknowledges what was read,
    so that every row is read at least once. `count` returns the number of rows if it is known in advance. `explain`
    maps exceptions of the driver to errors; other exceptions are reported as defects of the plug-in."""

    kind: str
    doc: str
    read: Callable[[SourceCall], AsyncIterator[Any]]
    fields: dict[str, Field] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    requires: tuple[tuple[str, ...], ...] = ()  # as in `Members`
    required_by: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    count: Callable[[SourceCall], Awaitable[int | None]] | None = None
    finish: Callable[[SourceCall], Awaitable[None]] | None = None
    explain: Explain | None = None
    quote: str = '"'  # around names in SQL; used if there is a field `query`, for `incremental`
    example: str = ""


class TargetCall(Struct, frozen=True):
    """What a target writes to: its fields in the playbook, how, and the services of the worker.

    `idempotency_key` is the same in every attempt of the task. `keeps_going` is `on_error: continue`: after a chunk
    that failed, the next chunks are written, so every chunk has to be written or rejected as a whole. `contract`: the
    playbook sets a schema contract, so columns that the table does not have are no error of `begin`."""

    kind: str
    fields: dict[str, Any]
    host: Host
    mode: str = "append"
    key: tuple[str, ...] = ()
    create: bool = True
    keeps_going: bool = False
    label: str = ""
    idempotency_key: str = ""
    timeout: Timeout = Timeout()
    contract: bool = False


class RowTarget:
    """Base class of the object that writes the rows of one transfer.

    `begin` is called with the schema of the first chunk, `write` for every chunk (also an empty one is possible),
    `prepare` after the last chunk, then `commit`. `abort` is called instead of `commit`, and may follow any other call;
    it rolls back as far as the system can and releases everything. Rows should be visible after `commit` only."""

    def __init__(self, call: TargetCall) -> None:
        self.call = call

    async def begin(self, schema: Any) -> None:
        """Connect, and create or empty the target for rows of this Arrow schema."""

    async def write(self, table: Any) -> None:
        """Write the rows of a `pyarrow.Table`."""
        raise NotImplementedError

    async def columns(self) -> dict[str, str]:
        """The columns of the existing table and their types as the database spells them (`TargetSpec.evolves`)."""
        raise NotImplementedError

    def identifier(self, name: str) -> str:
        """The name of a column as the database compares it with others (`TargetSpec.evolves`): `name` for `Name` where
        upper and lower case are the same."""
        return name

    async def alter(self, add: list[Any], widen: dict[str, str]) -> None:
        """Add columns (Arrow fields) and change types: column -> `smallint integer bigint numeric numeric(p, s)
        double date timestamp timestamptz text` (`TargetSpec.evolves`)."""
        raise NotImplementedError

    # ── child tables (`TargetSpec.nests`) ────────────────────────────────────────────────────

    def join(self, root: RowTarget) -> None:
        """Write a child table over the connection and in the transaction of another target, which commits or aborts.

        Called first. `prepare` is called for the root before its child tables, `commit` and `abort` after them."""
        raise NotImplementedError

    async def tables(self, beginning: str) -> dict[str, list[str]]:
        """The tables in the schema of this one whose names start with `beginning`, each with its columns."""
        raise NotImplementedError

    async def delete(self, keys: Any) -> None:
        """Delete the rows with these values in these columns (a `pyarrow.Table`), also those written before.

        This, `columns` and `alter` are called without `begin` for a table that exists and gets no rows."""
        raise NotImplementedError

    async def savepoint(self) -> None:
        """Begin what `undo` undoes, in this table and its child tables. `begin` and `alter` are not called meanwhile,
        and `delete` with no keys is called before, so that tables can be created there.

        Without these two, a row that a table rejects fails the transfer, also with `bad_rows: quarantine`."""

    async def undo(self) -> None:
        """Undo what `write` and `delete` did since `savepoint`."""
        raise NotImplementedError

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    async def write_empty(self) -> None:
        """The source has neither rows nor columns, and `begin` was not called: mode replace empties the target."""

    async def prepare(self) -> None:
        """Complete the writes, so that errors are found while all targets can still be rolled back."""

    async def commit(self) -> None:
        """Make the rows visible, and release what was opened."""

    async def abort(self) -> None:
        """Roll back as far as possible, and release what was opened."""


class TargetSpec(Struct, frozen=True, omit_defaults=True):
    """A kind of target: `open` returns the `RowTarget` of a transfer; it does not connect yet.

    `place` is the field that names the table, topic or path; it is required. Modes other than these are reported. A
    target that can roll back (`transactional`) is committed after those that cannot. One whose `RowTarget` has
    `columns` and `alter` sets `evolves`: then playbooks can set its schema contract (`schema`). One that also has
    `join`, `tables` and `delete` sets `nests`: then playbooks can divide rows into tables (`nested: tables`)."""

    kind: str
    doc: str
    open: Callable[[TargetCall], RowTarget]
    fields: dict[str, Field] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("append", "replace", "upsert")
    place: str = "table"
    transactional: bool = True
    explain: Explain | None = None
    example: str = ""
    evolves: bool = False
    nests: bool = False
    quote: str = '"'  # around names in `place`; used with `nests`


class SqlResult(Struct, frozen=True):
    """The result of a statement: Arrow batches of a query, or the number of rows that were changed."""

    columns: tuple[str, ...] = ()
    batches: AsyncIterator[Any] | None = None
    row_count: int = 0


class SqlSession(Protocol):
    """One connection of a SQL kind of a plug-in; without `begin`, every statement commits."""

    async def execute(self, statement: str, values: list[Any]) -> SqlResult:
        """Execute one statement; `values` are those of its placeholders."""

    async def begin(self) -> None:
        """Begin a transaction."""

    async def commit(self) -> None:
        """Commit the transaction."""

    async def rollback(self) -> None:
        """Roll back the transaction."""


class TriggerCall(Struct, frozen=True):
    """What a trigger listens to, and what it does with it.

    `deliver` records what was received under an id: the same id starts one execution, however often it arrives.
    Acknowledge a message after `deliver` has returned. `connected` is called once the trigger receives, and
    `has_room` returns whether more may be received now."""

    kind: str
    name: str
    id: str  # stable while the trigger exists, for names of consumer groups
    fields: dict[str, Any]
    credential: Mapping[str, Any]
    deliver: Callable[[str, Any, Mapping[str, Any]], Awaitable[None]]  # id, data, event
    connected: Callable[[], Awaitable[None]]
    has_room: Callable[[], Awaitable[bool]]


class TriggerSpec(Struct, frozen=True, omit_defaults=True):
    """A kind of trigger: `listen` receives until it is cancelled; an exception is shown as the trigger's problem, and
    `listen` is called again after a pause."""

    kind: str
    doc: str
    listen: Callable[[TriggerCall], Awaitable[None]]
    fields: dict[str, Field] = field(default_factory=dict)
    example: str = ""
