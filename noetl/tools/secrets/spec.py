"""Read keychain entries while the workflow runs; their values are masked wherever they are written.

Most playbooks need no such task: `{{ keychain.x }}` and `auth: x` read an entry where it is used. This
kind is for a secret whose name is only known while the workflow runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input
from noetl.errors import SecretUnavailable

SPEC = ToolSpec(
    kind="secrets",
    doc="Reads keychain entries or stored credentials by name. `output.data` has `name` and `value` (a mapping for "
    "entries with several fields), or a mapping name -> value for `names`. The values can be used by later tasks "
    "of the same step; in events, logs and results they are masked, so a later step does not see them: "
    "there, use `{{ keychain.x }}` or `auth: x`.",
    fields={
        "name": Field(
            "string",
            "The entry or credential.",
            aliases=("secret", "secret_name", "credential", "key"),
        ),
        "names": Field("list", "Several of them.", aliases=("secrets",)),
        "field": Field("string", "One field of an entry that has several."),
        "provider": Field("string", "Not here: declare a keychain entry of `kind: secret_manager` with it."),
    },
    helpers={},
    example='- name: token\n  kind: secrets\n  secret: "{{ workload.tenant }}_token"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Read them."""
    given = named_input(SPEC, call.input)
    if given.get("provider"):
        return error(
            "schema",
            "a secrets task reads the keychain: declare an entry of `kind: secret_manager` with this provider, "
            "and name that entry here",
        )
    names = given.get("names")
    wanted = [str(name) for name in (names if isinstance(names, list) else [given.get("name") or names]) if name]
    if not wanted:
        return error("schema", "a secrets task needs a `name`: the keychain entry or credential to read")
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in wanted:
        try:
            values[name] = _picked(await call.host.credential(name), given.get("field"), name)
        except SecretUnavailable as missing:
            reasons |= missing.reasons
    if reasons:
        return error("auth", str(SecretUnavailable(reasons)), details={"missing": sorted(reasons)})
    if isinstance(names, list):
        return ok(values)
    return ok({"name": wanted[0], "value": values[wanted[0]]})


def _picked(fields: Mapping[str, Any], field: Any, name: str) -> Any:
    if field:
        if field not in fields:
            raise SecretUnavailable({name: f'it has no field "{field}"; it has {", ".join(map(str, fields))}'})
        return fields[field]
    return fields["value"] if set(fields) == {"value"} else dict(fields)
