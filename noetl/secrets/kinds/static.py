"""`kind: static`: the value is written in the playbook; for tests only."""

from __future__ import annotations

from typing import Any

from noetl.secrets.source import SecretRequest, one_or_all


async def resolve(request: SecretRequest) -> Any:
    """The value, unchanged."""
    if "value" not in request.fields:
        raise request.unavailable("`value` is missing", "schema")
    return one_or_all(request.fields["value"])
