"""Options with which DuckDB reads CSV and JSON files: it detects types, but must not lose or change anything.

Left to itself it takes lines that begin with `#` for comments and lines of another length for a preamble, and
skips them; it makes structures of one shape of all objects, with nulls where an object had no such key; and it
drops keys that come later than it looked. So CSV has its first line as names and all lines after it as rows, and
a line that does not fit is an error; and in JSON every row is looked at first, and what is inside a row stays JSON.
"""

from __future__ import annotations

import codecs
import csv
import glob
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noetl.data.files.compression import compressed_by
from noetl.data.files.csv_text import LongLine, csv_problem, csv_reader, text_lines
from noetl.data.files.json_kinds import WITHOUT_MAPS, changed_columns, narrowed
from noetl.data.files.json_lines import longest_line
from noetl.data.sql import quote_column

ROWS_KEYS = ("rows", "data", "items", "results")  # the default key of a document's rows
DELIMITERS = ",;\t|"
_SHAPES = {"json": "auto", "jsonl": "newline_delimited"}
LARGEST_OBJECT, SMALLEST_BUFFER = 1 << 30, 1 << 16
CSV_BUFFER = 8_000_000  # bytes; DuckDB's own is 32 MB for each thread
SAMPLE_ROWS, SAMPLE_BYTES = 20_480, 32 << 20  # rows by which DuckDB detects types, and what it holds for that
BATCH_BYTES = 4 << 20
BLANK_BYTES = 4096  # a file with more is read
HEAD_BYTES = 1 << 16  # in which the names end, if they have line breaks


def literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def csv_query(cursor: Any, path: str, types: Mapping[str, str] | None = None) -> tuple[str, set[str]]:
    """The query that reads CSV, and its columns of numbers that are read as text because a double is not exact.

    A quoted empty value is an empty text, an unquoted one is null; in a file that writes missing numbers with quotes,
    both are null. Called in a thread: it reads columns that are no texts once, unless their types are declared."""
    given = dict(types or {})
    by_name = has_other_order(path)
    kinds = described(cursor, csv_call(path, given, quoted_nulls=False, by_name=by_name))
    quoted = described(cursor, csv_call(path, given, quoted_nulls=True, by_name=by_name))
    quoted_nulls = any(kinds[name] == "VARCHAR" != kind for name, kind in quoted.items() if name not in given)
    kinds = quoted if quoted_nulls else kinds
    tests = {name: text_tests(kind, quote_column(name)) for name, kind in kinds.items() if name not in given}
    suspects = {name: test for name, test in tests.items() if test is not None}
    texts: set[str] = set()
    numbers: set[str] = set()
    if suspects:
        every = csv_call(path, dict.fromkeys(kinds, "VARCHAR"), quoted_nulls=quoted_nulls, by_name=by_name)
        conditions = ", ".join(f"bool_or({test})" for pair in suspects.values() for test in pair)
        found = iter(cursor.execute(f"SELECT {conditions} FROM {every}").fetchall()[0])
        for name in suspects:
            is_text, is_inexact = next(found), next(found)
            if is_text:
                texts.add(name)
            elif is_inexact:
                numbers.add(name)
        given |= dict.fromkeys(texts | numbers, "VARCHAR")
    return f"SELECT * FROM {csv_call(path, given, quoted_nulls=quoted_nulls, by_name=by_name)}", numbers


# Conditions of a text `{c}` that DuckDB reads as a value of a type, and that is more or something else than this value.
_DAY_FIRST = r"regexp_matches({c}, '^\s*\d{{1,2}}[^\d:]')"  # 1/2/2024: the first of February, or January 2?
_NO_DATES = "('inf', '-inf', 'epoch')"
_FINE = r"regexp_matches({c}, '\.\d{{6}}\d*[1-9]')"  # more digits than microseconds
_TIMESTAMP = (
    f"CASE WHEN {{c}} LIKE '____-__-__%' AND NOT contains({{c}}, '.') THEN false ELSE {_DAY_FIRST} OR {_FINE} END"
)
_TEXTS = {
    "BIGINT": "regexp_matches({c}, '^[+-]?0[0-9xXbB]')",  # 007, 0x10
    "DOUBLE": "regexp_matches({c}, '^[+-]?0[0-9xXbB]')",
    "BOOLEAN": "lower({c}) IN ('t', 'f', 'y', 'n', 'yes', 'no', '1', '0', 'on', 'off')",
    "DATE": f"CASE WHEN {{c}} LIKE '____-__-__' THEN false ELSE {_DAY_FIRST} OR lower({{c}}) IN {_NO_DATES} END",
    "TIME": _FINE, "TIMESTAMP": _TIMESTAMP, "TIMESTAMP WITH TIME ZONE": _TIMESTAMP,
}  # fmt: skip
# A number that is no 64-bit integer; a number that is no double, or has more digits than a double has (the shortest
# text of a double has up to 17).
_NUMBERS = {
    "BIGINT": "TRY_CAST({c} AS DOUBLE) IS NOT NULL AND (contains({c}, '.') OR TRY_CAST({c} AS BIGINT) IS NULL)",
    "DOUBLE": (
        "(isinf(TRY_CAST({c} AS DOUBLE)) AND regexp_matches({c}, '\\d')) OR "
        "(length(regexp_replace({c}, '[eE].*|[^0-9]', '', 'g')) > 15 AND (abs(TRY_CAST({c} AS DOUBLE)) >= 1e15 OR "
        "TRY_CAST({c} AS DECIMAL(38, 20)) IS DISTINCT FROM "
        "TRY_CAST(TRY_CAST({c} AS DOUBLE)::VARCHAR AS DECIMAL(38, 20))))"
    ),
}


