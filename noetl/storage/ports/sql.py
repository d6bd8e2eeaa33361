"""The database port: what stores with tables in SQLite and in Postgres need from either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

Dialect = Literal["sqlite", "postgres"]


class SqlDatabase(Protocol):
    """A database that several stores share; the placeholders of its statements are `$1`, `$2`, ..."""

    dialect: Dialect
    prefix: str  # of the names of tables
    like: str  # the operator that compares without regard to case

    def migrate(self, part: str, schema: Sequence[str]) -> None:
        """Register the migrations of one part, oldest first."""

    async def fetch(self, query: str, *values: Any) -> Sequence[Any]:
        """All rows; in a request that only reads they may come from a replica, as current as the primary's."""

    async def row(self, query: str, *values: Any) -> Any:
        """The first row, found by a key; None if there is none."""

    async def execute(self, statement: str, *values: Any) -> int:
        """Execute a statement; return the number of changed rows after the commit."""

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each of several rows of values, in one transaction."""

    async def check(self) -> None:
        """Write and flush one row; raise the reason if the database cannot or must not be written."""


Schemas = Mapping[Dialect, Sequence[str]]  # the migrations of a part in each database


def like_pattern(text: str) -> str:
    """The pattern of LIKE, with the escape character backslash, for values that contain this text."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
