"""The catalog, and the validator: the same diagnostics as on the command line."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from noetl.errors import InvalidPlaybook, NotFound
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.problems import diagnostic_document
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import answer, page, playbook_document
from noetl.server.orchestrator.catalog import Source

router = APIRouter(tags=["playbooks"])


class TextBody(Body):
    """A playbook's text."""

    content: str
    file: str = ""
    strict: bool = False
    legacy: bool = False


@router.post("/api/validate", summary="All problems of a playbook")
async def validate(request: Request, body: TextBody, _: Caller = requires_role("viewer")) -> Response:
    """`valid` is false when any of them is an error; `docs` with a code behind it is the code's page."""
    from noetl.core.language.diagnostics import DOCS

    source = Source(body.content, body.file)
    parts = app_state(request)
    check = parts.orchestrator.catalog.check
    found = await parts.aside(lambda: check(source, strict=body.strict, legacy=body.legacy))
    diagnostics = [diagnostic_document(each) for each in found.diagnostics]
    return answer({"valid": found.playbook is not None, "diagnostics": diagnostics, "docs": DOCS})


@router.get("/schema/playbook.json", summary="The JSON Schema of playbooks, for editors")
async def schema(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """With the tool kinds of this installation."""
    from noetl.core.language.reference.json_schema import json_schema

    return answer(json_schema(app_state(request).specs()))


@router.post("/api/graph", summary="The net of a playbook's text")
async def graph(request: Request, body: TextBody, _: Caller = requires_role("viewer")) -> Response:
    """For previews; diagnostics when it cannot be compiled."""
    from noetl.core.language.editor.net_document import net_document

    source = Source(body.content, body.file)
    parts = app_state(request)
    check = parts.orchestrator.catalog.check
    found = await parts.aside(lambda: check(source, strict=body.strict, legacy=body.legacy))
    if found.playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    return answer(net_document(found.playbook))


@router.post("/api/catalog/register", status_code=201, summary="A new version of a playbook")
async def register(request: Request, body: TextBody, _: Caller = requires_role("author")) -> Response:
    """The same text again is the same version."""
    catalog = app_state(request).orchestrator.catalog
    stored = await catalog.register(
        Source(body.content, body.file), time.time(), strict=body.strict, legacy=body.legacy
    )
    return answer(playbook_document(stored), 201)


@router.get("/api/catalog", summary="The newest version of every playbook")
async def catalog(
    request: Request,
    search: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[str | None, Query(max_length=1000, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page, by path."""
    parts = app_state(request)
    found = await parts.orchestrator.catalog.list(search=search, after=after, limit=limit + 1)
    following = found[limit - 1].path if len(found) > limit else None
    return answer(page(await parts.aside(lambda: [playbook_document(each) for each in found[:limit]]), following))


@router.get("/api/versions/{path:path}", summary="The versions of a playbook, newest first")
async def versions(
    request: Request,
    path: str,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page, without the texts."""
    parts = app_state(request)
    found = await parts.orchestrator.catalog.versions(path, before=before, limit=limit + 1)
    if not found and before is None:
        raise NotFound(f"there is no playbook {path!r}")
    following = str(found[limit - 1].version) if len(found) > limit else None
    return answer(page(await parts.aside(lambda: [playbook_document(each) for each in found[:limit]]), following))


@router.get("/api/catalog/{path:path}", summary="One version of a playbook, with its text")
async def playbook(
    request: Request,
    path: str,
    version: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    _: Caller = requires_role("viewer"),
) -> Response:
    """The newest, or the one that is asked for."""
    stored = await app_state(request).orchestrator.catalog.registered(path, version)
    if stored is None:
        raise NotFound(f"there is no playbook {path!r}" + (f" version {version}" if version else ""))
    return answer(playbook_document(stored, text=True))
