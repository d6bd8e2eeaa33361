"""A file of secrets in place of a manager: for development, and for mounted secrets.

`path` is a JSON or YAML file in which `secret` is a key (dots lead inside), or a folder in which it is a
file, as Kubernetes and Docker mount them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noetl.secrets.source import SecretRequest, data_or_text, read_secret_file


async def read(asked: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret of that name."""
    written = asked.fields.get("path") or asked.fields.get("url") or asked.environment.get("NOETL_SECRETS_PATH")
    if not written:
        raise asked.missing("it does not say which file: give `path`, or set NOETL_SECRETS_PATH", "schema")
    return _read(asked, str(written).removeprefix("file://"), secret)


def _read(asked: SecretRequest, written: str, secret: str) -> Any:
    place = Path(asked.folder, Path(written).expanduser())
    if place.is_dir():
        inside = place / secret
        if ".." in Path(secret).parts or Path(secret).is_absolute():
            raise asked.missing(f'"{secret}" leads out of the folder {place}')
        return data_or_text(read_secret_file(asked, inside, "text"))
    found: Any = read_secret_file(asked, place, "yaml" if place.suffix in (".yaml", ".yml") else "json")
    if isinstance(found, Mapping) and secret in found:
        return found[secret]
    for part in secret.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise asked.missing(f'the file {place} has no secret "{secret}"')
        found = found[part]
    return found
