"""Templates of a source that read `cursor`, the start of an incremental load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from noetl.core.model.tool import ToolCall
from noetl.core.templates.deferred import DeferredTemplate
from noetl.errors import TemplateError
from noetl.tools._common.sql_task import BadInput
from noetl.tools.transfer.chunks import TemplateRenderer, reads_name

NAME = "cursor"
NO_START = "There is no cursor before the first load: set `incremental.initial`, or write {{ cursor | default(...) }}"
_WHOLE = re.compile(r"\{\{-?\s*cursor\s*-?\}\}")


def render(call: ToolCall, fields: Any, **names: Any) -> Any:
    """The fields of a source with the templates that read `cursor`; those that read `page` stay."""
    if isinstance(fields, DeferredTemplate):
        return TemplateRenderer(call).render(fields, **names) if reads_name(fields, NAME) else fields
    if isinstance(fields, Mapping):
        return {key: render(call, each, **names) for key, each in fields.items()}
    return [render(call, each, **names) for each in fields] if isinstance(fields, list | tuple) else fields


def without_cursor(fields: Any) -> Any:
    """The fields with null where they are just `{{ cursor }}`."""
    if isinstance(fields, DeferredTemplate):
        return None if _WHOLE.fullmatch(fields.strip()) else fields
    if isinstance(fields, Mapping):
        return {key: without_cursor(each) for key, each in fields.items()}
    return [without_cursor(each) for each in fields] if isinstance(fields, list | tuple) else fields


def render_start(call: ToolCall, fields: Any, start: Any) -> Any:
    """The fields of an incremental source with the start of the load. If there is none, a field that is just
    `{{ cursor }}` is null, and another template that needs it is an error."""
    if start is not None:
        return render(call, fields, cursor=start)
    try:
        return render(call, without_cursor(fields))
    except TemplateError as problem:
        reason = "a text of the source contains {{ cursor }}" if f'"{NAME}"' in problem.message else problem.message
        raise BadInput(f"{reason}. {NO_START}") from None


def bare_cursor(call: ToolCall) -> Any:
    """What the name `cursor` means in a source that is not incremental: a value of the playbook, as elsewhere."""
    for scope in ("iter", "ctx", "workload"):
        values = call.scopes.get(scope)
        if isinstance(values, Mapping) and NAME in values:
            return values[NAME]
    raise BadInput("{{ cursor }} is not defined: declare `incremental: {cursor: <column>}` in the source")
