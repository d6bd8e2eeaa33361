"""Divides rows with nested data into tables (`nested: tables`): members of objects are columns, lists are child tables.

The row `{"id": 7, "to": {"city": "Oslo"}, "items": [{"sku": "a"}]}` of the table `orders` with the key `id` is

    orders          id=7, to__city=Oslo
    orders__items   _root_id=7, _index_1=0, sku=a

Every child table has the key of the root row (`_root_...`) and the positions in the lists on the way (`_index_1`, and
`_index_2` for a list in a list), which together are its key. A list of values has them in the column `value`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

SEPARATOR = "__"
ROOT = "_root_"
INDEX = "_index_"
MAX_NAME = 63  # bytes of a name in PostgreSQL
Path = tuple[str, ...]


def child_name(table: str, path: Path) -> str:
    """The table of a list."""
    before, dot, last = table.rpartition(".")
    return f"{before}{dot}{_short(SEPARATOR.join([last, *path]))}"


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
        target: dict[str, Any] = {}
        for name, value in row.items():
            _place(target, name, value, (), ids, children)
        flat.append(target)
    return flat, children


def _place(
    row: dict[str, Any], name: str, value: Any, path: Path, ids: dict[str, Any], children: dict[Path, Any]
) -> None:
    """Put a value into a row: members of an object as columns, items of a list into a child table."""
    if isinstance(value, Mapping):
        for member, each in value.items():
            _place(row, f"{name}{SEPARATOR}{member}", each, path, ids, children)
    elif isinstance(value, list):
        below = (*path, name)
        rows = children.setdefault(below, [])
        for number, item in enumerate(value):
            own = {**ids, f"{INDEX}{len(below)}": number}
            child = dict(own)
            for member, each in item.items() if isinstance(item, Mapping) else (("value", item),):
                _place(child, str(member), each, below, own, children)
            rows.append(child)
    elif value is not None:
        row[_short(name)] = value