def text_tests(kind: str, value: str) -> tuple[str, str] | None:
    """Conditions of a text in a column that DuckDB has detected: it is no value of this type (007), and it is a number
    that the type does not keep. None for types that keep everything."""
    if kind not in _TEXTS:
        return None
    return _TEXTS[kind].format(c=value), _NUMBERS.get(kind, "false").format(c=value)


def described(cursor: Any, call: str) -> dict[str, str]:
    """The columns of a table function, and their types."""
    return {name: kind for name, kind, *_ in cursor.execute(f"DESCRIBE FROM {call}").fetchall()}


def has_other_order(path: str) -> bool:
    """Whether files have their columns in different orders."""
    return any(mark in path for mark in "*?[") and len({_head(each) for each in found_files(path)}) > 1


def csv_call(
    path: str,
    types: Mapping[str, str] | None = None,
    *,
    quoted_nulls: bool = True,
    delimiter: str | None = None,
    by_name: bool = False,
) -> str:
    """The table function that reads CSV; `*` in the path matches several files.

    DuckDB takes the types of columns by their position, unless `by_name`, for which it looks into every file."""
    delimiter = delimiter_of(path) if delimiter is None else delimiter
    options = f"header=true, skip=0, delim={literal(delimiter)}, quote='\"', escape='\"', comment=''"
    if types:
        options += f", types={{{', '.join(f'{literal(name)}: {literal(kind)}' for name, kind in types.items())}}}"
    options += ", union_by_name=true" if by_name else ""
    sample = max(min(SAMPLE_ROWS, SAMPLE_BYTES // row_width(path)), 100)
    options += f", buffer_size={CSV_BUFFER}, sample_size={sample}"
    return f"read_csv({literal(path)}, {options}, null_padding=false, allow_quoted_nulls={str(quoted_nulls).lower()})"


def delimiter_of(path: str) -> str:
    """What separates the names in the first line: of the usual ones outside of quotes that which divides the next lines
    in the same way, otherwise the most frequent one."""
    found = sorted(glob.glob(path)) if any(mark in path for mark in "*?[") else [path]
    if path.lower().endswith(".tsv") or not found or not Path(found[0]).is_file():
        return "\t" if path.lower().endswith(".tsv") else ","
    line = _head(found[0]).decode("utf-8", "replace")
    outside = "".join(line.split('"')[::2])
    used = [each for each in DELIMITERS if each in outside] or [","]
    if len(used) == 1:
        return used[0]
    start = _start(found[0], HEAD_BYTES).rpartition(b"\n")[0].decode("utf-8-sig", "replace")
    return max(used, key=lambda each: (_divides(start, each), outside.count(each)))


def _divides(text: str, delimiter: str) -> bool:
    """Whether a delimiter divides the lines of a text in the same number of values."""
    try:
        return len({len(row) for row in csv_reader(io.StringIO(text, newline=""), delimiter) if row}) == 1
    except csv.Error:
        return False


_WRONG_VALUE = re.compile(
    r'CSV Error on Line: (\d+)\n.*converting column "(.+)"\. Could not convert string "(.*)" to \'(.+?)\''
    r".*\n  file = (.+?)\n",
    re.DOTALL,
)


def misfit(path: str, failure: str) -> str | None:
    """What is wrong in CSV that DuckDB has refused, in words: the first wrong line, or the value it has named."""
    for each in sorted(glob.glob(path)) if any(mark in path for mark in "*?[") else [path]:
        found = _wrong_line(each) if Path(each).is_file() else None
        if found is not None:
            return f"{each}: {found}"
    value = _WRONG_VALUE.search(failure)
    if value is None:
        return None
    line, column, text, kind, name = value.groups()
    return (
        f"{name}: line {line}: the column {column!r}: {text!r} is not {kind}, which the first lines have; declare its "
        f"type in the source, such as `types: {{{column}: text}}`"
    )


def same_columns(paths: Sequence[str]) -> list[list[str]]:
    """CSV files in groups that follow each other and have the same columns, in any order, and the same delimiter."""
    groups: list[list[str]] = []
    last: tuple[str, list[str]] | None = None
    before = b""
    for path in paths:
        head = _head(path)
        if not groups or head != before or head.count(b'"') % 2:
            delimiter = delimiter_of(path)
            found = (delimiter, sorted(first_line(path, delimiter)))
            if found != last:
                groups.append([])
            last, before = found, head
        groups[-1].append(path)
    return groups


def different(first: str, other: str) -> str:
    """How two CSV files differ, in words."""
    delimiters = delimiter_of(first), delimiter_of(other)
    columns, names = first_line(first, delimiters[0]), first_line(other, delimiters[1])
    if sorted(names) != sorted(columns):
        return f"{other} has the columns {', '.join(names)}, {first} has {', '.join(columns)}"
    return f"{other} separates values by {delimiters[1]!r}, {first} by {delimiters[0]!r}"


def _head(path: str | Path) -> bytes:
    """The first line that is not empty, or several if a name with quotes has line breaks."""
    with Path(path).open("rb") as file:
        line = file.readline(1 << 20)
        while line and not line.strip(b"\r\n"):
            line = file.readline(1 << 20)
        head = line
        while head.count(b'"') % 2 and len(head) < HEAD_BYTES and (more := file.readline(HEAD_BYTES)):
            head += more
    return head if head.count(b'"') % 2 == 0 else line


def begins_blank(path: str) -> bool:
    """Whether a file has empty lines before the names of its columns: DuckDB would read the names as values."""
    return any(_start(each, 4).removeprefix(codecs.BOM_UTF8)[:1] in (b"\r", b"\n") for each in found_files(path))


def _start(path: str | Path, size: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(size)


def first_line(path: str | Path, delimiter: str) -> list[str]:
    """The names of the columns of a CSV file."""
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return next((row for row in csv_reader(text_lines(file), delimiter) if row), [])
    except (csv.Error, LongLine):  # a quote that is not closed, or no text
        return _head(path).decode("utf-8", "replace").strip().split(delimiter)


def is_blank(path: str | Path) -> bool:
    """Whether a file has nothing but line breaks, and so no names of columns."""
    start = _start(path, BLANK_BYTES + 1)
    return len(start) <= BLANK_BYTES and not start.removeprefix(b"\xef\xbb\xbf").strip(b"\r\n ")


def _wrong_line(path: str) -> str | None:
    """The first line that is not UTF-8, not CSV, or has more or fewer values than the first one."""
    before = 0
    with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv_reader(text_lines(file), delimiter_of(path), strict=True)
        try:
            width = 0
            for row in lines:
                if any(not value.isascii() and not _is_unicode(value) for value in row):
                    return f"line {before + 1} is not UTF-8: {_other_bytes(path)}"
                width = width or len(row)
                if row and len(row) != width:
                    return f"line {before + 1} has {len(row)} values, the first line has {width}"
                before = lines.line_num
        except LongLine:
            return None
        except csv.Error as wrong:
            if "field limit" in str(wrong):  # of Python, not of the file
                return None
            return f"line {before + 1} is not CSV: {csv_problem(wrong)}"
    return None


def _other_bytes(path: str) -> str:
    """What to do with a file that is not UTF-8."""
    codec = compressed_by(_start(path, 8))
    if codec is not None:
        return f"it is compressed; set `compression: {codec}` in the source"
    return "set `encoding` in the source (latin-1, utf-16, ...)"


def _is_unicode(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def json_query(
    cursor: Any, path: str, format: str, steps: list[str], types: Mapping[str, str] | None = None
) -> tuple[str, set[str]]:
    """The query that gives the rows of JSON: the objects of a list (at `steps` inside the document) or of lines.

    The second value has its columns of numbers that are read as text, because an integer is no double.
    Called in a thread: it looks through the file for the columns."""
    place, shape = literal(path), f"format='{_SHAPES[format]}', maximum_object_size={_largest_object(path, format)}"
    source = f"read_json_auto({place}, {shape}, sample_size=-1, {WITHOUT_MAPS})"
    inner = ".".join(quote_column(step) for step in steps)
    rows = f"SELECT unnest(item) FROM (SELECT unnest({inner}) AS item FROM {source})" if steps else f"FROM {source}"
    if steps and not cursor.execute(f"SELECT 1 FROM (SELECT unnest({inner}) AS item FROM {source}) LIMIT 1").fetchall():
        return "SELECT NULL::JSON AS json WHERE false", set()  # an empty list, whose items have no type
    described = cursor.execute(f"DESCRIBE {rows}").fetchall()
    if not steps and format == "json" and _is_object(path):
        lists = {name for name, kind, *_ in described if kind.endswith("]")}
        inside = next((name for name in ROWS_KEYS if name in lists), None)
        if inside and len(cursor.execute(f"SELECT 1 FROM {source} LIMIT 2").fetchall()) == 1:
            return json_query(cursor, path, format, [inside], types)
    if [name for name, *_ in described] == ["json"]:
        return (f"SELECT * {rows}" if not steps else rows), set()  # no objects
    _check_case(cursor, place, shape, steps, [name for name, *_ in described])

    def typed(known: Mapping[str, str]) -> str:
        if not steps:
            columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in known.items())
            return f"SELECT * FROM read_json({place}, {shape}, columns={{{columns}}})"
        kind = f"STRUCT({', '.join(f'{quote_column(name)} {kind}' for name, kind in known.items())})[]"
        for step in reversed(steps[1:]):
            kind = f"STRUCT({quote_column(step)} {kind})"
        whole = f"read_json({place}, {shape}, columns={{{literal(steps[0])}: {literal(kind)}}})"
        return f"SELECT unnest(item) FROM (SELECT unnest({inner}) AS item FROM {whole})"

    given = types or {}
    kinds = narrowed(cursor, {name: _kind(kind) for name, kind, *_ in described}, rows)
    texts, numbers = changed_columns(cursor, typed, {name: kind for name, kind in kinds.items() if name not in given})
    return typed(kinds | dict.fromkeys(texts | numbers, "VARCHAR") | dict(given)), numbers


def _check_case(cursor: Any, place: str, shape: str, steps: list[str], names: list[str]) -> None:
    """An error if keys differ only in case: DuckDB calls one of them `name_1`, and reads null for it."""
    from duckdb import InvalidInputException

    lower = {name.lower() for name in names}
    if not any((found := re.fullmatch(r"(.+)_\d+", name.lower())) and found[1] in lower for name in names):
        return
    inner = "".join(f"->{literal(json_key(step))}" for step in steps)
    query = f"SELECT DISTINCT unnest(json_keys(row)) FROM (SELECT unnest(CASE json_type(json{inner}) WHEN 'ARRAY' "
    query += f"THEN (json{inner})::JSON[] ELSE [json{inner}] END) AS row FROM read_json_objects({place}, {shape}))"
    spelled: dict[str, str] = {}
    for (key,) in sorted(cursor.execute(query).fetchall()):
        if key.lower() in spelled:
            raise InvalidInputException(
                f"the rows have the keys {spelled[key.lower()]} and {key}, which differ only in case; read them with a "
                f"duckdb source: SELECT json->>{literal(json_key(key))} FROM read_json_objects('...')"
            )
        spelled[key.lower()] = key


def json_key(name: str) -> str:
    """The path of a member of an object."""
    return '$."' + name.replace('"', '\\"') + '"'


def found_files(path: str) -> list[Path]:
    """The files of a path, in which `*` matches several."""
    found = sorted(glob.glob(path, recursive=True)) if any(mark in path for mark in "*?[") else [path]
    return [Path(each) for each in found if Path(each).is_file()]


def row_width(path: str) -> int:
    """About how many bytes a line has, from the beginning of the first file."""
    for each in found_files(path)[:1]:
        with each.open("rb") as file:
            head = file.read(BATCH_BYTES)
        return max(len(head) // max(head.count(b"\n"), 1), 1)
    return 1


def batch_rows(path: str, most: int) -> int:
    """How many rows are read together, so that they are a few megabytes."""
    return max(min(most, BATCH_BYTES // row_width(path)), 1)


def _largest_object(path: str, format: str) -> int:
    """The size up to which an object is read: that of the longest line, or of the largest document.

    DuckDB allocates buffers of that size for each file and thread."""
    if format == "jsonl":
        return min(max(longest_line(found_files(path)), SMALLEST_BUFFER), LARGEST_OBJECT)
    sizes = (each.stat().st_size for each in found_files(path))
    return min(max(*sizes, 0, SMALLEST_BUFFER), LARGEST_OBJECT)


def _is_object(path: str) -> bool:
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _kind(kind: str) -> str:
    """A column's type; what has parts stays JSON."""
    return "JSON" if kind.endswith("]") or kind.startswith(("STRUCT", "MAP")) else kind
