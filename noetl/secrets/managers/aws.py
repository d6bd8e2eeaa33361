"""AWS Secrets Manager: one signed request (Signature Version 4)."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from noetl.secrets.source import SecretRequest, ask, data_or_text

TYPE = "application/x-amz-json-1.1"


async def read(asked: SecretRequest, secret: str, version: str | None) -> Any:
    """The secret's JSON fields, or its text; binary as base64 text."""
    auth = await asked.mapping("auth")
    region = str(
        asked.fields.get("region")
        or auth.get("region")
        or auth.get("aws_region")
        or asked.environment.get("AWS_REGION")
        or asked.environment.get("AWS_DEFAULT_REGION")
        or ""
    )
    if not region and secret.startswith("arn:"):
        region = secret.split(":")[3]
    if not region:
        raise asked.missing("it does not say which AWS region: give `region`, or set AWS_REGION", "schema")
    key = _find(asked, auth, "access_key_id", "AWS_ACCESS_KEY_ID", "access_key")
    hidden = _find(asked, auth, "secret_access_key", "AWS_SECRET_ACCESS_KEY", "secret_key")
    session = auth.get("session_token") or (None if auth else asked.environment.get("AWS_SESSION_TOKEN"))
    url = str(asked.fields.get("url") or auth.get("endpoint_url") or f"https://secretsmanager.{region}.amazonaws.com/")
    wanted: dict[str, str] = {"SecretId": secret}
    if version:
        wanted["VersionStage" if version.startswith("AWS") else "VersionId"] = version
    body = msgspec.json.encode(wanted)
    headers = {"Content-Type": TYPE, "X-Amz-Target": "secretsmanager.GetSecretValue"}
    if session:
        headers["X-Amz-Security-Token"] = str(session)
    signed = sign("POST", url, headers, body, key, hidden, region, "secretsmanager", datetime.now(UTC))
    status, said = await ask(asked, "POST", url, signed, body=body, who="AWS Secrets Manager")
    fields = said if isinstance(said, Mapping) else {}
    if status != 200:
        what = str(fields.get("__type", "")).rpartition("#")[2]
        if what == "ResourceNotFoundException":
            raise asked.missing(f'AWS Secrets Manager has no secret "{secret}" in {region}')
        raise asked.missing(f'AWS Secrets Manager refused "{secret}": HTTP {status} {what}'.rstrip())
    if isinstance(fields.get("SecretString"), str):
        return data_or_text(fields["SecretString"])
    if isinstance(fields.get("SecretBinary"), str):
        return b64encode(b64decode(fields["SecretBinary"])).decode()
    raise asked.missing(f'the answer of AWS Secrets Manager has no value for "{secret}"', "parse")


def _find(asked: SecretRequest, auth: Mapping[str, Any], field: str, variable: str, other: str) -> str:
    value = auth.get(field) or auth.get(f"aws_{field}") or auth.get(other) or asked.environment.get(variable)
    if not value:
        raise asked.missing(f"it does not say how to sign in to AWS: give `auth.{field}`, or set {variable}")
    return str(value)


def sign(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    key: str,
    secret: str,
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """The headers with a Signature Version 4 over all of them."""
    parts = urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    whole = {**headers, "Host": parts.netloc, "X-Amz-Date": stamp}
    named = sorted((name.lower(), " ".join(value.split())) for name, value in whole.items())
    names = ";".join(name for name, _ in named)
    query = "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    request = "\n".join(
        [
            method,
            quote(parts.path or "/", safe="/~"),
            query,
            *(f"{name}:{value}" for name, value in named),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    signing = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
    whole["Authorization"] = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return whole
