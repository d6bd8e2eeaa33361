"""Tool kind `redis`: runs commands on a Redis server."""

from __future__ import annotations

from noetl.tool import Field, Outcome, ToolCall, ToolSpec

SPEC = ToolSpec(
    kind="redis",
    doc="Runs commands on a Redis server. `output.data` is the reply, or the list of replies of `commands`.",
    fields={
        "auth": Field("any", "The server: a credential with `host`, `port`, `user`, `password`, `db`, `tls`; a URL; or "
                      "a mapping.", required=True, aliases=("credential",)),
        "command": Field("any", "One command: a list, or a string that is split like a shell does."),
        "commands": Field("list", "Commands that are sent in one round trip."),
        "transaction": Field("boolean", "Run `commands` between MULTI and EXEC.", default=False),
        "json": Field("boolean", "Parse replies that are JSON documents.", default=False),
    },
    requires=(("command", "commands"),),
    spec_keys={"timeout": "`connect` and `total` seconds."},
    helpers={"redis": {"commands": None}},
    example='kind: redis\nauth: cache\ncommand: [SET, "order:{{ ctx.id }}", "{{ ctx.order }}", EX, 3600]\n',
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Run the commands."""
    from noetl_redis import task

    return await task.run(call)
