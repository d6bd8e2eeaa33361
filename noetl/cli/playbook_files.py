"""Reads files that a command line names.

A file that cannot be read is a usage error (exit 2). A file that can be read and is not a playbook
(empty, binary, too large) is an invalid playbook (exit 3), reported by the compiler's diagnostics.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from noetl.errors import RequestRefused

STDIN = "-"


def shown(file: Path) -> str:
    """A path for a message: relative to the working folder if it is inside."""
    absolute, here = Path(os.path.abspath(file)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


class CannotRead(RequestRefused):
    """A file cannot be read."""


def read_bounded(name: str, limit: int) -> bytes:
    """The bytes of a file (`-` is stdin), at most `limit` + 1: the additional byte shows that it is too large."""
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        with open(name, "rb") as file:
            return file.read(limit + 1)
    except OSError as problem:
        raise CannotRead(f"{name or repr(name)}: {_reason(problem, name)}") from None
    except ValueError as problem:  # a NUL in the name
        raise CannotRead(f"{name!r}: {problem}") from None


def _reason(problem: OSError, name: str) -> str:
    if isinstance(problem, FileNotFoundError):
        if os.path.islink(name):
            return f"is a link to {os.readlink(name)}, which does not exist"
        return "no such file" + _similar(name)
    if isinstance(problem, IsADirectoryError):
        return "is a folder; name a playbook file in it" + _contents(name)
    if isinstance(problem, PermissionError):
        return "permission denied"
    return f"cannot be read: {problem.strerror or problem}"


def _similar(name: str) -> str:
    """A file in the same folder with a similar name."""
    from difflib import get_close_matches

    folder = Path(name).parent
    try:
        names = [entry for entry in os.listdir(folder) if entry.endswith((".yaml", ".yml"))]
    except OSError:
        return ""
    close = get_close_matches(Path(name).name, names, n=1, cutoff=0.8)
    return f"; did you mean {folder / close[0]}?" if close else ""


def _contents(name: str) -> str:
    """The playbooks of a folder, if there are few."""
    found = sorted(entry for entry in os.listdir(name) if entry.endswith((".yaml", ".yml")))
    return f" ({', '.join(found)})" if 0 < len(found) <= 5 else ""
