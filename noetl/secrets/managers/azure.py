"""Azure Key Vault: by an access token, or by an application's client credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from noetl.connections.http.client import HttpFailure
from noetl.connections.oauth2 import ClientCredentials, tokens
from noetl.secrets.source import SecretRequest, ask, data_or_text

API = "7.4"
SCOPE = "https://vault.azure.net/.default"


async def read(asked: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret's JSON fields, or its text."""
    auth = await asked.mapping("auth")
    written = asked.fields.get("url") or asked.fields.get("vault_url") or auth.get("vault_url")
    vault = written or asked.environment.get("AZURE_KEY_VAULT_URL")
    if not vault:
        raise asked.missing("it does not say which Key Vault: give `url`, or set AZURE_KEY_VAULT_URL", "schema")
    headers = {"Authorization": f"Bearer {await _token(asked, auth)}"}
    place = f"{str(vault).rstrip('/')}/secrets/{quote(secret)}/{quote(version or '')}?api-version={API}"
    status, said = await ask(asked, "GET", place, headers, who="Azure Key Vault", trusted=not written)
    fields = said if isinstance(said, Mapping) else {}
    if status == 404:
        raise asked.missing(f'Azure Key Vault has no secret "{secret}"' + (f" version {version}" if version else ""))
    if status != 200:
        failure = fields.get("error")
        why = failure.get("code", "") if isinstance(failure, Mapping) else ""
        raise asked.missing(f'Azure Key Vault refused "{secret}": HTTP {status} {why}'.rstrip())
    if not isinstance(fields.get("value"), str):
        raise asked.missing(f'the answer of Azure Key Vault has no value for "{secret}"', "parse")
    return data_or_text(fields["value"])


async def _token(asked: SecretRequest, auth: Mapping[str, Any]) -> str:
    token = auth.get("token") or auth.get("access_token") or auth.get("value")
    if token:
        return str(token)

    def find(field: str) -> str:
        value = auth.get(field) or asked.environment.get(f"AZURE_{field.upper()}")
        if not value:
            raise asked.missing(
                f"it does not say how to sign in to Azure: give `auth.{field}`, or set AZURE_{field.upper()}"
            )
        return str(value)

    authority = str(auth.get("authority") or "https://login.microsoftonline.com").rstrip("/")
    grant = ClientCredentials(
        token_url=str(auth.get("token_url") or f"{authority}/{find('tenant_id')}/oauth2/v2.0/token"),
        client_id=find("client_id"),
        client_secret=find("client_secret"),
        scope=SCOPE,
    )
    try:
        return await tokens().get(grant, allows=asked.allows_address)
    except HttpFailure as failure:
        raise asked.missing(f"Azure did not let us in: {failure.message}", failure.kind) from failure
