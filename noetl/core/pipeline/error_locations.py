"""Error locations: `file:line:column` of the template, the rule or the task that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, error_info, with_secondary
from noetl.core.model.playbook import Playbook
from noetl.core.pipeline.scopes import NeedsSecret
from noetl.core.templates.views import NeedsPayload, NeedsReference
from noetl.errors import TemplateError

# Not errors: the shell fetches the missing data and calls again.
MISSING_DATA = (NeedsPayload, NeedsReference, NeedsSecret)

_SHOWN = 200


class LocatedError(TemplateError):
    """A template error whose message starts with its location."""

    def __init__(self, message: str, *, where: str, text: str = "", kind: str = "template") -> None:
        super().__init__(message, text=text, kind=kind)
        self.where = where


def located(playbook: Playbook, problem: TemplateError, *paths: str) -> LocatedError:
    """The error with its location: the first of `paths` that is in the playbook's text, else the nearest one."""
    if isinstance(problem, LocatedError):
        return problem
    below = "/" + problem.path.strip("/") if problem.path else ""
    known = next((path for path in paths if path in playbook.locations), paths[-1] if paths else "")
    where = playbook.where(known + below)
    return LocatedError(f"{where}: {problem.message}", where=where, text=problem.text, kind=problem.kind)


def info_of(problem: TemplateError) -> ErrorInfo:
    """The template error as an `ErrorInfo` of a known kind."""
    kind = problem.kind if problem.kind in ERROR_KINDS else "template"
    details: dict[str, Any] = {}
    if isinstance(problem, LocatedError):
        details["at"] = problem.where
    if problem.text:
        text = problem.text
        details["template"] = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return error_info(kind, problem.message, details=details)


def with_unset(error: ErrorInfo, unset: Mapping[str, TemplateError]) -> ErrorInfo:
    """An error with the targets of `set` that could not be evaluated after it; the first one is its `secondary`."""
    if not unset:
        return error
    messages = {target: problem.message for target, problem in unset.items()}
    detailed = replace(error, details={**error.details, "unset": {**error.details.get("unset", {}), **messages}})
    return with_secondary(detailed, info_of(next(iter(unset.values()))))
