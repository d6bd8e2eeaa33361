"""Language services for editors: formatting, migration, completion, hover and run forms."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from noetl.errors import InvalidPlaybook, RequestRefused
from noetl.server.http.dependencies import App, AppState, Viewer
from noetl.server.http.request_models import Body, one_of
from noetl.server.http.response_models import json_response
from noetl.server.orchestrator.catalog import Source

router = APIRouter(tags=["editing"])

MAX_SCHEMAS = 200

Content = Annotated[str, Field(max_length=4 * 2**20)]


class ContentBody(Body):
    """The text of a playbook."""

    content: Content


class PositionBody(Body):
    """A position in a text; lines and columns start at 1."""

    content: Content
    line: int = Field(ge=1, le=2**31)
    column: int = Field(ge=1, le=2**31)


class FormBody(Body):
    """A playbook of the catalog (`path`) or a text (`content`)."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=one_of("path", "content"))

    path: str | None = Field(None, max_length=1000)
    version: int | None = Field(None, ge=1, le=2**31)
    content: Content | None = None
    legacy: bool = False


class ValuesBody(Body):
    """Texts by field name."""

    texts: dict[str, Content]


@router.post("/api/format", summary="Format a playbook")
async def format(state: App, _: Viewer, body: ContentBody) -> Response:
    """Preserves comments, order and meaning; text that is not YAML is returned unchanged."""
    from noetl.core.language.rewrite.format import format_text

    content = await state.run_in_thread(lambda: format_text(body.content, state.specs()))
    return json_response({"content": content, "changed": content != body.content})


@router.post("/api/migrate", summary="Rewrite a playbook in the canonical dialect")
async def migrate(state: App, _: Viewer, body: ContentBody) -> Response:
    """`notes` lists what could not be translated exactly. A text with errors is rejected with diagnostics."""
    from noetl.core.language.rewrite.migrate.to_canonical import migrate

    check = state.orchestrator.catalog.check
    found = await state.run_in_thread(lambda: check(Source(body.content), legacy=True))
    if found.playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    made = await state.run_in_thread(lambda: migrate(body.content, state.specs()))
    notes = [{"line": note.line, "message": note.message} for note in made.notes]
    return json_response({"content": made.text, "changed": made.text != body.content, "notes": notes})


@router.post("/api/complete", summary="Completions at a position")
async def complete(state: App, _: Viewer, body: PositionBody) -> Response:
    """`column` is the start of the word at the position."""
    from noetl.core.language.editor.autocomplete import complete as completions_at

    schemas = await _schemas(state, body)
    column, words = await state.run_in_thread(
        lambda: completions_at(body.content, body.line, body.column, state.specs(), schemas)
    )
    items = [{"word": word.word, "doc": word.doc, "kind": "value" if word.is_value else "key"} for word in words]
    return json_response({"column": column, "items": items})


async def _schemas(state: AppState, body: PositionBody) -> dict[str, Any]:
    """The registered schemas by reference: the newest versions, and those that the text names."""
    from noetl.core.language.editor.schema_fields import may_name_schemas, schema_references

    registry = state.orchestrator.schemas
    if registry is None or not may_name_schemas(body.content):
        return {}
    found = {}
    for each in await registry.list(limit=MAX_SCHEMAS):
        found[each.name] = found[f"{each.name}/v{each.version}"] = each.schema
    references = await state.run_in_thread(lambda: schema_references(body.content, body.line))
    for reference in references - found.keys():
        try:
            found[reference] = (await registry.find(reference)).schema
        except RequestRefused:  # not registered, or not a reference
            continue
    return found


@router.post("/api/hover", summary="Documentation of the word at a position")
async def hover(state: App, _: Viewer, body: PositionBody) -> Response:
    """`hover` is null if there is no documentation."""
    from noetl.core.language.editor.hover import hover

    found = await state.run_in_thread(lambda: hover(body.content, body.line, body.column, state.specs()))
    return json_response({"hover": found._asdict() if found else None})


@router.post("/api/values", summary="Parse the texts of a form")
async def values(state: App, _: Viewer, body: ValuesBody) -> Response:
    """Each text is parsed as YAML, as in a playbook; `problems` lists those that cannot be parsed."""
    from noetl.core.language.editor.run_form import values_document

    return json_response(await state.run_in_thread(lambda: values_document(body.texts)))


@router.post("/api/form", summary="Form fields of a playbook")
async def form(state: App, _: Viewer, body: FormBody) -> Response:
    """One field per `workload` key, with type, default and help."""
    from noetl.core.language.editor.run_form import form_document

    if (body.path is None) == (body.content is None):
        raise RequestRefused("send either `path` (a playbook of the catalog) or `content` (its text)")
    catalog = state.orchestrator.catalog
    source = Source(body.content) if body.content is not None else await catalog.find(body.path or "", body.version)
    found = await state.run_in_thread(lambda: catalog.check(source, legacy=body.legacy or body.path is not None))
    playbook = found.playbook
    if playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    return json_response(await state.run_in_thread(lambda: form_document(source.text, playbook)))
