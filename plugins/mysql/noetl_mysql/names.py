"""Names in SQL."""

from __future__ import annotations

import re


def quoted(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(name: str) -> str:
    """`table` or `database.table` in backticks."""
    return ".".join(map(quoted, table_parts(name)))


def table_parts(name: str) -> list[str]:
    """The table, or the database and the table; a part may be in backticks."""
    parts = re.findall(r"`((?:[^`]|``)*)`|([^.`]+)", name)
    return [inside.replace("``", "`") if inside else plain.strip() for inside, plain in parts]
