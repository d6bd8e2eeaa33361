"""The reference page of the HTTP API, generated from its OpenAPI document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLES = {
    "executions": "Executions",
    "playbooks": "Playbooks and the catalog",
    "schedules": "Schedules",
    "webhooks": "Webhooks",
    "limits": "Limits",
    "credentials": "Credentials",
    "results": "Results",
    "session": "Signing in",
    "health": "Health",
}
INTRO = """\
# The HTTP API

A server listens at `http://127.0.0.1:8642` by default. `/openapi.json` describes every parameter and body;
`/docs` shows the same as a page.

- **Tokens.** Send `Authorization: Bearer TOKEN` to every route except those marked *none*. A role includes the roles
  before it: `viewer`, `operator`, `author`, `admin`; `worker` is for workers only (an admin may use it too).
  `noetl token create NAME --role ROLE` creates a token.
- **Errors** are problem documents (RFC 9457): `type`, `title`, `status`, `detail`; for a playbook with errors also
  `diagnostics`.
- **Lists** are pages: `{items, next}`; pass `next` as the parameter `before` or `after` of the next request.
- **Starting an execution** accepts `Idempotency-Key`: repeating a request with the same key returns the same execution.
  A key belongs to the token that sent it.
- **Following an execution**: `/api/executions/{execution_id}/events/stream` sends server-sent events whose id is the
  `seq` of the event; `Last-Event-ID` continues after it; `event: end` marks the end of the log.
- From Python: [`noetl.Client`](python.md#a-server); from a shell: [the command line](cli.md).
"""


def api_page() -> str:
    """api.md."""
    from noetl.server.http.access import Tokens
    from noetl.server.http.app import create_app
    from noetl.server.http.openapi import openapi_document

    async def never() -> Any:
        raise LookupError("this application only serves its OpenAPI document")

    def nothing() -> Any:
        raise LookupError("this application only serves its OpenAPI document")

    app = create_app(nothing, Tokens(Path("nowhere")), readiness=never, version="")
    groups: dict[str, list[str]] = {}
    for path, operations in openapi_document(app)["paths"].items():
        for method, operation in operations.items():
            role = operation.get("x-role", "*none*")
            row = f"| `{method.upper()} {path}` | {role} | {operation['summary']} |"
            groups.setdefault(operation["tags"][0], []).append(row)
    parts = [INTRO]
    known = [*(tag for tag in TITLES if tag in groups), *sorted(set(groups) - set(TITLES))]
    for tag in known:
        title = TITLES.get(tag, tag.capitalize())
        parts += [f"## {title}", "", "| route | role | |", "|---|---|---|", *groups[tag], ""]
    parts += [
        "## Workers",
        "",
        "`POST /api/work/claim`, `/extend`, `/report`, `/revoked`, `/give-back`, `/quota`, `/secrets` and",
        "`GET /api/work/playbooks/{digest}` are the worker protocol: batched, long-polled, fenced by epochs. They",
        "require the role worker.",
    ]
    return "\n".join(parts).rstrip() + "\n"
