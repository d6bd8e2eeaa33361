"""What an editor asks about a text that is being written: layout, words, meanings, and the form to run it with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from noetl.errors import InvalidPlaybook, RequestRefused
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import app_state, requires_role
from noetl.server.http.response_models import answer
from noetl.server.http.routes.executions import Body, one_of
from noetl.server.orchestrator.catalog import Source

router = APIRouter(tags=["editing"])

Content = Annotated[str, Field(max_length=4 * 2**20)]


class WrittenBody(Body):
    """A text."""

    content: Content


class PlaceBody(Body):
    """A place in a text; lines and columns count from 1."""

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
    """Texts by name."""

    texts: dict[str, Content]


@router.post("/api/format", summary="A text in its canonical layout")
async def format(request: Request, body: WrittenBody, _: Caller = requires_role("viewer")) -> Response:
    """Comments, order and meaning stay; what is no YAML comes back as it is."""
    from noetl.core.language.rewrite.format import format_text

    parts = app_state(request)
    content = await parts.aside(lambda: format_text(body.content, parts.specs()))
    return answer({"content": content, "changed": content != body.content})


@router.post("/api/migrate", summary="A text in canonical words")
async def migrate(request: Request, body: WrittenBody, _: Caller = requires_role("viewer")) -> Response:
    """`notes` say what could not be said exactly; diagnostics when the text has errors."""
    from noetl.core.language.rewrite.migrate.to_canonical import migrate

    parts = app_state(request)
    check = parts.orchestrator.catalog.check
    found = await parts.aside(lambda: check(Source(body.content), legacy=True))
    if found.playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    made = await parts.aside(lambda: migrate(body.content, parts.specs()))
    notes = [{"line": note.line, "message": note.message} for note in made.notes]
    return answer({"content": made.text, "changed": made.text != body.content, "notes": notes})


@router.post("/api/complete", summary="The words that can stand at a place")
async def complete(request: Request, body: PlaceBody, _: Caller = requires_role("viewer")) -> Response:
    """`column` is where the word that is being written begins."""
    from noetl.core.language.editor.autocomplete import complete as completions_at

    parts = app_state(request)
    column, words = await parts.aside(lambda: completions_at(body.content, body.line, body.column, parts.specs()))
    items = [{"word": word.word, "doc": word.doc, "kind": "value" if word.is_value else "key"} for word in words]
    return answer({"column": column, "items": items})


@router.post("/api/hover", summary="What the word at a place means")
async def hover(request: Request, body: PlaceBody, _: Caller = requires_role("viewer")) -> Response:
    """`hover` is null where there is nothing to say."""
    from noetl.core.language.editor.hover import hover

    parts = app_state(request)
    found = await parts.aside(lambda: hover(body.content, body.line, body.column, parts.specs()))
    return answer({"hover": found._asdict() if found else None})


@router.post("/api/values", summary="Texts of a form as the values they stand for")
async def values(request: Request, body: ValuesBody, _: Caller = requires_role("viewer")) -> Response:
    """Each text is read as YAML, as a playbook's own; `problems` names those that cannot be read."""
    from noetl.core.language.editor.run_form import values_document

    return answer(await app_state(request).aside(lambda: values_document(body.texts)))


@router.post("/api/form", summary="What a playbook asks before it runs")
async def form(request: Request, body: FormBody, _: Caller = requires_role("viewer")) -> Response:
    """One field for each `workload` key, with type, default and help."""
    from noetl.core.language.editor.run_form import form_document

    if (body.path is None) == (body.content is None):
        raise RequestRefused("name a playbook by `path` or bring its text as `content`: one of the two")
    parts = app_state(request)
    catalog = parts.orchestrator.catalog
    source = Source(body.content) if body.content is not None else await catalog.find(body.path or "", body.version)
    found = await parts.aside(lambda: catalog.check(source, legacy=body.legacy or body.path is not None))
    playbook = found.playbook
    if playbook is None:
        raise InvalidPlaybook(found.diagnostics)
    return answer(await parts.aside(lambda: form_document(source.text, playbook)))
