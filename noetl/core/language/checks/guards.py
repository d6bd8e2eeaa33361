"""Guards that are not conditions."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.node_reader import is_template, shorten
from noetl.core.language.source.nodes import Scalar

_LONGEST = 10_000  # characters of a guard that are searched
_EXPRESSION = re.compile(r"\{\{-?(.*?)-?\}\}", re.S)
_COMPARED = re.compile(r"\s*(==|!=|<=|>=|<|>|in|not in)\s*(.+?)\s*", re.S)
_VALUE = re.compile(r"-?\d+(\.\d+)?|true|false|none|null|'[^']*'|\"[^\"]*\"|\[.*\]", re.I | re.S)


def check(context: AnalysisContext) -> None:
    """Report guards that are text: they are always true (or always false)."""
    for guard in context.sites.templated_guards:
        condition = _condition(guard.value)
        if condition is not None:
            message = "text beside `{{ }}` makes this guard text, so it is always true"
            context.reader.add("guard-without-template", guard, message, f'write "{{{{ {shorten(condition)} }}}}"')
    for step in context.document.steps:
        for rule in step.admit_rules:
            allow = rule.allow
            if isinstance(allow, Scalar) and not isinstance(allow.value, bool) and not is_template(allow):
                message = f'`allow` must be true or false, not "{shorten(allow.text)}"'
                context.reader.add("wrong-type", allow, message, "only true and false are booleans")
    for guard in context.sites.plain_text_guards:
        text = guard.value.strip()
        if text.lower() in ("true", "false"):
            continue
        if not text:
            context.reader.add(
                "guard-without-template",
                guard,
                "an empty guard is always false",
                "write a condition, or remove it",
            )
            continue
        message = "this guard is plain text, so it is always true"
        context.reader.add("guard-without-template", guard, message, f'write "{{{{ {shorten(text)} }}}}"')


def _condition(text: str) -> str | None:
    """What a guard with words beside its expressions means: `{{ a }} == b`; None if it has none."""
    around = _EXPRESSION.sub("", text) if len(text) <= _LONGEST else ""
    if not around.strip() or any(mark in around for mark in ("{{", "}}", "{%", "{#")):
        return None
    first = _EXPRESSION.match(text.lstrip())
    compared = _COMPARED.fullmatch(text.lstrip()[first.end() :]) if first else None
    if first and compared and "{{" not in compared[2]:
        value = compared[2] if _VALUE.fullmatch(compared[2]) else f"'{compared[2]}'"
        return f"{first[1].strip()} {compared[1]} {value}"
    return _EXPRESSION.sub(lambda found: found[1].strip(), text.strip())
