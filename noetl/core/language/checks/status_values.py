"""Comparisons with a status or an error kind that does not exist: they never (or always) hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.model.outcome import ERROR_KINDS

STATUSES = ("ok", "error")
_EVENT_STATUSES = ("success", "error")
# What other systems call the same thing.
_MEANT = {
    **dict.fromkeys(("success", "succeeded", "done", "completed", "complete", "finished", "passed"), "ok"),
    **dict.fromkeys(("failed", "failure", "fail", "err", "exception"), "error"),
    "rate_limited": "rate_limit",
    "too_many_requests": "rate_limit",
    "throttled": "rate_limit",
    "timed_out": "timeout",
    "network": "connection",
    "connection_error": "connection",
    "unauthorized": "auth",
    "forbidden": "auth",
    "http_4xx": "client_error",
    "http_5xx": "server_error",
    "validation": "schema",
}

_STRING = r"""(?:'[^'\\]*'|"[^"\\]*")"""
_NAME = r"""[^\W\d]\w*(?:\.\w+|\[\s*['"][\w-]+['"]\s*\])*?"""
_FIELD = r"""(?:\.|\[\s*['"])(?P<field>status|error\.kind|kind)(?:['"]\s*\])?"""
_PATH = rf"(?P<path>{_NAME}){_FIELD}"
_FILTERS = r"""(?:\s*\|\s*\w+(?:\([^()]*\))?)*"""
_AFTER = re.compile(
    rf"""(?<![\w.]){_PATH}(?![\w.(\[]){_FILTERS}\)?\s*(?:==|!=|(?:not\s+)?in)\s*(?P<values>{_STRING}|\d+\b|[\[(][^\])]*[\])])"""
)
_BEFORE = re.compile(rf"""(?P<values>{_STRING})\s*(?:==|!=)\s*\(?{_PATH}(?![\w.(\[])""")
_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.S)
_VALUE = re.compile(rf"{_STRING}|\d+")


class Comparison(NamedTuple):
    """A comparison of a status or error kind with a constant."""

    path: tuple[str, ...]
    value: str
    offset: int
    quoted: bool


def check(context: AnalysisContext) -> None:
    """Check every comparison with a constant."""
    for site in context.sites.templates:
        text = site.node.value
        if "status" in text or "kind" in text:
            for found in comparisons(text):
                _check(context, site, found)


def comparisons(text: str) -> Iterator[Comparison]:
    """The comparisons in a template whose left (or right) side ends in `status` or `error.kind`."""
    for expression in _EXPRESSION.finditer(text):
        for pattern in (_AFTER, _BEFORE):
            for found in pattern.finditer(text, expression.start(), expression.end()):
                path = tuple(re.findall(r"[\w-]+", f"{found['path']}.{found['field']}"))
                for value in _VALUE.finditer(text, found.start("values"), found.end("values")):
                    quoted = value.group()[0] in "'\""
                    written = value.group()[1:-1] if quoted else value.group()
                    yield Comparison(path, written, value.start() + quoted, quoted)


def _check(context: AnalysisContext, site: TemplateSite, found: Comparison) -> None:
    path, value = found.path, found.value
    if path[-2:] == ("error", "kind"):
        if _is_outcome(context, site, path[:-2]) and value not in ERROR_KINDS:
            hint = _hint(value, tuple(ERROR_KINDS), "error kinds: " + ", ".join(ERROR_KINDS))
            _report(context, site, found, f'there is no error kind "{value}"', hint)
    elif path[-2:] == ("http", "status"):
        if found.quoted and value.isdigit():
            _report(
                context,
                site,
                found,
                f'an HTTP status is a number: it never equals the text "{value}"',
                f"write {value}",
            )
    elif path[-1] != "status":
        return
    elif path[0] == "steps" and len(path) == 3 and site.visibility.server:
        name = ".".join(path)
        message = f'`{name}` is a mapping (`done`, `ok`, `running`, `error`): it never equals "{value}"'
        hint = f"write `{name}.ok`" if _MEANT.get(value, value) == "ok" else f"write `fail('{path[1]}')`"
        _report(context, site, found, message, hint)
    elif path == ("event", "status"):
        if value not in _EVENT_STATUSES:
            _report(context, site, found, f'no event has the status "{value}"', "the status is success or error")
    elif (path in _STATUS_OF_OUTPUT or path[0] == "steps") and value not in STATUSES:
        number = f"for the HTTP status write `{path[0]}.http.status`"
        otherwise = "the status is ok or error" if found.quoted else number
        hint = _hint(value, STATUSES, otherwise)
        _report(context, site, found, f'no outcome has the status "{value}"', hint)


def _hint(value: str, known: tuple[str, ...], otherwise: str) -> str:
    meant = _MEANT.get(value)
    return f'did you mean "{meant}"?' if meant in known else did_you_mean(value, known, otherwise)


_STATUS_OF_OUTPUT = (("output", "status"), ("outcome", "status"))
_OUTPUTS = frozenset({"output", "outcome"})


def _is_outcome(context: AnalysisContext, site: TemplateSite, path: tuple[str, ...]) -> bool:
    """Whether a name is an outcome: the output, a finished step or task, an event."""
    if len(path) == 2:
        return path[0] == "steps"
    if len(path) != 1:
        return False
    tasks = context.body(site.body).tasks if site.body is not None else frozenset()
    return path[0] in _OUTPUTS | {"_prev", "event"} or path[0] in context.steps or path[0] in tasks


def _report(context: AnalysisContext, site: TemplateSite, found: Comparison, message: str, hint: str) -> None:
    context.report_inside("unknown-status", site, found.offset, len(found.value), message, hint)
