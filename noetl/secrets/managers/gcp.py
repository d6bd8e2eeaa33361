"""Google Secret Manager. Credentials come from google-auth.

Without `auth`, the application default credentials apply: `GOOGLE_APPLICATION_CREDENTIALS` (a service account or a
workload identity configuration), gcloud's own, and the metadata server of Google Cloud.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from noetl.runtime.resources import per_loop
from noetl.secrets.source import SecretRequest, call_library, check_address, data_or_text, send

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_URL = "https://oauth2.googleapis.com/token"
HOSTS = r"secretmanager\.(.+\.)?googleapis\.com"
ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"  # gcloud's variable
SERVICE = "Google Secret Manager"


async def read(request: SecretRequest, secret: str, version: str | None) -> Any:
    """The fields of a JSON secret, or its text; binary as base64 text."""
    auth = await request.mapping("auth")
    url, trusted = _address(request, own_credentials=not auth)
    if auth:
        token, project = await _explicit_token(request, auth), auth.get("project_id")
    else:
        chain = per_loop(_Chain, _Chain)
        token, project = await call_library(request, "gcp", lambda: chain.token(request))
    name = _resource_name(request, secret, version, project)
    headers = {"Authorization": f"Bearer {token}"}
    status, fields = await send(
        request, "GET", f"{url}/v1/{quote(name)}:access", headers, service=SERVICE, trusted=trusted
    )
    if status == 404:
        raise request.unavailable(f'{SERVICE} has no "{name}"')
    if status != 200:
        code = fields.get("error", {}).get("status", "") if isinstance(fields.get("error"), Mapping) else ""
        raise request.unavailable(f'{SERVICE} denied access to "{name}": HTTP {status} {code}'.rstrip())
    payload = fields.get("payload")
    if not isinstance(payload, Mapping) or not isinstance(payload.get("data"), str):
        raise request.unavailable(f'the response of {SERVICE} has no value for "{name}"', "parse")
    try:
        return data_or_text(base64.b64decode(payload["data"]).decode())
    except UnicodeDecodeError:
        return payload["data"]


class _Chain:
    """Application default credentials, one per event loop."""

    def __init__(self) -> None:
        self._found: tuple[Any, str | None] | None = None

    def token(self, request: SecretRequest) -> tuple[str, str | None]:
        """A valid access token, and the project of the credentials."""
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.auth.transport.requests import Request

        try:
            if self._found is None:
                self._found = google.auth.default(scopes=[SCOPE], request=Request())
        except DefaultCredentialsError as failure:
            raise request.unavailable(
                "no Google credentials: give `auth` (a token, or the key of a service account), set "
                "GOOGLE_APPLICATION_CREDENTIALS, or run with a service account of Google Cloud "
                f"({str(failure.args[0]).splitlines()[0]})"
            ) from None
        credentials, project = self._found
        if not credentials.valid:
            credentials.refresh(Request())
        return str(credentials.token), project


def _address(request: SecretRequest, *, own_credentials: bool) -> tuple[str, bool]:
    """The base URL, and whether it is configured in the installation."""
    written = request.fields.get("url")
    if written and own_credentials:
        check_address(request, str(written), HOSTS, SERVICE, ENDPOINT)
    configured = request.environment.get(ENDPOINT)
    url = str(written or configured or "https://secretmanager.googleapis.com")
    return url.rstrip("/"), not written and bool(configured)


def _resource_name(request: SecretRequest, secret: str, version: str | None, own_project: str | None) -> str:
    if secret.startswith("projects/"):
        name = secret.strip("/")
    else:
        project = (
            request.fields.get("project")
            or request.fields.get("project_id")
            or request.environment.get("GOOGLE_CLOUD_PROJECT")
            or own_project
        )
        if not project:
            raise request.unavailable("no Google project: give `project`, or set GOOGLE_CLOUD_PROJECT", "schema")
        name = f"projects/{project}/secrets/{secret}"
    return name if "/versions/" in name else f"{name}/versions/{version or 'latest'}"


async def _explicit_token(request: SecretRequest, auth: Mapping[str, Any]) -> str:
    token = auth.get("token") or auth.get("access_token") or auth.get("value")
    if token:
        return str(token)
    if not (auth.get("client_email") and auth.get("private_key")):
        raise request.unavailable("`auth` must be a token or the key of a service account", "schema")
    url = str(auth.get("token_uri") or TOKEN_URL)
    assertion = await call_library(request, "gcp", lambda: _assertion(request, auth, url))
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, fields = await send(request, "POST", url, headers, body=urlencode(form).encode(), service="Google")
    if status != 200 or not fields.get("access_token"):
        reason = fields.get("error_description") or fields.get("error") or ""
        raise request.unavailable(f"Google rejected the service account: HTTP {status} {reason}".rstrip())
    return str(fields["access_token"])


def _assertion(request: SecretRequest, auth: Mapping[str, Any], url: str) -> str:
    """A signed JWT for the service account (RFC 7523)."""
    from google.auth import crypt, jwt

    now = int(time.time())
    claims = {"iss": auth["client_email"], "scope": SCOPE, "aud": url, "iat": now, "exp": now + 3600}
    try:
        signer = crypt.RSASigner.from_service_account_info(auth)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise request.unavailable("`private_key` of the service account is not a PEM key", "parse") from None
    return str(jwt.encode(signer, claims).decode())  # type: ignore[no-untyped-call]
