"""`kind: env`: values from the environment of the process that resolves the keychain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.secrets.source import SecretRequest


async def resolve(asked: SecretRequest) -> Any:
    """One variable (`var`, or the entry's own name), or several as a mapping (`vars`)."""
    several = asked.fields.get("vars")
    if several is None:
        return _read(asked, _variable(asked))
    if isinstance(several, list):
        several = {str(name): name for name in several}
    if not isinstance(several, Mapping):
        raise asked.missing("its `vars` is a mapping of field names to variables", "schema")
    absent = [str(variable) for variable in several.values() if str(variable) not in asked.environment]
    if absent:
        raise asked.missing(f"these environment variables are not set: {', '.join(absent)}")
    return {str(name): _read(asked, str(variable)) for name, variable in several.items()}


def _variable(asked: SecretRequest) -> str:
    if asked.fields.get("var"):
        return str(asked.fields["var"])
    return asked.name if asked.name in asked.environment else asked.name.upper().replace("-", "_")


def _read(asked: SecretRequest, variable: str) -> str:
    if not asked.allows_variable(variable):
        raise asked.missing(f"this installation does not hand out the environment variable {variable}")
    if variable not in asked.environment:
        raise asked.missing(f"the environment variable {variable} is not set")
    return asked.environment[variable]
