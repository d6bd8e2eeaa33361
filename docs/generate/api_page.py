"""The reference page of the HTTP API, generated from the routes."""

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

A server listens on `http://127.0.0.1:8642` by default. `/openapi.json` describes every parameter and body; `/docs` is
the same as a web page.

- **Tokens.** `Authorization: Bearer TOKEN` on every route except those marked *anybody*. A role includes those before
  it: `viewer`, `operator`, `author`, `admin`; `worker` is for workers only (and an admin).
  `noetl token create NAME --role ROLE` creates a token.
- **Errors** are problem documents (RFC 9457): `type`, `title`, `status`, `detail`; a playbook with errors has its
  `diagnostics`.
- **Lists** are paged: `{items, next}`; pass `next` as the parameter `before` or `after` of the next request.
- **Requests that start work** take `Idempotency-Key`: the same key and request return the same execution.
- **Streams.** `/api/executions/{execution_id}/events/stream` sends server-sent events whose id is the event's `seq`;
  `Last-Event-ID` resumes after an event; `event: end` is the end of the log.
- From Python: [`noetl.Client`](python.md#a-server); from a shell: [the command line](cli.md).
"""


def api_page() -> str:
    """api.md."""
    from noetl.server.http.access import Tokens
    from noetl.server.http.app import create_app
    from noetl.server.http.openapi import api_routes, role_of

    async def never() -> Any:
        raise LookupError("this application only describes itself")

    def nothing() -> Any:
        raise LookupError("this application only describes itself")

    app = create_app(nothing, Tokens(Path("nowhere")), readiness=never, version="")
    groups: dict[str, list[str]] = {}
    for route in api_routes(app):
        if not route.include_in_schema:
            continue
        tag = str((route.tags or ["other"])[0])
        for method in sorted(route.methods or ()):
            role = role_of(route) or "*anybody*"
            groups.setdefault(tag, []).append(f"| `{method} {route.path_format}` | {role} | {route.summary or ''} |")
    parts = [INTRO]
    known = [*(tag for tag in TITLES if tag in groups), *sorted(set(groups) - set(TITLES))]
    for tag in known:
        title = TITLES.get(tag, tag.capitalize())
        parts += [f"## {title}", "", "| route | role | |", "|---|---|---|", *groups[tag], ""]
    parts += [
        "## Workers",
        "",
        "`POST /api/work/claim`, `/extend`, `/report`, `/revoked`, `/give-back`, `/secrets` and",
        "`GET /api/work/playbooks/{digest}` are the worker protocol: batched, long-polled, fenced by epochs. They need",
        "the role worker.",
    ]
    return "\n".join(parts).rstrip() + "\n"
