"""A file of secrets in place of a manager: for development, and for mounted secrets.

`path` is a JSON or YAML file with the key `secret` (dots select nested keys), or a folder with a
file of that name, as Kubernetes and Docker mount them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noetl.secrets.source import SecretRequest, data_or_text, read_secret_file, real_path


async def read(request: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret of that name."""
    written = request.fields.get("path") or request.fields.get("url") or request.environment.get("NOETL_SECRETS_PATH")
    if not written:
        raise request.unavailable("no file: give `path`, or set NOETL_SECRETS_PATH", "schema")
    return _read(request, str(written).removeprefix("file://"), secret)


def _read(request: SecretRequest, written: str, secret: str) -> Any:
    place = Path(request.folder, Path(written).expanduser())
    if place.is_dir():
        inside = place / secret
        if not Path(real_path(request, inside)).is_relative_to(real_path(request, place)):
            raise request.unavailable(f'"{secret}" is outside of the folder {place}')
        return data_or_text(read_secret_file(request, inside, "text"))
    found: Any = read_secret_file(request, place, "yaml" if place.suffix in (".yaml", ".yml") else "json")
    if isinstance(found, Mapping) and secret in found:
        return found[secret]
    for part in secret.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise request.unavailable(f'the file {place} has no secret "{secret}"')
        found = found[part]
    return found
