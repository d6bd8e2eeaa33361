"""`kind: secret_manager`: a value from Vault, AWS, Google, Azure, or a file that stands in for them."""

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
# The variable that each manager's own tools use says which one this installation has.
_TELLING = {
    "VAULT_ADDR": "vault",
    "AZURE_KEY_VAULT_URL": "azure",
    "GOOGLE_CLOUD_PROJECT": "gcp",
    "GOOGLE_APPLICATION_CREDENTIALS": "gcp",
    "AWS_REGION": "aws",
    "AWS_DEFAULT_REGION": "aws",
    "NOETL_SECRETS_PATH": "file",
}


async def resolve(asked: SecretRequest) -> Any:
    """One secret (`secret`, or the entry's own name), or several as a mapping (`map`)."""
    provider = _provider(asked)
    if provider is None:
        return await _stored(asked)
    several = asked.fields.get("map")
    if several is None:
        return await _read(asked, provider, str(asked.fields.get("secret") or asked.name))
    if not isinstance(several, Mapping):
        raise asked.missing("its `map` is a mapping of field names to secrets", "schema")
    return {str(field): await _read(asked, provider, str(secret)) for field, secret in several.items()}


def _provider(asked: SecretRequest) -> str | None:
    written = asked.fields.get("provider")
    if written:
        known = PROVIDERS.get(str(written).lower())
        if known is None:
            raise asked.missing(f'its `provider` is "{written}"; it can be vault, aws, gcp, azure or file', "schema")
        return known
    return next((provider for variable, provider in _TELLING.items() if asked.environment.get(variable)), None)


async def _read(asked: SecretRequest, provider: str, secret: str) -> Any:
    name, _, field = secret.partition("#")
    version = asked.fields.get("version")
    module = import_module(f"noetl.secrets.managers.{provider}")
    found = await module.read(asked, name, None if version in (None, "", "latest") else str(version))
    if not field:
        return found
    if not isinstance(found, Mapping) or field not in found:
        there = ", ".join(map(str, found)) if isinstance(found, Mapping) else "one value only"
        raise asked.missing(f'the secret "{name}" has no field "{field}"; it has {there}')
    return found[field]


async def _stored(asked: SecretRequest) -> Any:
    """No manager is known here: this installation's own store is one, too."""
    name = str(asked.fields.get("secret") or asked.name)
    try:
        return await asked.stored(name)
    except SecretUnavailable:
        raise asked.missing(
            f'it names no `provider`, none is known from the environment, and there is no stored credential "{name}"'
        ) from None
