"""`kind: oauth2`: an access token by client credentials, shared and renewed before it expires."""

from __future__ import annotations

from collections.abc import Mapping

from noetl.connections.http.client import HttpFailure
from noetl.connections.oauth2 import ClientCredentials, tokens
from noetl.secrets.source import SecretRequest


async def resolve(asked: SecretRequest) -> str:
    """A token that is good for a while."""
    data = asked.fields.get("data")
    form = dict(data) if isinstance(data, Mapping) else {}

    async def value(field: str) -> str:
        written = asked.fields.get(field) or form.get(field)
        if written in (None, ""):
            raise asked.missing(f"it has no `{field}`", "schema")
        return await asked.meant(str(written))

    scope = asked.fields.get("scope") or asked.fields.get("scopes") or form.get("scope")
    audience = asked.fields.get("audience") or form.get("audience")
    grant = ClientCredentials(
        token_url=str(asked.fields.get("token_url") or asked.text("endpoint", asked.fields.get("url"))),
        client_id=await value("client_id"),
        client_secret=await value("client_secret"),
        scope=" ".join(map(str, scope)) if isinstance(scope, list) else str(scope) if scope else None,
        audience=str(audience) if audience else None,
        basic=str(asked.fields.get("client_auth", "")).lower() == "basic",
    )
    try:
        return await tokens().get(grant, allows=asked.allows_address)
    except HttpFailure as failure:
        raise asked.missing(failure.message, failure.kind) from failure
