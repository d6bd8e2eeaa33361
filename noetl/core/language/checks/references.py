"""References: names that end in `_ref` contain locators, other names contain data (003 sections 7 and 9).

The check handles assignments whose whole value is one name. Other values are checked at run time.
"""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.template_analysis import Read, analyze_template
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.source.nodes import Mapping, Scalar, Sequence
from noetl.core.language.syntax.tree import SetSyntax

_REFERENCE_FIELDS = frozenset({"type", "locator", "auth_reference", "meta"})
_PAYLOADS = frozenset({"data", "status", "error", "http", "pg", "py"})


def check(context: AnalysisContext) -> None:
    """Report references assigned to data names, data assigned to reference names, and payload fields of references."""
    for body in context.document.bodies():
        for assigned in context.sets_of(body):
            _check_assignment(context, assigned)
        for level in body.loops():
            path = whole_name(level.collection)
            if path is not None and level.collection is not None and is_reference(path):
                message = f"a loop iterates over data, but `{'.'.join(path)}` is a reference to stored data"
                hint = "fetch the data with a task of `kind: resolve` first, or read the step by its name"
                context.reader.add("reference-field", level.collection, message, hint)
    for site in context.sites.templates:
        for read in site.template.reads:
            _check_field(context, site, read)


def _check_assignment(context: AnalysisContext, assigned: SetSyntax) -> None:
    path = whole_name(assigned.value)
    is_reference_name = assigned.keys[-1].endswith("_ref")
    if is_reference_name:
        _check_reference(context, assigned, path)
    elif path is not None and is_reference(path):
        message = f"`{'.'.join(path)}` is a reference, but `{assigned.target}` is named like data"
        hint = f"write `{assigned.target}_ref`, or assign `output.data`"
        context.reader.add("reference-as-data", assigned.key, message, hint)


def _check_reference(context: AnalysisContext, assigned: SetSyntax, path: tuple[str, ...] | None) -> None:
    value = assigned.value
    if path is not None:
        wrong = path[0] in ("output", "outcome") and len(path) > 1 and path[1] in _PAYLOADS and not is_reference(path)
        found = f"`{'.'.join(path)}`"
    elif isinstance(value, Scalar):
        wrong = value.value is not None and not (isinstance(value.value, str) and "{" in value.value)
        found = f'"{value.text}"'
    else:
        wrong = isinstance(value, Sequence) or (isinstance(value, Mapping) and not value.get("locator"))
        found = "this"
    if wrong:
        message = f"`{assigned.target}` is named like a reference, but {found} is not a reference"
        context.reader.add(
            "data-as-reference", assigned.key, message, "assign `output.ref`, or remove `_ref` from the name"
        )


def _check_field(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    """A field below `..._ref` or `output.ref` that only the payload can have."""
    path = read.path
    for number, key in enumerate(path[:-1]):
        if not (key.endswith("_ref") or (key == "ref" and path[0] in ("output", "outcome") and number == 1)):
            continue
        if number == 0 or (path[0] not in ("ctx", "step", "iter", "output", "outcome", "input", *context.steps)):
            continue
        if path[number + 1] not in _REFERENCE_FIELDS:
            reference = ".".join(path[: number + 1])
            message = f"`{reference}` is a reference to stored data and has no field `{path[number + 1]}`"
            context.report_read(
                "reference-field", site, read, message, "fetch the data with a task of `kind: resolve` first"
            )
        return


def is_reference(path: tuple[str, ...]) -> bool:
    """Whether a name is known to contain a reference."""
    return (path[-1] == "ref" and path[0] in ("output", "outcome")) or path[-1].endswith("_ref")


def whole_name(node: object) -> tuple[str, ...] | None:
    """The name if a value consists of one name: `{{ output.ref }}`."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return None
    text = node.value.strip()
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    reads = analyze_template(node.value).reads
    if len(reads) != 1:
        return None
    inside = text[2:-2].strip(" -\n\t")
    return reads[0].path if inside == ".".join(reads[0].path) else None
