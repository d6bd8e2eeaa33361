"""`kind: file`: the content of a file, as text or as the mapping of a JSON or YAML document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noetl.secrets.source import SecretRequest, read_secret_file


async def resolve(request: SecretRequest) -> Any:
    """The content of the file; trailing line breaks of text are removed."""
    return _read(request, request.text("path"), str(request.fields.get("format") or "text").lower())


def _read(request: SecretRequest, written: str, format: str) -> Any:
    return read_secret_file(request, Path(request.folder, Path(written).expanduser()), format)
