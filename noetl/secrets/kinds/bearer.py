"""`kind: bearer`: a token, written or named."""

from __future__ import annotations

from noetl.secrets.source import SecretRequest


async def resolve(asked: SecretRequest) -> str:
    """The token."""
    return await asked.value("token")
