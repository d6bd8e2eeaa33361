"""Columns of a table: their portable types, and the clauses that change them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from noetl_mysql.names import quoted

Execute = Callable[[str], Awaitable[Any]]

PREFIX = 100  # characters of a text in an index
MAX_DIGITS, MAX_SCALE = 65, 30
_PORTABLE = {
    "smallint": "smallint", "mediumint": "smallint", "int": "integer", "bigint": "bigint", "float": "real",
    "double": "double", "date": "date", "datetime": "timestamp", "timestamp": "timestamptz", "time": "time",
    "text": "varchar(16383)", "mediumtext": "text", "longtext": "text", "json": "text", "blob": "blob",
    "mediumblob": "blob", "longblob": "blob", "varbinary": "blob", "binary": "blob", "boolean": "boolean",
}  # fmt: skip
_WIDE = {
    "smallint": "SMALLINT", "integer": "INT", "bigint": "BIGINT", "numeric": f"DECIMAL({MAX_DIGITS},{MAX_SCALE})",
    "double": "DOUBLE", "date": "DATE", "timestamp": "DATETIME(6)", "timestamptz": "DATETIME(6)",
}  # fmt: skip
_DECIMAL = re.compile(r"numeric\((\d+),\s*(\d+)\)")
_TYPE = r"\w+(?:\([^)]*\))?(?: unsigned)?(?: zerofill)?(?: CHARACTER SET \w+)?(?: COLLATE \w+)?"


def portable(spelled: str) -> str:
    """The portable name of a type as the catalog spells it; the type itself if it has none."""
    text = spelled.lower()
    name = text.partition("(")[0].partition(" ")[0]
    if text == "tinyint(1)":
        return "boolean"
    if name in ("decimal", "varchar", "char") or text == "bigint unsigned" or "bigint(20) unsigned" in text:
        return text.removesuffix(" unsigned") if name == "decimal" else text
    return _PORTABLE.get(name, text)


def wide_type(kind: str) -> str:
    """The type of a column that was widened to a portable type."""
    digits = _DECIMAL.fullmatch(kind)
    if digits and int(digits[1]) <= MAX_DIGITS and int(digits[2]) <= MAX_SCALE:
        return f"DECIMAL({digits[1]},{digits[2]})"
    return _WIDE.get(kind, "LONGTEXT")


async def modifications(execute: Execute, table: str, widen: Mapping[str, str]) -> list[str]:
    """The clauses that change types; NOT NULL, defaults and comments of the columns stay."""
    if not widen:
        return []
    ((_, text),) = await execute(f"SHOW CREATE TABLE {table}")
    clauses = []
    for name, kind in widen.items():
        found = re.search(rf"^\s*{re.escape(quoted(name))} {_TYPE}(?P<rest>.*?),?$", text, re.MULTILINE | re.IGNORECASE)
        clauses.append(f"MODIFY COLUMN {quoted(name)} {wide_type(kind)}{found['rest'] if found else ''}")
    return clauses


async def has_index(execute: Execute, table: str) -> bool:
    """Whether a table has an index beside its primary key."""
    return any(row[2] != "PRIMARY" for row in await execute(f"SHOW INDEX FROM {table}"))


async def indexed(execute: Execute, table: str, names: Sequence[str]) -> str:
    """Columns for an index; of long texts only the beginning."""
    types = {row[0].lower(): str(row[1]).lower() for row in await execute(f"SHOW COLUMNS FROM {table}")}
    return ", ".join(f"{quoted(name)}{_prefix(types.get(name.lower(), ''))}" for name in names)


def _prefix(type: str) -> str:
    length = re.match(r"(?:var)?(?:char|binary)\((\d+)\)", type)
    if length:
        return f"({min(int(length[1]), PREFIX)})"
    return f"({PREFIX})" if "text" in type or "blob" in type or type == "json" else ""
