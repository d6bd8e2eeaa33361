"""The catalog, and validation with the same diagnostics as on the command line."""

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
from noetl.server.http.response_models import json_response, page, playbook_document
from noetl.server.orchestrator.catalog import Source

router = APIRouter(tags=["playbooks"])


class TextBody(Body):
    """The text of a playbook."""

    content: str
    file: str = ""
    strict: bool = False
    legacy: bool = False


@router.post("/api/validate", summary="Validate a playbook")
async def validate(request: Request, body: TextBody, _: Caller = requires_role("viewer")) -> Response:
    """`valid` is false if any diagnostic is an error; `docs` followed by a code is the address of its page."""
    from noetl.core.language.diagnostics import DOCS

    source = Source(body.content, body.file)
    state = app_state(request)
    check = state.orchestrator.catalog.check
    found = await state.run_in_thread(lambda: check(source, strict=body.strict, legacy=body.legacy))
    diagnostics = [diagnostic_document(each) for each in found.diagnostics]
    return json_response({"valid": found.playbook is not None, "diagnostics": diagnostics, "docs": DOCS})


@router.get("/schema/playbook.json", summary="JSON Schema of playbooks")
async def schema(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """Includes the installed tool kinds."""
    from noetl.core.language.reference.json_schema import json_schema

    return json_response(json_schema(app_state(request).specs()))


@router.post("/api/graph", summary="Graph of a playbook text")
async def graph(request: Request, body: TextBody, _: Caller = requires_role("viewer")) -> Response:
    """For previews. A text with errors is rejected with diagnostics."""
    from noetl.core.language.editor.net_document import net_document

    source = Source(body.content, body.file)
    state = app_state(request)
    check = state.orchestrator.catalog.check
    found = await state.run_in_thread(lambda: check(source, strict=body.strict, legacy=body.legacy))
    if found.playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    return json_response(net_document(found.playbook))


@router.post("/api/catalog/register", status_code=201, summary="Register a playbook version")
async def register(request: Request, body: TextBody, _: Caller = requires_role("author")) -> Response:
    """Registering the same text again returns the same version."""
    catalog = app_state(request).orchestrator.catalog
    stored = await catalog.register(
        Source(body.content, body.file), time.time(), strict=body.strict, legacy=body.legacy
    )
    return json_response(playbook_document(stored), 201)


@router.get("/api/catalog", summary="List playbooks with their newest version")
async def catalog(
    request: Request,
    search: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[str | None, Query(max_length=1000, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page, sorted by path."""
    state = app_state(request)
    found = await state.orchestrator.catalog.list(search=search, after=after, limit=limit + 1)
    following = found[limit - 1].path if len(found) > limit else None
    return json_response(
        page(await state.run_in_thread(lambda: [playbook_document(each) for each in found[:limit]]), following)
    )


@router.get("/api/versions/{path:path}", summary="List versions of a playbook, newest first")
async def versions(
    request: Request,
    path: str,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    _: Caller = requires_role("viewer"),
) -> Response:
    """One page, without texts."""
    state = app_state(request)
    found = await state.orchestrator.catalog.versions(path, before=before, limit=limit + 1)
    if not found and before is None:
        raise NotFound(f"there is no playbook {path!r}")
    following = str(found[limit - 1].version) if len(found) > limit else None
    return json_response(
        page(await state.run_in_thread(lambda: [playbook_document(each) for each in found[:limit]]), following)
    )


@router.get("/api/catalog/{path:path}", summary="Get a playbook with its text")
async def playbook(
    request: Request,
    path: str,
    version: Annotated[int | None, Query(ge=1, le=2**31)] = None,
    _: Caller = requires_role("viewer"),
) -> Response:
    """The newest version, or the given one."""
    stored = await app_state(request).orchestrator.catalog.registered(path, version)
    if stored is None:
        raise NotFound(f"there is no playbook {path!r}" + (f" version {version}" if version else ""))
    return json_response(playbook_document(stored, text=True))
