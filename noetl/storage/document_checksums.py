"""Checksums of JSON documents in small tables (triggers, deliveries, state, quotas, ...), written after the document.

The checksum covers the document and the other columns of its row. It is written as white space, which every JSON parser
ignores: a server of an earlier release reads the row, and a row that it writes has no checksum and is not checked. So
there is no column that an older server leaves outdated (decision 75).
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import msgspec

_BITS = 32
_SPACE, _TAB, _NEWLINE = b" ", b"\t", b"\n"
LENGTH = _BITS + 1  # bytes of a checksum
_WHITE = b" \t\r\n"
_TO_SPACE = bytes.maketrans(b"01", _SPACE + _TAB)
_FROM_SPACE = bytes.maketrans(_SPACE + _TAB, b"01")


class CheckedTable(NamedTuple):
    """A table with documents; the checksum covers the key and the other columns, in this order."""

    key: tuple[str, ...]
    others: tuple[str, ...] = ()
    document: str = "data"
    values: bool = False  # the documents are any JSON values, else objects


CHECKED_TABLES = {
    "catalogue": CheckedTable(("path", "version"), ("digest", "registered_at"), "origin"),
    "days": CheckedTable(("path", "day")),
    "deliveries": CheckedTable(
        ("id",), ("kind", "name", "key", "received_at", "status", "due", "holds", "execution_id")
    ),
    "load_samples": CheckedTable(("at", "server")),
    "quotas": CheckedTable(("key",), ("idle_at",)),
    "state": CheckedTable(("path", "key"), ("version", "updated_at", "execution"), values=True),
    "triggers": CheckedTable(("kind", "name"), ("revision", "wake")),
}


def with_checksum(document: bytes, *columns: Any) -> bytes:
    """The document with the checksum of itself and of the other columns of its row."""
    return document + _NEWLINE + f"{_checksum(document, columns):032b}".encode().translate(_TO_SPACE)


def is_intact(stored: object, *columns: Any) -> bool:
    """Whether a stored document matches its checksum; one without a checksum must be JSON."""
    if not isinstance(stored, bytes):
        return False
    if stored and stored[-1:] in _WHITE:
        document, mark, bits = stored[:-LENGTH], stored[-LENGTH : 1 - LENGTH], stored[1 - LENGTH :]
        if mark != _NEWLINE or bits.strip(_SPACE + _TAB):
            return False
        return int(bits.translate(_FROM_SPACE), 2) == _checksum(document, columns)
    try:
        msgspec.json.decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def without_checksum(stored: bytes) -> bytes:
    """The document."""
    return stored.rstrip(_WHITE)


def _checksum(document: bytes, columns: tuple[Any, ...]) -> int:
    return zlib.crc32(document, zlib.crc32(msgspec.json.encode([_plain(each) for each in columns])))


def _plain(value: Any) -> Any:
    """The same value for both databases: SQLite returns truth values as numbers, and columns of numbers convert."""
    return float(value) if isinstance(value, bool | int) else value
