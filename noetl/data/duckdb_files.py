"""Options with which DuckDB reads CSV and JSON files: it detects types, but must not lose or change anything.

Left to itself it takes lines that begin with `#` for comments and lines of another length for a preamble, and
skips them; it makes structures of one shape of all objects, with nulls where an object had no such key; and it
drops keys that come later than it looked. So CSV has its first line as names and all lines after it as rows, and
a line that does not fit is an error; and in JSON every row is looked at first, and what is inside a row stays JSON.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noetl.data.sql import quote_column

ROWS_KEYS = ("rows", "data", "items", "results")  # the default key of a document's rows
DELIMITERS = ",;\t|"
_SHAPES = {"json": "auto", "jsonl": "newline_delimited"}
_OBJECT = "maximum_object_size=1073741824"


def literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def csv_call(path: str, types: Mapping[str, str] | None = None) -> str:
    """The table function that reads CSV; `*` in the path matches several files."""
    options = f"header=true, skip=0, delim={literal(_delimiter(path))}, quote='\"', escape='\"', comment=''"
    if types:
        options += f", types={{{', '.join(f'{literal(name)}: {literal(kind)}' for name, kind in types.items())}}}"
    return f"read_csv({literal(path)}, {options}, null_padding=false)"


def _delimiter(path: str) -> str:
    """What separates the names in the first line: the most frequent of the usual ones, outside of quotes."""
    found = sorted(glob.glob(path)) if any(mark in path for mark in "*?[") else [path]
    if path.lower().endswith(".tsv") or not found or not Path(found[0]).is_file():
        return "\t" if path.lower().endswith(".tsv") else ","
    with Path(found[0]).open("rb") as file:
        line = file.readline(1 << 20).decode("utf-8", "replace")
    outside = "".join(line.split('"')[::2])
    return max(DELIMITERS, key=outside.count)


def misfit(path: str) -> str | None:
    """The first line of CSV that has more or fewer values than the first one, in words."""
    if not Path(path).is_file():
        return None
    with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = csv.reader(file, delimiter=_delimiter(path))
        width = len(next(lines, []))
        for row in lines:
            if row and len(row) != width:
                return f"{path}: line {lines.line_num} has {len(row)} values, the first line has {width}"
    return None


def json_query(cursor: Any, path: str, format: str, steps: list[str], types: Mapping[str, str] | None = None) -> str:
    """The query that gives the rows of JSON: the objects of a list (at `steps` inside the document) or of lines.

    Called in a thread: it looks through the file for the columns."""
    place, shape = literal(path), f"format='{_SHAPES[format]}', {_OBJECT}"
    source = f"read_json_auto({place}, {shape}, sample_size=-1)"
    inner = ".".join(quote_column(step) for step in steps)
    rows = f"SELECT unnest(item) FROM (SELECT unnest({inner}) AS item FROM {source})" if steps else f"FROM {source}"
    described = cursor.execute(f"DESCRIBE {rows}").fetchall()
    if not steps and format == "json" and _is_object(path):
        lists = {name for name, kind, *_ in described if kind.endswith("]")}
        inside = next((name for name in ROWS_KEYS if name in lists), None)
        if inside and len(cursor.execute(f"SELECT 1 FROM {source} LIMIT 2").fetchall()) == 1:
            return json_query(cursor, path, format, [inside], types)
    if [name for name, *_ in described] == ["json"]:
        return f"SELECT * {rows}" if not steps else rows  # no objects
    known = {name: _kind(kind) for name, kind, *_ in described} | dict(types or {})
    if not steps:
        columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in known.items())
        return f"SELECT * FROM read_json({place}, {shape}, columns={{{columns}}})"
    kind = f"STRUCT({', '.join(f'{quote_column(name)} {kind}' for name, kind in known.items())})[]"
    for step in reversed(steps[1:]):
        kind = f"STRUCT({quote_column(step)} {kind})"
    whole = f"read_json({place}, {shape}, columns={{{literal(steps[0])}: {literal(kind)}}})"
    return f"SELECT unnest(item) FROM (SELECT unnest({inner}) AS item FROM {whole})"


def _is_object(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _kind(kind: str) -> str:
    """A column's type; what has parts stays JSON."""
    return "JSON" if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")) else kind
