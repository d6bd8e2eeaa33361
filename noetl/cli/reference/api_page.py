"""The reference page of the HTTP API, written from the routes themselves."""

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

A server answers at `http://127.0.0.1:8642` unless it is told otherwise. `/openapi.json` has every parameter and body,
`/docs` shows the same for people.

- **Tokens.** `Authorization: Bearer TOKEN` on every route but those marked *anybody*. A role includes those before it:
  `viewer`, `operator`, `author`, `admin`; `worker` is for workers alone (and an admin).
  `noetl token create NAME --role ROLE` makes one.
- **Errors** are problem documents (RFC 9457): `type`, `title`, `status`, `detail`; a playbook with errors has its
  `diagnostics`.
- **Lists** are pages: `{items, next}`; `next` goes into the parameter `before` or `after` of the next request.
- **Starting work** takes `Idempotency-Key`: the same key and request is answered with the same execution.
- **Following** `/api/executions/{execution_id}/events/stream`: server-sent events whose id is the event's `seq`;
  `Last-Event-ID` goes on after it; `event: end` is the end of the log.
- From Python: [`noetl.Client`](python.md#a-server); from a shell: the verbs of [the command line](cli.md).
"""


def api_page() -> str:
    """api.md."""
    from noetl.server.http.access import Tokens
    from noetl.server.http.app import create_app
    from noetl.server.http.openapi import described

    async def never() -> Any:
        raise LookupError("this application only describes itself")

    def nothing() -> Any:
        raise LookupError("this application only describes itself")

    app = create_app(nothing, Tokens(Path("nowhere")), readiness=never, version="")
    groups: dict[str, list[str]] = {}
    for path, operations in described(app)["paths"].items():
        for method, operation in operations.items():
            role = operation.get("x-role", "*anybody*")
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
        "`POST /api/work/claim`, `/extend`, `/report`, `/revoked`, `/give-back`, `/secrets` and",
        "`GET /api/work/playbooks/{digest}` are the workers' line: batched, long-polled, fenced by epochs. They need",
        "the role worker.",
    ]
    return "\n".join(parts).rstrip() + "\n"
