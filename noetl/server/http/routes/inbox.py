"""The inbox: waits that people answer, signed links to them, and the page that a link opens."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from noetl.core.engine.views.open_waits import inbox_entries
from noetl.core.model.events import instant
from noetl.core.model.waits import InboxEntry
from noetl.errors import Conflict, NotFound, RequestRefused, RoleRequired
from noetl.server.answer_links import MAX_TOKEN, AnswerLink
from noetl.server.http.access import Caller
from noetl.server.http.answer_form import form_page, message_page, submitted
from noetl.server.http.dependencies import App, AppState, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page
from noetl.server.read_models.documents import inbox_document

router = APIRouter(tags=["inbox"])

WEEK = 7 * 86_400.0
Token = Annotated[str, Path(max_length=MAX_TOKEN)]


class LinkBody(Body):
    """A wait of an execution, by the name of its signal or by its key."""

    execution_id: str = Field(pattern=r"^[0-9]{1,19}$")
    name: str = Field("", max_length=200)
    wait: str = Field("", max_length=500)
    recipient: str = Field("", max_length=200)
    expires_s: float = Field(WEEK, gt=0, le=366 * 86_400.0)


@router.get("/api/inbox", summary="Waits that a signal answers")
async def inbox(
    state: App,
    caller: Viewer,
    before: Annotated[str | None, Query(pattern=r"^[0-9]{1,19}$", description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="executions per page")] = 100,
) -> Response:
    """The waits of one page of executions, newest executions first. `may_answer`: the caller has one of its roles."""
    entries, following = await state.orchestrator.inbox(before, limit)
    documents = [{**inbox_document(each), "may_answer": _may_answer(each, caller)} for each in entries]
    return json_response(page(documents, following))


def _may_answer(entry: InboxEntry, caller: Caller) -> bool:
    return bool({*entry.roles} & {*caller.roles})


@router.post("/api/inbox/links", status_code=201, summary="Create a link that answers one wait")
async def create_link(request: Request, state: App, caller: Viewer, body: LinkBody) -> Response:
    """The recipient can answer the wait once, until the link expires. Requires a role that may answer the wait."""
    entries = inbox_entries(await state.orchestrator.state(body.execution_id))
    found = [each for each in entries if (each.key == body.wait if body.wait else each.signal == body.name)]
    if not found:
        raise NotFound(f"execution {body.execution_id} has no open wait {body.wait or body.name!r}")
    if not _may_answer(found[0], caller):
        raise RoleRequired(f'the wait "{found[0].task}" requires the role {" or ".join(found[0].roles)}')
    expires_at = state.now() + body.expires_s
    by = body.recipient or f"link of {caller.name}"
    token = state.answer_links.token(AnswerLink(body.execution_id, found[0].key, by, expires_at))
    prefix = request.scope.get("root_path", "").rstrip("/")
    url = f"{request.url.scheme}://{request.url.netloc}{prefix}/answer/{token}"
    return json_response({"url": url, "path": f"/answer/{token}", "expires_at": instant(expires_at)}, 201)


# ── the page of a link ──────────────────────────────────────────────────────────────────


@router.get("/answer/{token}", include_in_schema=False)
async def show_form(state: App, token: Token) -> Response:
    """The form of the wait; opening it changes nothing."""
    try:
        entry, _ = await _open(state, token)
    except (NotFound, Conflict) as problem:
        return _message(problem)
    nonce = secrets.token_urlsafe(16)
    return _html(form_page(entry, nonce), nonce)


@router.post("/answer/{token}", include_in_schema=False)
async def answer(request: Request, state: App, token: Token) -> Response:
    """Send the answer; a second one is refused."""
    nonce = secrets.token_urlsafe(16)
    try:
        entry, link = await _open(state, token)
        given: dict[str, str] = {}
        try:
            data, given = submitted(await request.body(), entry.form)
            await state.orchestrator.signal(link.execution_id, entry.signal, data, by=link.by, wait=link.wait)
        except Conflict:
            raise
        except (ValueError, RequestRefused) as problem:
            return _html(form_page(entry, nonce, str(problem), given), nonce, 422)
    except (NotFound, Conflict) as problem:
        return _message(problem)
    return _html(message_page("Thank you", "The answer was sent, and the execution continues.", nonce), nonce)


async def _open(state: AppState, token: str) -> tuple[InboxEntry, AnswerLink]:
    """The wait of a link; Conflict if it has ended."""
    link = state.answer_links.read(token, state.now())
    entries = inbox_entries(await state.orchestrator.state(link.execution_id))
    entry = next((each for each in entries if each.key == link.wait), None)
    if entry is None:
        raise Conflict("it has been answered already, or nothing waits for the answer any more")
    return entry, link


def _message(problem: Exception) -> Response:
    nonce = secrets.token_urlsafe(16)
    title, status = ("No answer is needed", 409) if isinstance(problem, Conflict) else ("Link not valid", 404)
    return _html(message_page(title, str(problem), nonce), nonce, status)


def _html(text: str, nonce: str, status: int = 200) -> Response:
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex",
    }
    return Response(text, status, headers, "text/html; charset=utf-8")
