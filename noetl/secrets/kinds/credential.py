"""`kind: credential`: a stored credential."""

from __future__ import annotations

from typing import Any

from noetl.errors import SecretUnavailable
from noetl.secrets.source import SecretRequest


async def resolve(request: SecretRequest) -> Any:
    """The stored credential that the entry names (default: the name of the entry)."""
    name = str(request.fields.get("credential") or request.fields.get("key") or request.name)
    try:
        return await request.stored(name)
    except SecretUnavailable as missing:
        if name in missing.reasons and name != request.name:
            raise request.unavailable(f'"{name}": {missing.reasons[name]}', missing.kind) from missing
        raise
