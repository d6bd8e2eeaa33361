"""Azure Key Vault. Credentials come from azure-identity.

Without `auth`, `DefaultAzureCredential` applies: environment, workload identity, managed identity, Azure CLI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from noetl.connections.http.client import HttpFailure
from noetl.connections.oauth2 import ClientCredentials, tokens
from noetl.runtime.resources import per_loop
from noetl.secrets.source import SecretRequest, call_library, check_address, data_or_text, send

API = "7.4"
SCOPE = "https://vault.azure.net/.default"
HOSTS = r".+\.vault\.azure\.net"
SERVICE = "Azure Key Vault"


async def read(request: SecretRequest, secret: str, version: str | None) -> Any:
    """The fields of a JSON secret, or its text."""
    auth = await request.mapping("auth")
    written = request.fields.get("url") or request.fields.get("vault_url") or auth.get("vault_url")
    vault = written or request.environment.get("AZURE_KEY_VAULT_URL")
    if not vault:
        raise request.unavailable("no Key Vault: give `url`, or set AZURE_KEY_VAULT_URL", "schema")
    token = await _explicit_token(request, auth)
    if token is None:
        if written:
            check_address(request, str(written), HOSTS, SERVICE, "AZURE_KEY_VAULT_URL")
        chain = per_loop(_Chain, _Chain)
        token = await call_library(request, "azure", lambda: chain.token(request))
    url = f"{str(vault).rstrip('/')}/secrets/{quote(secret)}/{quote(version or '')}?api-version={API}"
    headers = {"Authorization": f"Bearer {token}"}
    status, fields = await send(request, "GET", url, headers, service=SERVICE, trusted=not written)
    if status == 404:
        raise request.unavailable(f'{SERVICE} has no secret "{secret}"' + (f" version {version}" if version else ""))
    if status != 200:
        failure = fields.get("error")
        code = failure.get("code", "") if isinstance(failure, Mapping) else ""
        raise request.unavailable(f'{SERVICE} denied access to "{secret}": HTTP {status} {code}'.rstrip())
    if not isinstance(fields.get("value"), str):
        raise request.unavailable(f'the response of {SERVICE} has no value for "{secret}"', "parse")
    return data_or_text(fields["value"])


class _Chain:
    """`DefaultAzureCredential`, one per event loop; it caches and renews its tokens."""

    def __init__(self) -> None:
        self._credential: Any = None

    def token(self, request: SecretRequest) -> str:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import CredentialUnavailableError, DefaultAzureCredential

        if self._credential is None:
            self._credential = DefaultAzureCredential()
        try:
            return str(self._credential.get_token(SCOPE).token)
        except (ClientAuthenticationError, CredentialUnavailableError) as failure:
            raise request.unavailable(
                "no Azure credentials: give `auth` (a token, or tenant_id, client_id and client_secret), set "
                "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or run with a workload identity or a "
                f"managed identity ({str(failure.message).splitlines()[0]})"
            ) from None

    def close(self) -> None:
        """Close the credential's connections."""
        if self._credential is not None:
            self._credential.close()


async def _explicit_token(request: SecretRequest, auth: Mapping[str, Any]) -> str | None:
    """A token from `auth`; None if it has neither a token nor client credentials."""
    token = auth.get("token") or auth.get("access_token") or auth.get("value")
    if token:
        return str(token)
    if not auth.get("client_secret"):
        return None

    def find(field: str) -> str:
        value = auth.get(field) or request.environment.get(f"AZURE_{field.upper()}")
        if not value:
            raise request.unavailable(f"`auth.{field}` is missing", "schema")
        return str(value)

    authority = str(auth.get("authority") or "https://login.microsoftonline.com").rstrip("/")
    grant = ClientCredentials(
        token_url=str(auth.get("token_url") or f"{authority}/{find('tenant_id')}/oauth2/v2.0/token"),
        client_id=find("client_id"),
        client_secret=find("client_secret"),
        scope=SCOPE,
    )
    try:
        return await tokens().get(grant, allows=request.allows_address)
    except HttpFailure as failure:
        raise request.unavailable(
            f"Azure rejected the client credentials: {failure.message}", failure.kind
        ) from failure
