"""Settings under which DuckDB reads rows in their order with little memory.

Left to itself it uses all cores, reads in advance as fast as it can, and keeps what it has read of a database file as
long as memory is available. A transfer is not faster by that, and needs as much memory as the file has.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from noetl.data.sql import Bound, split_name, tokens
from noetl.data.sql.sql_tables import tables_of

THREADS = min(2, os.cpu_count() or 1)  # each one needs memory of its own
OPTIONS = {
    "threads": THREADS,
    "read_ahead_depth": 1,
    "streaming_buffer_size": "2MB",
}
_SCANS = {"SEQ_SCAN", "TABLE_SCAN", "PROJECTION", "FILTER", "LIMIT", "STREAMING_LIMIT", "UNION", "EMPTY_RESULT"}
VECTOR = 2048  # rows that are read together
LEAST_MB, MOST_MB = 48, 112
FIXED = 16  # bytes of a value that is no text, at most
_FIXED_KINDS = re.compile(
    r"U?\w*INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)|BOOLEAN|DATE|TIME\w*( WITH TIME ZONE)?|UUID|INTERVAL|ENUM\(.*\)"
)
_CALL = re.compile(r"\b(?!(?:and|as|from|in|not|or|select|union|all|where)\b)\w+\s*\(|\|\|", re.IGNORECASE)
_NAME = re.compile(r'(?:(?:"(?:[^"]|"")+"|\w+)(?:\.|$))+')  # quoted where that is necessary
_LENGTH = re.compile(r"max_string_length'?: (\d+)|Max String Length: (\d+)")


def set_options(cursor: Any, options: Mapping[str, Any]) -> list[str]:
    """Change settings, and return their names; those that this version of DuckDB does not have are left out."""
    known = {name for (name,) in cursor.execute("SELECT name FROM duckdb_settings()").fetchall()}
    for name in known & options.keys():
        cursor.execute(f"SET {name} = '{options[name]}'")
    return sorted(known & options.keys())


def scan_options(cursor: Any, bound: Bound) -> dict[str, Any]:
    """The settings for a query that only reads rows of tables or files; none for others, such as joins and sorts.

    They limit the memory if the longest values of the tables fit: DuckDB needs `VECTOR` rows at once in each thread. A
    function may give values that are longer than those of the tables, so a query that calls one has no limit."""
    import duckdb

    try:
        nodes = list(_nodes(json.loads(_explained(cursor, bound))))
        if not all(node["name"] in _SCANS or node["name"].startswith("READ_") for node in nodes):
            return {}
        tables = {node["extra_info"]["Table"] for node in nodes if node["name"] in ("SEQ_SCAN", "TABLE_SCAN")}
        is_plain = tables and _reads_columns(bound.text, tables)
        width = sum(_width(cursor, table) for table in tables) if is_plain else float("inf")
    except (duckdb.Error, ValueError, KeyError, TypeError):  # another version, or no query
        return {}
    needed = LEAST_MB + 4 * VECTOR * width / 1e6
    return OPTIONS | ({"memory_limit": f"{needed:.0f}MB"} if needed <= MOST_MB else {})


def _reads_columns(text: str, tables: set[str]) -> bool:
    """Whether a query has columns of these tables as they are: it calls no function, and reads no view."""
    code = "".join(
        "_" if each.kind == "string" else each.text for each in tokens(text, "duckdb") if each.kind != "comment"
    )
    scanned = [tuple(split_name(table.lower())) for table in tables]
    named = [tuple(split_name(name.lower())) for name in tables_of(text, "duckdb").reads]
    is_table = all(any(table[-len(name) :] == name for table in scanned) for name in named)
    return bool(named) and is_table and _CALL.search(code) is None


def _explained(cursor: Any, bound: Bound) -> str:
    query = f"EXPLAIN (FORMAT json) {bound.text}"
    found = cursor.execute(query, bound.values) if bound.values else cursor.execute(query)
    text: str = found.fetchall()[0][1]
    return text


def _nodes(plan: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in plan:
        yield node
        yield from _nodes(node.get("children", ()))


def _width(cursor: Any, table: str) -> float:
    """The most bytes that a row of a table has; infinite if that is not known."""
    if not _NAME.fullmatch(table):
        return float("inf")
    kinds = [kind for _, kind, *_ in cursor.execute(f"DESCRIBE {table}").fetchall()]
    found = cursor.execute(f"SELECT stats(COLUMNS(*))::VARCHAR FROM {table} LIMIT 1").fetchall()
    return sum(map(_longest, kinds, found[0])) if found else 0


def _longest(kind: str, stats: str | None) -> float:
    if kind in ("VARCHAR", "BLOB", "JSON"):
        length = _LENGTH.search(stats or "")
        return int(length[1] or length[2]) + FIXED if length else float("inf")
    return FIXED if _FIXED_KINDS.fullmatch(kind) else float("inf")
