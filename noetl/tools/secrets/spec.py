"""Kind `secrets`: read keychain entries by a name that is known only at run time.

Most playbooks need no such task: `{{ keychain.x }}` and `auth: x` read an entry where it is used. The values are
masked in events, logs and results.
"""

from __future__ import annotations

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, ToolCall, ToolSpec, named_input

SPEC = ToolSpec(
    kind="secrets",
    doc="Reads keychain entries or stored credentials by name. `output.data` has `name` and `value` (a mapping for "
    "entries with several fields), or a mapping name -> value for `names`. Later tasks of the same step can use the "
    "values. They are masked in events, logs and results, so later steps cannot read them: "
    "use `{{ keychain.x }}` or `auth: x` there.",
    fields={
        "name": Field(
            "string",
            "The keychain entry or credential.",
            aliases=("secret", "secret_name", "credential", "key"),
        ),
        "names": Field(
            "list",
            "Several entries or credentials.",
            aliases=("secrets",),
            each=Field("any", "A name.", accepts=("string",)),
        ),
        "field": Field("string", "One field of an entry with several fields."),
        "provider": Field("string", "Not supported: declare a keychain entry of `kind: secret_manager` instead."),
    },
    helpers={},
    requires=(("name", "names"),),
    example='- name: token\n  kind: secrets\n  secret: "{{ workload.tenant }}_token"\n',
)


async def run(call: ToolCall) -> Outcome:
    """Read the entries."""
    from noetl.tools.secrets import task

    return await task.run(call, named_input(SPEC, call.input))
