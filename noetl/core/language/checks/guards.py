"""Guards that are not conditions."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.node_reader import is_template, shorten
from noetl.core.language.source.nodes import Scalar


def check(context: AnalysisContext) -> None:
    """Report guards that are plain text: they are always true (or always false)."""
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
