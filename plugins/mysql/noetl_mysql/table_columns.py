"""Columns of a table: their portable types, and the clauses that change them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from noetl_mysql.arrow_types import KEY_TEXT
from noetl_mysql.names import quoted

Execute = Callable[[str], Awaitable[Any]]

PREFIX = 100  # characters of a text in an index
MAX_DIGITS, MAX_SCALE = 65, 30
_PORTABLE = {
    "tinyint": "tinyint", "smallint": "smallint", "mediumint": "mediumint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double", "date": "date", "tinytext": "text(255)", "text": "text(65535)",
    "mediumtext": "text(16777215)", "longtext": "text", "json": "json", "tinyblob": "blob(255)", "blob": "blob(65535)",
    "mediumblob": "blob(16777215)", "longblob": "blob", "boolean": "boolean",
}  # fmt: skip
_TIMES = {"datetime": "timestamp", "timestamp": "timestamptz", "time": "time"}
_WIDE = {
    "smallint": "SMALLINT", "integer": "INT", "bigint": "BIGINT", "double": "DOUBLE", "date": "DATE",
    "timestamp": "DATETIME(6)", "timestamptz": "DATETIME(6)", "time": "TIME(6)", "bytes": "LONGBLOB",
}  # fmt: skip
_DECIMAL = re.compile(r"numeric\((\d+),\s*(\d+)\)")
_TYPE = r"\w+(?:\([^)]*\))?(?: unsigned)?(?: zerofill)?(?: CHARACTER SET \w+)?(?: COLLATE \w+)?"


def portable(spelled: str) -> str:
    """The portable name of a type as the catalog spells it; the type itself if it has none."""
    text = spelled.lower()
    name, _, rest = text.partition(" ")[0].partition("(")
    numbers = rest.rstrip(")")
    if name in _TIMES:
        return f"{_TIMES[name]}({numbers or 0})"
    if name in ("varbinary", "binary"):
        return f"blob({numbers})"
    if name in ("decimal", "varchar", "char") and numbers:
        return f"{name}({numbers})"
    if text == "tinyint(1)":
        return text  # a boolean, in which other small numbers fit
    return ("u" if " unsigned" in text and "int" in name else "") + _PORTABLE.get(name, text)


def wide_type(kind: str) -> str:
    """The type of a column that was widened to a portable type."""
    digits = _DECIMAL.fullmatch(kind)
    if digits and int(digits[1]) <= MAX_DIGITS and int(digits[2]) <= MAX_SCALE:
        return f"DECIMAL({digits[1]},{digits[2]})"
    return _WIDE.get(kind, "LONGTEXT")


async def types_of(execute: Execute, table: str, columns: Sequence[Sequence[str]]) -> dict[str, str]:
    """The portable types of columns, which are given with their types in the catalog."""
    definition = await _definition(execute, table) if columns else ""
    return {name: "json" if _json_check(name) in definition else portable(type) for name, type in columns}


async def modifications(execute: Execute, table: str, widen: Mapping[str, str]) -> list[str]:
    """The clauses that change types; NOT NULL, defaults and comments of the columns stay.

    An indexed text has a limited length, and text is not checked to be JSON."""
    if not widen:
        return []
    text = await _definition(execute, table)
    keys = {row[4].lower() for row in await execute(f"SHOW INDEX FROM {table}")}
    clauses = []
    for name, kind in widen.items():
        found = re.search(rf"^\s*{re.escape(quoted(name))} {_TYPE}(?P<rest>.*?),?$", text, re.MULTILINE | re.IGNORECASE)
        rest = found["rest"].replace(_json_check(name), "") if found else ""
        type = wide_type(kind)
        type = KEY_TEXT if type == "LONGTEXT" and name.lower() in keys else type
        clauses.append(f"MODIFY COLUMN {quoted(name)} {type}{rest}")
    return clauses


async def _definition(execute: Execute, table: str) -> str:
    return str((await execute(f"SHOW CREATE TABLE {table}"))[0][1])


def _json_check(name: str) -> str:
    """How MariaDB, which has no type for JSON, says that a column is JSON."""
    return f" CHECK (json_valid({quoted(name)}))"


async def charset(execute: Execute, table: str) -> str:
    """The option of a table that new columns of text depend on."""
    found = re.search(r"DEFAULT CHARSET=\w+(?: COLLATE=\w+)?", await _definition(execute, table))
    return found[0] if found else ""


async def exact_collation(execute: Execute) -> str:
    """The collation in which every two texts differ: in most of them, trailing spaces are ignored."""
    names = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")  # MariaDB, MySQL
    found = await execute(f"SHOW COLLATION WHERE Collation IN {names}")
    return str(found[0][0]) if found else "utf8mb4_bin"


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
