"""Logs of many scenarios in one compressed file, and what differs from them."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import msgspec


def read(path: Path) -> dict[str, list[Any]]:
    """The stored logs by name."""
    return msgspec.json.decode(lzma.decompress(path.read_bytes())) if path.exists() else {}


def plain(log: list[Any]) -> list[Any]:
    """A log as it is stored."""
    return msgspec.json.decode(msgspec.json.encode(log))


def difference(found: list[Any], expected: list[Any]) -> str | None:
    """The first difference of two logs."""
    for number in range(max(len(found), len(expected))):
        one = found[number] if number < len(found) else None
        other = expected[number] if number < len(expected) else None
        if one != other:
            return f"entry {number}: {one}\nstored: {other}"
    return None


def write(path: Path, logs: dict[str, list[Any]]) -> None:
    """Store logs, and print the first difference of each from what was stored."""
    before = read(path)
    for name, log in logs.items():
        changed = difference(log, before[name]) if name in before else "new"
        if changed is not None:
            print(f"{name}: {changed}")
    path.write_bytes(lzma.compress(msgspec.json.encode(logs, order="sorted")))
    print(len(logs), "logs,", path.stat().st_size, "bytes")
