"""Google Secret Manager: by an access token, or by a service account's key file."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from noetl.secrets.source import SecretRequest, ask, data_or_text, read_secret_file

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_URL = "https://oauth2.googleapis.com/token"


async def read(asked: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret's JSON fields, or its text."""
    auth = await asked.mapping("auth")
    if not auth and asked.environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        auth = read_secret_file(asked, Path(asked.environment["GOOGLE_APPLICATION_CREDENTIALS"]), "json")
    if secret.startswith("projects/"):
        name = secret.strip("/")
    else:
        project = (
            asked.fields.get("project")
            or asked.fields.get("project_id")
            or auth.get("project_id")
            or asked.environment.get("GOOGLE_CLOUD_PROJECT")
        )
        if not project:
            raise asked.missing("it does not say which project: give `project`, or set GOOGLE_CLOUD_PROJECT", "schema")
        name = f"projects/{project}/secrets/{secret}"
    if "/versions/" not in name:
        name = f"{name}/versions/{version or 'latest'}"
    base = str(asked.fields.get("url") or "https://secretmanager.googleapis.com").rstrip("/")
    headers = {"Authorization": f"Bearer {await _token(asked, auth)}"}
    status, said = await ask(asked, "GET", f"{base}/v1/{quote(name)}:access", headers, who="Google Secret Manager")
    fields = said if isinstance(said, Mapping) else {}
    if status == 404:
        raise asked.missing(f'Google Secret Manager has no "{name}"')
    if status != 200:
        why = fields.get("error", {}).get("status", "") if isinstance(fields.get("error"), Mapping) else ""
        raise asked.missing(f'Google Secret Manager refused "{name}": HTTP {status} {why}'.rstrip())
    payload = fields.get("payload")
    if not isinstance(payload, Mapping) or not isinstance(payload.get("data"), str):
        raise asked.missing(f'the answer of Google Secret Manager has no value for "{name}"', "parse")
    content = base64.b64decode(payload["data"])
    try:
        return data_or_text(content.decode())
    except UnicodeDecodeError:
        return payload["data"]


async def _token(asked: SecretRequest, auth: Mapping[str, Any]) -> str:
    token = auth.get("token") or auth.get("access_token") or auth.get("value")
    if token:
        return str(token)
    if not (auth.get("client_email") and auth.get("private_key")):
        raise asked.missing(
            "it does not say how to sign in to Google: give `auth` (a token, or a service account's key), or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )
    url = str(auth.get("token_uri") or TOKEN_URL)
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": _assertion(asked, auth, url)}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, said = await ask(asked, "POST", url, headers, body=urlencode(form).encode(), who="Google")
    found = said.get("access_token") if isinstance(said, Mapping) else None
    if status != 200 or not found:
        why = said.get("error_description") or said.get("error") if isinstance(said, Mapping) else ""
        raise asked.missing(f"Google did not let the service account in: HTTP {status} {why or ''}".rstrip())
    return str(found)


def _assertion(asked: SecretRequest, auth: Mapping[str, Any], url: str) -> str:
    """A signed claim to be the service account (RFC 7523)."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    now = int(time.time())
    header = {"alg": "RS256", "typ": "JWT", "kid": str(auth.get("private_key_id") or "")}
    claim = {"iss": auth["client_email"], "scope": SCOPE, "aud": url, "iat": now, "exp": now + 3600}
    text = b".".join(_url64(msgspec.json.encode(part)) for part in (header, claim))
    try:
        key = serialization.load_pem_private_key(str(auth["private_key"]).encode(), None)
    except ValueError:
        raise asked.missing("the service account's private_key is not a PEM key", "parse") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise asked.missing("the service account's private_key is not an RSA key", "parse")
    return (text + b"." + _url64(key.sign(text, padding.PKCS1v15(), hashes.SHA256()))).decode()


def _url64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
