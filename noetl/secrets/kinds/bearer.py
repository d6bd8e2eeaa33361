"""`kind: bearer`: a token, written or named."""

from __future__ import annotations

from noetl.secrets.source import Asked


async def resolve(asked: Asked) -> str:
    """The token."""
    return await asked.value("token")
