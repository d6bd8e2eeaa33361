"""`kind: oauth2`: an access token of the client credentials grant, cached and renewed before it expires."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.connections.http.client import HttpFailure
from noetl.connections.oauth2 import ClientCredentials, tokens
from noetl.secrets.source import SecretRequest


async def resolve(request: SecretRequest) -> str:
    """A valid access token."""
    data = request.fields.get("data")
    form = dict(data) if isinstance(data, Mapping) else {}

    async def value(field: str) -> str:
        written = request.fields.get(field) or form.get(field)
        if written in (None, ""):
            raise request.unavailable(f"`{field}` is missing", "schema")
        return await request.dereference(str(written))

    scope = request.fields.get("scope") or request.fields.get("scopes") or form.get("scope")
    audience = request.fields.get("audience") or form.get("audience")
    grant = ClientCredentials(
        token_url=str(request.fields.get("token_url") or request.text("endpoint", request.fields.get("url"))),
        client_id=await value("client_id"),
        client_secret=await value("client_secret"),
        scope=" ".join(map(str, scope)) if isinstance(scope, list) else str(scope) if scope else None,
        audience=str(audience) if audience else None,
        basic=str(request.fields.get("client_auth", "")).lower() == "basic",
    )
    try:
        return await tokens().get(grant, allows=request.allows_address)
    except HttpFailure as failure:
        raise request.unavailable(failure.message, failure.kind) from failure
