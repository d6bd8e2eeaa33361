"""How one thing of an installation is: what the checks of `noetl doctor` answer with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"


class Finding(NamedTuple):
    """How one thing is."""

    name: str
    status: str
    detail: str


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
