"""Names of the types that a source may declare for its columns (`types: {price: numeric}`). Cheap to import."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_PRECISION = 38
_NAMES = {
    "text": "text", "string": "text", "varchar": "text", "char": "text", "character varying": "text",
    "boolean": "boolean", "bool": "boolean",
    "smallint": "smallint", "int2": "smallint", "integer": "bigint", "int": "bigint", "int4": "bigint",
    "bigint": "bigint", "int8": "bigint",
    "double": "double", "number": "double", "float": "double", "float8": "double", "real": "double",
    "double precision": "double", "numeric": "numeric", "decimal": "numeric",
    "date": "date", "time": "time", "timestamp": "timestamp", "datetime": "timestamp",
    "timestamp without time zone": "timestamp", "timestamptz": "timestamptz", "timestamp with time zone": "timestamptz",
    "interval": "interval", "uuid": "uuid", "json": "json", "jsonb": "json",
    "bytes": "bytes", "bytea": "bytes", "blob": "bytes", "binary": "bytes",
}  # fmt: skip
_DECIMAL = re.compile(r"(?:numeric|decimal)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
CHOICES = (
    "text, boolean, smallint, bigint, double, numeric, decimal(p, s), date, time, timestamp, timestamptz, interval, "
    "uuid, json, bytes, and arrays such as bigint[]"
)
_NO_ARRAYS = ("json", "interval", "bytes")
# Of the names that `type_name` knows, in lower case and with single blanks.
PATTERN = "(?:{})|(?:{}|{})(?: ?\\[\\])?".format(
    "|".join(name for name, of in _NAMES.items() if of in _NO_ARRAYS),
    "|".join(name for name, of in _NAMES.items() if of not in _NO_ARRAYS),
    _DECIMAL.pattern.replace(r"(\d+)", r"(?:[1-9]|[12]\d|3[0-8])", 1).replace(r"(\d+)", r"\d+"),
)


class TypeName(NamedTuple):
    """A type by its name; `precision` and `scale` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0
    is_array: bool = False


def type_name(name: str) -> TypeName | None:
    """The type of this name; None if there is none."""
    text = " ".join(name.lower().split())
    if text.endswith("[]"):
        element = type_name(text[:-2].rstrip())
        usable = element is not None and not element.is_array and element.name not in _NO_ARRAYS
        return element._replace(is_array=True) if element is not None and usable else None
    found = _DECIMAL.fullmatch(text)
    if found:
        precision, scale = int(found[1]), int(found[2] or 0)
        return TypeName("decimal", precision, scale) if scale <= precision in range(1, MAX_PRECISION + 1) else None
    return TypeName(_NAMES[text]) if text in _NAMES else None
