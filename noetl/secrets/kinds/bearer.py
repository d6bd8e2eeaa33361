"""`kind: bearer`: a token, given literally or as the name of another entry."""

from __future__ import annotations

from noetl.secrets.source import SecretRequest


async def resolve(request: SecretRequest) -> str:
    """The token."""
    return await request.dereference(request.text("token"))
