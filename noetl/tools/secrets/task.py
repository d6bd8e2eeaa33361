"""Reads keychain entries and credentials for kind `secrets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.errors import SecretUnavailable


async def run(call: ToolCall, fields: Mapping[str, Any]) -> Outcome:
    """Read every entry; if some are unavailable, fail with all of them listed."""
    if fields.get("provider"):
        return error(
            "schema",
            "a secrets task reads the keychain: declare an entry of `kind: secret_manager` with this provider "
            "and use the name of that entry here",
        )
    requested = fields.get("names")
    candidates = requested if isinstance(requested, list) else [fields.get("name") or requested]
    names = [str(name) for name in candidates if name]
    if not names:
        return error("schema", "a secrets task requires `name`: the keychain entry or credential to read")
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in names:
        try:
            values[name] = _select(await call.host.credential(name), fields.get("field"), name)
        except SecretUnavailable as missing:
            reasons |= missing.reasons
    if reasons:
        return error("auth", str(SecretUnavailable(reasons)), details={"missing": sorted(reasons)})
    if isinstance(requested, list):
        return ok(values)
    return ok({"name": names[0], "value": values[names[0]]})


def _select(entry: Mapping[str, Any], field: Any, name: str) -> Any:
    """One field of an entry; without a field the single value, or all fields."""
    if field:
        if field not in entry:
            raise SecretUnavailable({name: f'no field "{field}"; available fields: {", ".join(map(str, entry))}'})
        return entry[field]
    return entry["value"] if set(entry) == {"value"} else dict(entry)
