"""Tables in database files, DuckDB and SQLite: one session, whose statements run in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from noetl.tools.transfer.targets.ledger_target import LedgerTarget


class DatabaseFileTarget(LedgerTarget):
    """A table in a database file."""

    BEGIN: ClassVar[str]  # begins a transaction that writes
    _table: str  # quoted

    @property
    def _session(self) -> Any:
        """The connection or cursor with the transaction of the rows."""
        raise NotImplementedError

    def identifier(self, name: str) -> str:
        """DuckDB and SQLite do not distinguish A to Z from a to z."""
        return name.encode().lower().decode()

    async def _open(self) -> None:
        """Open the file and begin the transaction, unless it is open."""
        raise NotImplementedError

    async def _run_in_thread(self, function: Any) -> Any:
        raise NotImplementedError

    def _columns(self) -> Any:
        """The columns of the table; empty if it does not exist."""
        raise NotImplementedError

    async def run_sql(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """Run a statement in the transaction."""
        found: list[Any] = await self._run_in_thread(lambda: self._session.execute(statement, values).fetchall())
        return found

    async def open_ledger(self, name: str, create: str) -> bool:
        """Create the table in the transaction."""
        await self._open()
        await self.run_sql(create, [])
        return True

    async def has_rows(self) -> bool:
        """Whether the table exists and has rows."""
        exists = await self._run_in_thread(self._columns)
        return bool(exists) and bool(await self.run_sql(f"SELECT 1 FROM {self._table} LIMIT 1", []))

    async def checkpoint(self, record: Callable[[], Awaitable[None]]) -> None:
        """Commit, and begin the next transaction."""
        await record()
        await self.run_sql("COMMIT", [])
        await self.run_sql(self.BEGIN, [])

    async def write_empty(self) -> None:
        """Empty the table in mode replace."""
        if self.plan.mode == "replace":
            await self._open()
            if await self._run_in_thread(self._columns):
                await self.run_sql(f"DELETE FROM {self._table}", [])
