"""Divides rows with nested data into tables (`nested: tables`): members of objects are columns, lists are child tables.

The row `{"id": 7, "to": {"city": "Oslo"}, "items": [{"sku": "a"}]}` of the table `orders` with the key `id` is

    orders          id=7, to__city=Oslo
    orders__items   _root_id=7, _index_1=0, sku=a

Every child table has the key of the root row (`_root_...`) and the positions in the lists on the way (`_index_1`, and
`_index_2` for a list in a list), which together are its key. A list of values has them in the column `value`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from noetl.data.sql import sibling_name, split_name
from noetl.tools._common.sql_task import BadInput

SEPARATOR = "__"
ROOT = "_root_"
INDEX = "_index_"
MAX_NAME = 63  # bytes of a name in PostgreSQL
OWNER_DIGITS, NAME_DIGITS = 6, 12  # of the hashes in names that were cut
_CUT = re.compile(rf"(.*)_([0-9a-f]{{{OWNER_DIGITS}}})[0-9a-f]{{{NAME_DIGITS}}}", re.DOTALL)
_NOT_IN_FILES = re.compile(r"[^\w .,()+@&!$;~-]")  # and in addresses of objects
Path = tuple[str, ...]


class _Row(NamedTuple):
    """A row of a table: its columns, and the names of its lists."""

    columns: dict[str, Any]
    lists: set[str]
    path: Path  # of the table
    ids: dict[str, Any]  # its key


def child_name(table: str, path: Path, quote: str = '"') -> str:
    """The table of a list."""
    root = split_name(table, quote)[-1]
    return sibling_name(table, _short(SEPARATOR.join([root, *path]), root), quote)


def list_tables(table: str, found: Iterable[tuple[str, bool]], quote: str = '"') -> list[str]:
    """The tables of a table's lists among tables with its `beginning`, each with whether it has positions."""
    return [sibling_name(table, name, quote) for name in _lists(split_name(table, quote)[-1], found)]


def _lists(root: str, found: Iterable[tuple[str, bool]]) -> list[str]:
    """A table without positions is the root of others, whose lists are its own."""
    tables = list(found)
    roots = [name for name, has_positions in tables if not has_positions and name != root]
    return [
        name
        for name, has_positions in tables
        if has_positions and belongs(name, root) and not any(belongs(name, other) for other in roots)
    ]


def child_file(address: str, path: Path) -> str:
    """The file of a list: beside that of the root rows, with the same extension."""
    folder, root, extension = split_file(address)
    name = SEPARATOR.join([root, *(_NOT_IN_FILES.sub("_", part) for part in path)])
    return folder + _short(name, root) + extension


def list_files(address: str, found: Iterable[tuple[str, bool]]) -> list[str]:
    """The files of a file's lists among the names of files in its folder, each with whether it has positions."""
    folder, root, extension = split_file(address)
    names = ((name.removesuffix(extension), is_list) for name, is_list in found)
    return [folder + name + extension for name in _lists(root, names)]


def split_file(address: str) -> tuple[str, str, str]:
    """The folder with the slash after it, the name without its extension, and the extension with the dot."""
    folder, slash, name = address.rpartition("/")
    root, dot, extension = name.rpartition(".")
    return folder + slash, root, dot + extension


def beginning(owner: str) -> str:
    """How the names of an object's members, or of a table's lists, begin."""
    return _cut(f"{owner}{SEPARATOR}")


def belongs(name: str, owner: str) -> bool:
    """Whether this is the name of a member of the object, or of a list of the table; also if it was cut."""
    if name.startswith(f"{owner}{SEPARATOR}"):
        return True
    found = _CUT.fullmatch(name)
    return found is not None and found[1] == beginning(owner) and found[2] == _digest(owner, OWNER_DIGITS)


def is_member(column: str) -> bool:
    """Whether this is the column of a member of an object; `__v` is none."""
    return SEPARATOR in column[1:] or _CUT.fullmatch(column) is not None


def _short(name: str, owner: str) -> str:
    """The name; if it is too long, its beginning, and hashes of its owner and of itself."""
    if len(name.encode()) <= MAX_NAME:
        return name
    return f"{_cut(name)}_{_digest(owner, OWNER_DIGITS)}{_digest(name, NAME_DIGITS)}"


def _cut(name: str) -> str:
    return name.encode()[: MAX_NAME - 24].decode(errors="ignore")


def _digest(name: str, digits: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:digits]


def is_nested(field: Any) -> bool:
    """Whether a column may have objects or lists."""
    import pyarrow as pa

    from noetl.data.arrow_tables import meaning_of

    return meaning_of(field) == "json" or bool(pa.types.is_nested(field.type))


def divide(
    rows: list[dict[str, Any]], keys: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], dict[Path, Any]]:
    """The flat part of nested rows, and the rows of child tables; `keys` are the keys of the rows or stand for them."""
    children: dict[Path, list[dict[str, Any]]] = {}
    flat = []
    for row, key in zip(rows, keys, strict=True):
        ids = {f"{ROOT}{name}": value for name, value in key.items()}
        target = _Row({}, set(), (), ids)
        for name, value in row.items():
            _place(target, name, value, children, name)
        flat.append(target.columns)
    return flat, children


def _place(row: _Row, name: str, value: Any, children: dict[Path, Any], member: str) -> None:
    """Put a value of a `member` into a row: members of an object as columns, items of a list into a child table."""
    if isinstance(value, Mapping):
        for below, each in value.items():
            _place(row, f"{name}{SEPARATOR}{below}", each, children, member)
    elif isinstance(value, list):
        if name in row.lists:
            raise clash(name)
        row.lists.add(name)
        path = (*row.path, name)
        rows = children.setdefault(path, [])
        for number, item in enumerate(value):
            own = {**row.ids, f"{INDEX}{len(path)}": number}
            child = _Row(dict(own), set(), path, own)
            for below, each in item.items() if isinstance(item, Mapping) else (("value", item),):
                _place(child, str(below), each, children, str(below))
            rows.append(child.columns)
    elif value is not None:
        column = _short(name, member)
        if column in row.columns:
            raise clash(column)
        row.columns[column] = value


def clash(name: str) -> BadInput:
    """The error for two values that need a column or a child table of the same name."""
    return BadInput(
        f"`nested: tables` needs the name {name!r} for two columns or child tables: names of members are joined with "
        f"{SEPARATOR!r}, and `{ROOT}...` and `{INDEX}...` are the key of a child table; rename a member"
    )
