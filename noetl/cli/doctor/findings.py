"""The result of one check of `noetl doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    status: str
    detail: str


def nearest_folder(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
