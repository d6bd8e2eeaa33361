"""AWS Secrets Manager. Credentials and the signature (Signature Version 4) come from botocore.

Without `auth`, botocore's chain applies: environment, profile, SSO, web identity (IRSA), container and instance role.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from noetl.runtime.resources import per_loop
from noetl.secrets.source import SecretRequest, call_library, check_address, data_or_text, send

TYPE = "application/x-amz-json-1.1"
HOSTS = r"(vpce-[^.]+\.)?secretsmanager(-fips)?\.[a-z0-9-]+(\.vpce)?\.amazonaws\.com(\.cn)?"
NO_CREDENTIALS = (
    "no AWS credentials: give `auth` (access_key_id and secret_access_key), set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or run with a profile, a web identity or an instance role"
)


async def read(request: SecretRequest, secret: str, version: str | None) -> Any:
    """The fields of a JSON secret, or its text; binary as base64 text."""
    auth = await request.mapping("auth")
    region = await _region(request, auth, secret)
    explicit = _explicit_keys(request, auth)
    url, trusted = _address(request, auth, region, own_credentials=explicit is None)
    query: dict[str, str] = {"SecretId": secret}
    if version:
        query["VersionStage" if version.startswith("AWS") else "VersionId"] = version
    body = msgspec.json.encode(query)
    chain = per_loop(_Chain, _Chain)

    def sign() -> dict[str, str]:
        keys = explicit or chain.keys()
        if keys is None:
            raise request.unavailable(NO_CREDENTIALS)
        return _signed_headers(keys, region, url, body)

    headers = await call_library(request, "aws", sign)
    status, fields = await send(
        request, "POST", url, headers, body=body, service="AWS Secrets Manager", trusted=trusted
    )
    if status != 200:
        code = str(fields.get("__type", "")).rpartition("#")[2]
        if code == "ResourceNotFoundException":
            raise request.unavailable(f'AWS Secrets Manager has no secret "{secret}" in {region}')
        raise request.unavailable(f'AWS Secrets Manager denied access to "{secret}": HTTP {status} {code}'.rstrip())
    if isinstance(fields.get("SecretString"), str):
        return data_or_text(fields["SecretString"])
    if isinstance(fields.get("SecretBinary"), str):
        return b64encode(b64decode(fields["SecretBinary"])).decode()
    raise request.unavailable(f'the response of AWS Secrets Manager has no value for "{secret}"', "parse")


class _Keys(NamedTuple):
    """Access keys, in the form that botocore signs with."""

    access_key: str
    secret_key: str
    token: str | None


class _Chain:
    """botocore's credential chain, one per event loop; botocore renews temporary credentials."""

    def __init__(self) -> None:
        self._session: Any = None

    def session(self) -> Any:
        if self._session is None:
            from botocore.session import Session

            self._session = Session()
        return self._session

    def keys(self) -> _Keys | None:
        found = self.session().get_credentials()
        return None if found is None else _Keys(*found.get_frozen_credentials()[:3])


def _explicit_keys(request: SecretRequest, auth: Mapping[str, Any]) -> _Keys | None:
    key = auth.get("access_key_id") or auth.get("aws_access_key_id") or auth.get("access_key")
    secret = auth.get("secret_access_key") or auth.get("aws_secret_access_key") or auth.get("secret_key")
    if not key and not secret:
        return None
    if not key or not secret:
        raise request.unavailable(f"`auth.{'secret_access_key' if key else 'access_key_id'}` is missing", "schema")
    token = auth.get("session_token") or auth.get("aws_session_token")
    return _Keys(str(key), str(secret), str(token) if token else None)


async def _region(request: SecretRequest, auth: Mapping[str, Any], secret: str) -> str:
    region = request.fields.get("region") or auth.get("region") or auth.get("aws_region")
    region = region or request.environment.get("AWS_REGION") or request.environment.get("AWS_DEFAULT_REGION")
    if not region and secret.startswith("arn:"):
        region = secret.split(":")[3]
    if not region:
        chain = per_loop(_Chain, _Chain)
        region = await call_library(request, "aws", lambda: chain.session().get_config_variable("region"))
    if not region:
        raise request.unavailable("no AWS region: give `region`, or set AWS_REGION", "schema")
    if not re.fullmatch(r"[a-z0-9-]+", str(region)):
        raise request.unavailable(f'"{region}" is not an AWS region', "schema")
    return str(region)


def _address(
    request: SecretRequest, auth: Mapping[str, Any], region: str, *, own_credentials: bool
) -> tuple[str, bool]:
    """The URL, and whether it is configured in the installation."""
    written = request.fields.get("url") or auth.get("endpoint_url")
    if written:
        if own_credentials:
            check_address(request, str(written), HOSTS, "AWS Secrets Manager", "AWS_ENDPOINT_URL_SECRETS_MANAGER")
        return str(written), False
    configured = request.environment.get("AWS_ENDPOINT_URL_SECRETS_MANAGER") or request.environment.get(
        "AWS_ENDPOINT_URL"
    )
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return configured or f"https://secretsmanager.{region}.{domain}/", bool(configured)


def _signed_headers(keys: _Keys, region: str, url: str, body: bytes) -> dict[str, str]:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    headers = {"Content-Type": TYPE, "X-Amz-Target": "secretsmanager.GetSecretValue"}
    message = AWSRequest("POST", url, headers, data=body)
    SigV4Auth(Credentials(*keys), "secretsmanager", region).add_auth(message)
    return dict(message.headers.items())
