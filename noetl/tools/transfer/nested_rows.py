"""Divides rows with nested data into tables (`nested: tables`): members of objects are columns, lists are child tables.

The row `{"id": 7, "to": {"city": "Oslo"}, "items": [{"sku": "a"}]}` of the table `orders` with the key `id` is

    orders          id=7, to__city=Oslo
    orders__items   _root_id=7, _index_1=0, sku=a

Every child table has the key of the root row (`_root_...`) and the positions in the lists on the way (`_index_1`, and
`_index_2` for a list in a list), which together are its key. A list of values has them in the column `value`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.data.sql import sibling_name, split_name
from noetl.tools._common.sql_task import BadInput

SEPARATOR = "__"
ROOT = "_root_"
INDEX = "_index_"
MAX_NAME = 63  # bytes of a name in PostgreSQL
Path = tuple[str, ...]


class _Row(NamedTuple):
    """A row of a table: its columns, and the names of its lists."""

    columns: dict[str, Any]
    lists: set[str]
    path: Path  # of the table
    ids: dict[str, Any]  # its key


def child_name(table: str, path: Path) -> str:
    """The table of a list."""
    return sibling_name(table, _short(SEPARATOR.join([split_name(table)[-1], *path])))


def list_tables(found: Iterable[tuple[str, bool]]) -> list[str]:
    """The tables of lists among tables whose names begin with that of the root, each with whether it has positions.

    A table without positions is the root of others, whose lists are its own."""
    tables = list(found)
    roots = tuple(f"{name}{SEPARATOR}" for name, has_positions in tables if not has_positions)
    return [name for name, has_positions in tables if has_positions and not name.startswith(roots)]


def _short(name: str) -> str:
    """The name; if it is too long, its beginning and a hash."""
    encoded = name.encode()
    if len(encoded) <= MAX_NAME:
        return name
    beginning = encoded[: MAX_NAME - 24].decode(errors="ignore")
    return "_".join((beginning, hashlib.sha256(encoded).hexdigest()[:12]))


def is_nested(field: Any) -> bool:
    """Whether a column may have objects or lists."""
    import pyarrow as pa

    from noetl.data.arrow_tables import meaning_of

    return meaning_of(field) == "json" or bool(pa.types.is_nested(field.type))


def divide(
    rows: list[dict[str, Any]], keys: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], dict[Path, Any]]:
    """The flat part of nested rows, and the rows of child tables; `keys` are the keys of the rows."""
    children: dict[Path, list[dict[str, Any]]] = {}
    flat = []
    for row, key in zip(rows, keys, strict=True):
        ids = {f"{ROOT}{name}": value for name, value in key.items()}
        target = _Row({}, set(), (), ids)
        for name, value in row.items():
            _place(target, name, value, children)
        flat.append(target.columns)
    return flat, children


def _place(row: _Row, name: str, value: Any, children: dict[Path, Any]) -> None:
    """Put a value into a row: members of an object as columns, items of a list into a child table."""
    if isinstance(value, Mapping):
        for member, each in value.items():
            _place(row, f"{name}{SEPARATOR}{member}", each, children)
    elif isinstance(value, list):
        if name in row.lists:
            raise clash(name)
        row.lists.add(name)
        below = (*row.path, name)
        rows = children.setdefault(below, [])
        for number, item in enumerate(value):
            own = {**row.ids, f"{INDEX}{len(below)}": number}
            child = _Row(dict(own), set(), below, own)
            for member, each in item.items() if isinstance(item, Mapping) else (("value", item),):
                _place(child, str(member), each, children)
            rows.append(child.columns)
    elif value is not None:
        column = _short(name)
        if column in row.columns:
            raise clash(column)
        row.columns[column] = value


def clash(name: str) -> BadInput:
    """The error for two values that need a column or a child table of the same name."""
    return BadInput(
        f"`nested: tables` needs the name {name!r} for two columns or child tables: names of members are joined with "
        f"{SEPARATOR!r}, and `{ROOT}...` and `{INDEX}...` are the key of a child table; rename a member"
    )
