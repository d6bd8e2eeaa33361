"""The types of JSON columns: those that DuckDB detects, except where they would change a value.

DuckDB takes texts such as `10-11-12`, `epoch` and `1:2:3` for dates and times, cuts times to microseconds, and reads
integers beside fractions as doubles, which are exact up to 2**53. It reads a row with more than 200 columns, or with
columns that most rows do not have, as one map; `WITHOUT_MAPS` is the option against that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from noetl.data.sql import quote_column

WITHOUT_MAPS = "map_inference_threshold=-1, field_appearance_threshold=0"
EXACT_INTEGER = 2**53  # up to here, every integer is a double
MAX_MEMBERS = 200  # of a structure; an object with more is a map, or JSON
_TIME = r"\d\d:\d\d:\d\d(\.\d{1,6}0*)?"
_TEXTS = {  # how values of a type are written; a column with other texts is text
    "DATE": r"\d{4}-\d\d-\d\d",
    "TIME": rf"\d\d:\d\d|{_TIME}",
    "TIMESTAMP": rf"\d{{4}}-\d\d-\d\d[T ]{_TIME}",
    "TIMESTAMP WITH TIME ZONE": rf"\d{{4}}-\d\d-\d\d[T ]{_TIME} ?(Z|[+-]\d\d(:?\d\d)?)",
}
_TEMPORAL = {*(kind.lower() for kind in _TEXTS), "uuid"}
_INEXACT = (
    r"(regexp_full_match({c}, '-?\d+') AND abs(TRY_CAST({c} AS DOUBLE)) >= 9007199254740992) "
    r"OR isinf(TRY_CAST({c} AS DOUBLE))"
)


def changed_columns(
    cursor: Any, query: Callable[[Mapping[str, str]], str], kinds: Mapping[str, str]
) -> tuple[set[str], set[str]]:
    """The columns of `kinds` with texts that are no values of their type, and those with numbers that are no doubles.

    `query` is the query that reads columns with given types. It is executed once if there are such types."""
    tests = {
        name: f"bool_or(NOT regexp_full_match({quote_column(name)}, '{_TEXTS[kind]}'))"
        if kind in _TEXTS
        else f"bool_or({_INEXACT.format(c=quote_column(name))})"
        for name, kind in kinds.items()
        if kind in _TEXTS or kind == "DOUBLE"
    }
    if not tests:
        return set(), set()
    found = cursor.execute(f"SELECT {', '.join(tests.values())} FROM ({query(dict.fromkeys(tests, 'VARCHAR'))})")
    changed = {name for name, is_changed in zip(tests, found.fetchall()[0], strict=True) if is_changed}
    return {name for name in changed if kinds[name] != "DOUBLE"}, {name for name in changed if kinds[name] == "DOUBLE"}


def narrowed(cursor: Any, kinds: Mapping[str, str], rows: str) -> dict[str, str]:
    """The types with BIGINT for HUGEINT, which DuckDB detects for negative beside positive integers, if it suffices."""
    names = [name for name, kind in kinds.items() if kind == "HUGEINT"]
    if not names:
        return dict(kinds)
    fits = "min({c}) >= -9223372036854775808 AND max({c}) <= 9223372036854775807"
    tests = ", ".join(fits.format(c=quote_column(name)) for name in names)
    found = cursor.execute(f"SELECT {tests} FROM ({rows})").fetchall()[0]
    return {**kinds, **{name: "BIGINT" for name, is_small in zip(names, found, strict=True) if is_small}}


def nested_kind(kind: Any) -> str:
    """The type of a column for SQL; inside of objects and lists, texts are texts."""
    if kind.id == "list":
        return f"{_inner(kind.children[0][1])}[]"
    if kind.id == "map":
        return f"MAP(VARCHAR, {_inner(kind.children[1][1])})"
    if kind.id != "struct":
        return str(kind)
    members = {name: _inner(member) for name, member in kind.children}
    if len(members) <= MAX_MEMBERS:
        return f"STRUCT({', '.join(f'{quote_column(name)} {member}' for name, member in members.items())})"
    return f"MAP(VARCHAR, {next(iter(members.values()))})" if len(set(members.values())) == 1 else "JSON"


def _inner(kind: Any) -> str:
    return "VARCHAR" if kind.id in _TEMPORAL else nested_kind(kind)


def decimal_kind(cursor: Any, column: str, query: str) -> str:
    """The type that holds all numbers of a column of texts exactly: a decimal, or text if they have too many digits."""
    name = quote_column(column)
    digits = (
        f"max(length(ltrim(split_part({name}, '.', 1), '-'))), max(length(nullif(split_part({name}, '.', 2), '0')))"
    )
    found = cursor.execute(f"SELECT {digits}, bool_or(regexp_matches({name}, '[^0-9.-]')) FROM ({query})").fetchall()[0]
    whole, scale, other = found[0], found[1] or 0, found[2]
    return "VARCHAR" if other or whole + scale > 38 else f"DECIMAL(38,{scale})"
