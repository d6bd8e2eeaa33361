"""Templates in definitions that a server stores and renders itself: payloads of triggers, bodies of notifications.

All templates of a definition share the limits of one decision, and parsing them is bounded by their number and length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.core.templates.budget import Meter, limit_exceeded
from noetl.core.templates.template import Compiled, compile_value, is_template

MAX_TEMPLATES = 500
MAX_CHARACTERS = 64 * 1024


def compile_definition(value: Any) -> Compiled:
    """Compile data with templates; TemplateError if they exceed a limit."""
    number, characters = _size(value)
    if number > MAX_TEMPLATES:
        limit_exceeded(f"{number:,} templates in one definition (at most {MAX_TEMPLATES:,})")
    if characters > MAX_CHARACTERS:
        limit_exceeded(f"{characters:,} characters of templates in one definition (at most {MAX_CHARACTERS:,})")
    return compile_value(value)


def render_definition(value: Any, names: Mapping[str, Any]) -> Any:
    """The data with its templates evaluated; TemplateError if one cannot be evaluated, or if they exceed a limit."""
    compiled = compile_definition(value)
    return value if compiled.static else compiled.evaluate(names, meter=Meter())


def _size(value: Any) -> tuple[int, int]:
    """The number of the templates in data, and their characters."""
    number = characters = 0
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            if is_template(each):
                number += 1
                characters += len(each)
        elif isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return number, characters
