"""Kind `redis`, and keys, lists and streams of Redis as source and target of transfers."""

from __future__ import annotations

from noetl.tool import Field, SourceSpec, TargetSpec, ToolSpec, auth_field, lazy

AUTH = auth_field("The server: a credential with `host`, `port`, `user`, `password`, `db`, `tls`; a URL; or a mapping.")
FORMATS = ("json", "hash", "list", "stream")

SPEC = ToolSpec(
    kind="redis",
    doc="Runs commands on a Redis server. `output.data` is the reply, or the list of replies of `commands`.",
    fields={
        "auth": AUTH,
        "command": Field(
            "any", "One command: a list, or a string that is split like a shell does.", accepts=("string", "list")
        ),
        "commands": Field(
            "list", "Commands that are sent in one round trip.", each=Field("any", accepts=("string", "list"))
        ),
        "transaction": Field("boolean", "Run `commands` between MULTI and EXEC.", default=False),
        "json": Field("boolean", "Parse replies that are JSON documents.", default=False),
    },
    requires=(("command", "commands"),),
    spec_keys={"timeout": "`connect` and `total` seconds."},
    helpers={"redis": {"commands": None}},
    example='kind: redis\nauth: cache\ncommand: [SET, "order:{{ ctx.id }}", "{{ ctx.order }}", EX, 3600]\n',
)

run = lazy("noetl_redis.task:run")
explain = lazy("noetl_redis.connection:explain")

SOURCE = SourceSpec(
    kind="redis",
    doc="The keys that match a pattern, one row for each: the JSON object of a string, or the fields of a hash (as "
    "text). Or the elements of one list, set, sorted set or stream, by its name.",
    read=lazy("noetl_redis.rows:read"),
    explain=explain,
    fields={
        "auth": AUTH,
        "name": Field(
            "string", "A pattern such as `order:*`, or the name of one key.", required=True, aliases=("key",)
        ),
        "key_column": Field("string", "Add a column with the name of the key (of a stream: the id of the entry)."),
        "after": Field("string", "Read entries of a stream after this id."),
    },
    example='source: {kind: redis, auth: cache, name: "order:*"}',
)
TARGET = TargetSpec(
    kind="redis",
    doc="One key for each row, or the rows as elements of a list or stream. Rows are collected on the server and "
    "become visible at the end, 10,000 at a time.",
    open=lazy("noetl_redis.target:RedisTarget"),
    explain=explain,
    fields={
        "auth": AUTH,
        "name": Field("string", "The name of a row's key, with columns in braces: `order:{id}`; of a list or stream, "
                      "its name."),
        "format": Field("string", "What is written: `json` (a string with the row as JSON; default), `hash` (the "
                        "columns as fields; without nulls), `list` or `stream`.", choices=FORMATS),
        "ttl": Field("integer", "Seconds after which a key expires.", least=1),
    },
    place="name",
    example='targets:\n  - {kind: redis, auth: cache, name: "order:{id}", format: hash, mode: upsert, key: id}',
)  # fmt: skip
