"""The memory of DuckDB while rows are written to a database file.

Without a limit DuckDB caches the written rows as long as memory is available; with one that is too low a statement
fails, and the transaction with it. So the limit follows the columns of the tables, each of which has blocks of its own,
and the widest rows: DuckDB holds vectors of 2,048 of them.
"""

from __future__ import annotations

from typing import Any

from noetl.connections.duckdb_memory import THREADS, VECTOR, set_options

# Less costs CPU time for evicted blocks.
BASE_MB, COLUMN_MB = 48, 0.75
SMALL_GROUP_MB, SMALL_GROUP_COLUMN_MB = 64, 0.06
COMMIT_MB = 48  # a commit holds more blocks, and no chunk is in memory
VECTORS, FREE_VECTOR_MB = 2, 8
LARGE_COMMIT = 16 << 20


class WriteLimits:
    """The settings of one database file, for all targets in it. The methods are called in a thread."""

    def __init__(self) -> None:
        self._needs: dict[int, _Needs] = {}
        self._changed: set[str] = set()

    def add_table(self, cursor: Any, owner: int, columns: int, *, small_groups: bool = False) -> None:
        """Limit the memory for a table of a target; its child tables are written one after the other."""
        needs = self._needs.setdefault(owner, _Needs())
        base, column = (SMALL_GROUP_MB, SMALL_GROUP_COLUMN_MB) if small_groups else (BASE_MB, COLUMN_MB)
        needs.base, needs.columns = max(needs.base, base), max(needs.columns, columns * column)
        needs.threads = 1 if small_groups else THREADS
        self._apply(cursor)

    def lift(self, cursor: Any, owner: int) -> None:
        """Have no limit while this target is written: an index has to fit in memory, and so has an update."""
        self._needs.setdefault(owner, _Needs()).is_limited = False
        self._apply(cursor)

    def count(self, cursor: Any, owner: int, rows: Any) -> None:
        """Allow for the width of rows that are written next."""
        if self._needs[owner].grow(rows):
            self._apply(cursor)

    def allow_commit(self, cursor: Any, owner: int) -> None:
        """Allow for a commit; many rows are written to their place at once, without a copy in the log.

        DuckDB does so too, but does not count the bytes of long texts, and for the log it holds 2,048 rows in memory
        three times."""
        needs = self._needs.get(owner)
        if needs is None:
            return
        needs.commits = True
        self._apply(cursor)
        if needs.written > LARGE_COMMIT:
            self._set(cursor, {"auto_checkpoint_skip_wal_threshold": 0, "checkpoint_threshold": "0B"})

    def end(self, cursor: Any, owner: int) -> None:
        """Restore the settings after the last target."""
        self._needs.pop(owner, None)
        while self._changed and not self._needs:
            cursor.execute(f"RESET {self._changed.pop()}")

    def _set(self, cursor: Any, options: dict[str, Any]) -> None:
        self._changed.update(set_options(cursor, options))

    def _apply(self, cursor: Any) -> None:
        every = self._needs.values()
        if all(needs.is_limited for needs in every):
            limit = max(needs.base for needs in every) + sum(needs.more for needs in every)
            self._set(cursor, {"memory_limit": f"{limit:.0f}MB", "threads": min(needs.threads for needs in every)})
        elif "memory_limit" in self._changed:
            self._changed.remove("memory_limit")
            cursor.execute("RESET memory_limit")


class _Needs:
    """What a target needs, in megabytes."""

    def __init__(self) -> None:
        self.base = self.columns = self._vector = self._widest = 0.0
        self.written = 0  # bytes
        self.threads = THREADS
        self.is_limited, self.commits = True, False

    @property
    def more(self) -> float:
        commit = COMMIT_MB + self.columns if self.commits else 0.0
        return self.columns + VECTORS * max(0.0, self._vector - FREE_VECTOR_MB) + commit

    def grow(self, rows: Any) -> bool:
        """Count rows; whether they need more memory than those before."""
        self.written += rows.nbytes
        self._widest = max(self._widest, rows.nbytes / max(rows.num_rows, 1))
        vector = min(self.written, VECTOR * self._widest) / 1e6
        if vector <= self._vector + FREE_VECTOR_MB / 2:
            return False
        self._vector = vector
        return True
