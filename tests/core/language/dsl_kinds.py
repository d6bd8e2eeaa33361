"""Tool kinds for the tests of the language, independent of the real tools."""

from noetl.core.model.tool import Field, ToolSpec


def _specs(*specs: ToolSpec) -> dict[str, ToolSpec]:
    return {name: spec for spec in specs for name in (spec.kind, *spec.aliases)}


SPECS = _specs(
    ToolSpec(kind="noop", open_fields=True, pure=True),
    ToolSpec(
        kind="http",
        fields={
            "url": Field("string", "Where to.", required=True, aliases=("endpoint",)),
            "method": Field("string", "The verb.", choices=("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")),
            "params": Field("mapping", "The query."),
            "headers": Field("mapping", "Headers."),
            "body": Field("any", "The body.", aliases=("json", "payload")),
            "form": Field("mapping", "A form."),
            "data": Field("any", "Query and body, or the body."),
            "auth": Field("any", "A keychain entry."),
        },
        defaults={"follow_redirects": True},
        spec_keys={"follow_redirects": "Follow redirects.", "max_bytes": "Largest answer."},
        helpers={"http": {"status": None, "headers": None, "url": None, "elapsed_ms": None, "request_id": None}},
    ),
    ToolSpec(
        kind="postgres",
        fields={
            "command": Field("any", "SQL.", required=True, aliases=("commands", "query", "queries", "sql")),
            "params": Field("any", "Bound values."),
            "auth": Field("any", "A keychain entry or DSN.", aliases=("credential",)),
        },
        spec_keys={"transaction": "All statements in one transaction."},
        helpers={"pg": {"code": None, "sqlstate": None}},
    ),
    ToolSpec(
        kind="duckdb",
        fields={
            "command": Field("any", "SQL.", aliases=("commands", "query", "queries", "sql")),
            "file": Field("string", "The database file.", aliases=("database",)),
            "params": Field("any", "Bound values."),
        },
    ),
    ToolSpec(
        kind="python",
        fields={
            "code": Field("code", "The program.", raw=True),
            "libs": Field("any", "Imports."),
            "script": Field("any", "Code elsewhere."),
        },
        helpers={"py": {"exception_type": None}},
        spec_keys={"isolation": "How the code is fenced in."},
        open_fields=True,
    ),
    ToolSpec(
        kind="shell",
        fields={
            "cmd": Field("any", "The command.", required=True, aliases=("cmds", "command")),
            "env": Field("mapping"),
        },
    ),
    ToolSpec(
        kind="playbook",
        fields={
            "path": Field("string", "The playbook.", required=True),
            "payload": Field("mapping", "Its workload."),
            "version": Field("any", "Which one."),
            "return_step": Field("string", "Whose output."),
            "entry_step": Field("string", "Where it starts."),
            "wait": Field("boolean", "Wait for it."),
        },
        open_fields=True,
        suspends=True,
    ),
    ToolSpec(
        kind="workbook",
        fields={
            "block": Field("string", "The block.", required=True, aliases=("name",)),
            "payload": Field("mapping", "Its input."),
        },
        open_fields=True,
        pure=True,
    ),
    ToolSpec(
        kind="resolve",
        aliases=("artifact",),
        fields={
            "ref": Field("any", "The reference.", required=True),
            "select": Field("any"),
            "limit": Field("integer"),
            "action": Field("string"),
        },
    ),
    ToolSpec(kind="object", fields={"action": Field("string"), "path": Field("string"), "data": Field("any")}),
    ToolSpec(
        kind="transfer",
        fields={
            "source": Field("mapping", "Where from."),
            "data": Field("any", "Or the rows themselves."),
            "targets": Field("list", "Where to.", required=True),
            "chunk": Field("mapping", "Rows at a time."),
        },
    ),
)
