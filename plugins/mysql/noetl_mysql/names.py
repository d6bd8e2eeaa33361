"""Names in SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(name: str) -> str:
    """`table` or `database.table` in backticks."""
    return ".".join(map(quoted, table_parts(name)))


def table_parts(name: str) -> list[str]:
    """The table, or the database and the table; a part may be in backticks."""
    parts, part, inside = [], "", False
    for character in name:
        if character == "`":
            inside = not inside
        elif character == "." and not inside:
            parts.append(part)
            part = ""
        else:
            part += character
    return [each.strip() for each in [*parts, part]]
