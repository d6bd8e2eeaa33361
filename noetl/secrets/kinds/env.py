"""`kind: env`: values from the environment of the process that resolves the keychain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.secrets.source import SecretRequest

NOT_DOTENV = " (.env is read for NOETL_* settings only)"


async def resolve(request: SecretRequest) -> Any:
    """One variable (`var`, or the entry's own name), or several as a mapping (`vars`)."""
    several = request.fields.get("vars")
    if several is None:
        return _read(request, _variable(request))
    if isinstance(several, list):
        several = {str(name): name for name in several}
    if not isinstance(several, Mapping):
        raise request.unavailable("`vars` must be a mapping of field names to variables", "schema")
    absent = [str(variable) for variable in several.values() if str(variable) not in request.environment]
    if absent:
        raise request.unavailable(f"these environment variables are not set: {', '.join(absent)}{NOT_DOTENV}")
    return {str(name): _read(request, str(variable)) for name, variable in several.items()}


def _variable(request: SecretRequest) -> str:
    if request.fields.get("var"):
        return str(request.fields["var"])
    return request.name if request.name in request.environment else request.name.upper().replace("-", "_")


def _read(request: SecretRequest, variable: str) -> str:
    if not request.allows_variable(variable):
        raise request.unavailable(f"access to the environment variable {variable} is not allowed in this installation")
    if variable not in request.environment:
        raise request.unavailable(f"the environment variable {variable} is not set{NOT_DOTENV}")
    return request.environment[variable]
