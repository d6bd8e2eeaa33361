"""`kind: secret_manager`: a value from Vault, AWS, Google, Azure, or a file in place of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from noetl.errors import SecretUnavailable
from noetl.secrets.source import SecretRequest

PROVIDERS = {
    "vault": "vault", "hashicorp": "vault", "hashicorp_vault": "vault", "openbao": "vault",
    "aws": "aws", "amazon": "aws",
    "gcp": "gcp", "google": "gcp",
    "azure": "azure",
    "file": "file",
}  # fmt: skip
# The default provider: the first whose own tools are configured in the environment.
_DETECTED_BY = {
    "VAULT_ADDR": "vault",
    "AZURE_KEY_VAULT_URL": "azure",
    "GOOGLE_CLOUD_PROJECT": "gcp",
    "GOOGLE_APPLICATION_CREDENTIALS": "gcp",
    "AWS_REGION": "aws",
    "AWS_DEFAULT_REGION": "aws",
    "NOETL_SECRETS_PATH": "file",
}


async def resolve(request: SecretRequest) -> Any:
    """One secret (`secret`, or the entry's own name), or several as a mapping (`map`)."""
    provider = _provider(request)
    if provider is None:
        return await _stored(request)
    several = request.fields.get("map")
    if several is None:
        return await _read(request, provider, str(request.fields.get("secret") or request.name))
    if not isinstance(several, Mapping):
        raise request.unavailable("`map` must be a mapping of field names to secrets", "schema")
    return {str(field): await _read(request, provider, str(secret)) for field, secret in several.items()}


def _provider(request: SecretRequest) -> str | None:
    written = request.fields.get("provider")
    if written:
        known = PROVIDERS.get(str(written).lower())
        if known is None:
            raise request.unavailable(f'`provider` is "{written}"; it must be vault, aws, gcp, azure or file', "schema")
        return known
    return next((provider for variable, provider in _DETECTED_BY.items() if request.environment.get(variable)), None)


async def _read(request: SecretRequest, provider: str, secret: str) -> Any:
    name, _, field = secret.partition("#")
    version = request.fields.get("version")
    module = import_module(f"noetl.secrets.managers.{provider}")
    found = await module.read(request, name, None if version in (None, "", "latest") else str(version))
    if not field:
        return found
    if not isinstance(found, Mapping) or field not in found:
        there = ", ".join(map(str, found)) if isinstance(found, Mapping) else "a single value"
        raise request.unavailable(f'the secret "{name}" has no field "{field}"; it has {there}')
    return found[field]


async def _stored(request: SecretRequest) -> Any:
    """Without a provider, read the credential store of this installation."""
    name = str(request.fields.get("secret") or request.name)
    try:
        return await request.stored(name)
    except SecretUnavailable:
        raise request.unavailable(
            f'no `provider` is given, none is configured in the environment, and there is no stored credential "{name}"'
        ) from None
