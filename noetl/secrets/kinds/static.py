"""`kind: static`: the value stands in the playbook; for tests only."""

from __future__ import annotations

from typing import Any

from noetl.secrets.source import SecretRequest, one_or_all


async def resolve(asked: SecretRequest) -> Any:
    """The value as it is written."""
    if "value" not in asked.fields:
        raise asked.missing("it has no `value`", "schema")
    return one_or_all(asked.fields["value"])
