"""The catalog, and validation with the same diagnostics as on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from noetl.errors import InvalidPlaybook
from noetl.server.http.dependencies import App, AppState, Author, Viewer
from noetl.server.http.request_models import Body
from noetl.server.http.response_models import json_response, page_of, playbook_document
from noetl.server.orchestrator.catalog import Source
from noetl.server.read_models.documents import summary_document
from noetl.storage.ports.playbooks import Origin, StoredPlaybook

if TYPE_CHECKING:
    from noetl.core.language.compile import Compilation

router = APIRouter(tags=["playbooks"])


class TextBody(Body):
    """The text of a playbook."""

    content: str
    file: str = ""
    strict: bool = False
    legacy: bool = False


class OriginBody(Body):
    """Where a version comes from."""

    project: Annotated[str, Field(max_length=200)] = ""
    profile: Annotated[str, Field(max_length=200)] = ""
    commit: Annotated[str, Field(max_length=200)] = ""
    modified: bool = False


class RegisterBody(TextBody):
    """The text of a playbook; `file` is `bundle:DIGEST/PATH` if files travel with it."""

    origin: OriginBody = OriginBody()


async def _check(state: AppState, body: TextBody) -> Compilation:
    source = Source(body.content, body.file)
    check = state.orchestrator.catalog.check
    return await state.run_in_thread(lambda: check(source, strict=body.strict, legacy=body.legacy))


@router.post("/api/validate", summary="Validate a playbook")
async def validate(state: App, _: Viewer, body: TextBody) -> Response:
    """`valid` is false if any diagnostic is an error; `docs` followed by a code is the address of its page."""
    from noetl.core.language.diagnostics import DOCS
    from noetl.server.orchestrator.installation_checks import installation_findings

    found = await _check(state, body)
    findings = list(found.diagnostics)
    if found.playbook is not None:
        findings = sorted((*findings, *await installation_findings(state.orchestrator, found.playbook)))
    diagnostics = [each.as_dict() for each in findings]
    return json_response({"valid": found.playbook is not None, "diagnostics": diagnostics, "docs": DOCS})


@router.get("/schema/playbook.json", summary="JSON Schema of playbooks")
async def schema(state: App, _: Viewer) -> Response:
    """Includes the installed tool kinds."""
    from noetl.core.language.reference.json_schema import json_schema

    return json_response(json_schema(state.specs()))


@router.post("/api/graph", summary="Graph of a playbook text")
async def graph(state: App, _: Viewer, body: TextBody) -> Response:
    """For previews. A text with errors is rejected with diagnostics."""
    from noetl.core.language.editor.net_document import net_document

    found = await _check(state, body)
    if found.playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    return json_response(net_document(found.playbook))


@router.post("/api/catalog/register", status_code=201, summary="Register a playbook version")
async def register(state: App, _: Author, body: RegisterBody) -> Response:
    """Registering the same text again returns the same version. `warnings` has what this installation does not have."""
    from noetl.server.orchestrator.installation_checks import installation_findings

    catalog = state.orchestrator.catalog
    stored = await catalog.register(
        Source(body.content, body.file),
        state.now(),
        strict=body.strict,
        legacy=body.legacy,
        origin=Origin(**body.origin.model_dump()),
    )
    playbook = await catalog.load(stored.digest)
    findings = await installation_findings(state.orchestrator, playbook)
    return json_response({**playbook_document(stored), "warnings": [each.as_dict() for each in findings]}, 201)


@router.get("/api/catalog", summary="List playbooks with their newest version")
async def catalog(
    state: App,
    _: Viewer,
    search: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[str | None, Query(max_length=1000, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page, sorted by path; each playbook with its newest execution."""
    found = await state.orchestrator.catalog.playbooks.list(search=search, after=after, limit=limit + 1)
    latest = await state.orchestrator.store.latest([each.path for each in found])

    def document(stored: StoredPlaybook) -> dict[str, Any]:
        execution = latest.get(stored.path)
        return {**playbook_document(stored), "last_execution": summary_document(execution) if execution else None}

    return json_response(await state.run_in_thread(lambda: page_of(found, limit, lambda each: each.path, document)))


@router.get("/api/versions/{path:path}", summary="List versions of a playbook, newest first")
async def versions(
    state: App,
    _: Viewer,
    path: str,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="`next` of the previous page")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """One page, without texts."""
    found = await state.orchestrator.catalog.playbooks.versions(path, before=before, limit=limit + 1)
    if not found and before is None:
        raise await state.orchestrator.catalog.unknown(path)
    return json_response(
        await state.run_in_thread(lambda: page_of(found, limit, lambda each: each.version, playbook_document))
    )


@router.get("/api/catalog/{path:path}", summary="Get a playbook with its text")
async def playbook(
    state: App, _: Viewer, path: str, version: Annotated[int | None, Query(ge=1, le=2**31)] = None
) -> Response:
    """The newest version, or the given one."""
    stored = await state.orchestrator.catalog.registered(path, version)
    if stored is None:
        raise await state.orchestrator.catalog.unknown(path, version)
    return json_response(playbook_document(stored, text=True))
