"""`kind: file`: a value from a file, as text or as the mapping that JSON or YAML has in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noetl.secrets.source import SecretRequest, read_secret_file


async def resolve(asked: SecretRequest) -> Any:
    """The file's content; a last line break of text is not part of the secret."""
    return _read(asked, asked.text("path"), str(asked.fields.get("format") or "text").lower())


def _read(asked: SecretRequest, written: str, format: str) -> Any:
    return read_secret_file(asked, Path(asked.folder, Path(written).expanduser()), format)
