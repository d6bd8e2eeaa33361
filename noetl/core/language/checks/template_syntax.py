"""Templates with a syntax error, or with a filter, test or function that does not exist."""

from __future__ import annotations

import inspect
import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.flow.template_analysis import Call, Problem, Template
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.flow.visibility import SCOPE_NAMES, STATUS_HELPERS
from noetl.core.language.source.nodes import Scalar
from noetl.core.language.syntax.foreign_idioms import FUNCTIONS as OTHER_FUNCTIONS
from noetl.core.language.syntax.foreign_idioms import clarify_message, suggest_fix
from noetl.core.templates.binding import writing_block
from noetl.core.templates.budget import Meter
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import FUNCTIONS
from noetl.core.templates.predicates import TESTS
from noetl.core.templates.status_helpers import STATUS_FUNCTIONS
from noetl.core.templates.template import compile_value
from noetl.errors import TemplateError

# Python functions that are filters in templates.
_AS_FILTERS = {"len": "length", "str": "string", "sorted": "sort", "dumps": "tojson", "loads": "fromjson"}
_RUNTIME = frozenset(["namespace", "cycler", "joiner"])
_CONSTANT = Template((), ())  # reads and calls nothing
_CONSTANT_OPERATIONS, _CONSTANT_TEXT = 1000, 10_000
_IN_CODE = re.compile(r"\{\{-?\s*([^\W\d]\w*)(?=[^{}]*\}\})")
# `${scope.name}` and `{ scope.name }` of other tools (`${name}` is a shell variable), and a whole value `${{ name }}`.
_FOREIGN = re.compile(r"\A\$(?=\{\{[^{}]*\}\}\Z)|(?<!\{)[$#]?\{\s*([^\W\d]\w*)\.[\w.\[\]]+\s*\}(?!\})")
_SCOPES_IN_CODE = frozenset(("workload", "ctx", "iter", "input", "output", "keychain", "step", "args", "execution_id"))


def check(context: AnalysisContext) -> None:
    """Report every template that cannot be evaluated."""
    for site in context.sites.templates:
        if site.template.problem is not None:
            _report(context, site, site.template.problem)
        for call in site.template.calls:
            _check_call(context, site, call)
        if site.template == _CONSTANT:
            _check_constant(context, site)
    for site in context.sites.bound:
        if site.template.problem is None and (block := writing_block(site.node.value)) is not None:
            hint = "apply filters to values (`{{ value | upper }}`), and write repeated text as a macro"
            context.report_inside("template-syntax", site, block[0], 1, block[1], hint)
    for key in context.sites.keys:
        context.reader.add(
            "template-in-key",
            key,
            "keys are not templates: this one is not evaluated",
            "build the mapping in a template instead",
        )
    for node in context.sites.braces:
        _check_foreign(context, node)
    for body in context.document.bodies():
        for task in body.tasks():
            for parameter in task.parameters.values():
                if parameter.raw and isinstance(parameter.value, Scalar) and isinstance(parameter.value.value, str):
                    _check_code(context, parameter.value)


def _report(context: AnalysisContext, site: TemplateSite, problem: Problem) -> None:
    if problem.what == "filter":
        hint = did_you_mean(problem.word, FILTERS)
        context.report_inside(
            "unknown-filter", site, problem.offset, len(problem.word), f'unknown filter "{problem.word}"', hint
        )
    elif problem.what == "test":
        hint = did_you_mean(problem.word, TESTS)
        context.report_inside(
            "unknown-test", site, problem.offset, len(problem.word), f'unknown test "{problem.word}"', hint
        )
    else:
        message = f"template syntax error: {clarify_message(problem.message)}"
        context.report_inside("template-syntax", site, problem.offset, 1, message, suggest_fix(site.node.value))


def _check_constant(context: AnalysisContext, site: TemplateSite) -> None:
    """A template that reads nothing has one value, or always the same error."""
    try:
        compile_value(site.node.value).evaluate({}, max_text=_CONSTANT_TEXT, meter=_small_meter())
    except TemplateError as problem:
        if problem.kind == "template":
            message = f"the template always fails: {problem.message}"
            context.report_inside("failing-template", site, 0, len(site.node.value), message, "correct the expression")


def _small_meter() -> Meter:
    meter = Meter()
    meter.operations = _CONSTANT_OPERATIONS
    return meter


def _check_call(context: AnalysisContext, site: TemplateSite, call: Call) -> None:
    if call.name in STATUS_HELPERS:
        _check_helper(context, site, call)
        return
    if call.name in FUNCTIONS:
        least, most = _arguments(call.name)
        if not least <= len(call.args) <= most:
            bound, number = ("at least", least) if len(call.args) < least else ("at most", most)
            expected = f"{bound} {number}" if number else "no"
            message = f"`{call.name}()` takes {expected} argument{'s' if number != 1 else ''}"
            hint = FUNCTIONS[call.name][1]
            context.report_inside("template-syntax", site, call.offset, len(call.name), message, hint)
        return
    if call.name in _RUNTIME:
        return
    if call.name == "token":  # a function of the original; what nothing defines is a warning
        message = "`token()` is not available here: the task will fail"
        hint = "declare a keychain entry (`kind: oauth2` or `bearer`) and read `keychain.<name>`"
        context.report_inside("unknown-name", site, call.offset, len(call.name), message, hint)
        return
    if call.name in context.steps or call.name in SCOPE_NAMES:
        message, hint = f"`{call.name}` is data and cannot be called", "remove the parentheses"
    else:
        known = [*FUNCTIONS, *(STATUS_HELPERS if site.visibility.helpers else ())]
        message = f'unknown function "{call.name}"'
        filter = _AS_FILTERS.get(call.name, call.name)
        if call.name in OTHER_FUNCTIONS:
            hint = OTHER_FUNCTIONS[call.name]
        elif filter in FILTERS:
            hint = f"`{filter}` is a filter: write `value | {filter}`"
        else:
            hint = did_you_mean(call.name, known, "functions: " + ", ".join(sorted(known)))
    context.report_inside("unknown-function", site, call.offset, len(call.name), message, hint)


def _arguments(name: str) -> tuple[int, int]:
    """The smallest and the largest number of positional arguments of a function."""
    parameters = list(inspect.signature(FUNCTIONS[name][0].function).parameters.values())[1:]
    positional = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    required = [each for each in positional if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]
    return len(required), len(positional)


def _check_helper(context: AnalysisContext, site: TemplateSite, call: Call) -> None:
    if not site.visibility.helpers:
        message = f"`{call.name}()` is not available in {site.visibility.title}"
        hint = (
            "step status is known only on the server: use it in arcs, admission rules, `loop.in` and a step's `input`"
        )
        context.report_inside("name-not-visible", site, call.offset, len(call.name), message, hint)
        return
    many = call.name in ("all_done", "any_done")
    if len(call.args) != 1 and not (many and call.args):
        message = f"`{call.name}()` takes {'the names of steps' if many else 'the name of one step'}"
        context.report_inside(
            "template-syntax", site, call.offset, len(call.name), message, STATUS_FUNCTIONS[call.name]
        )
    for argument in call.args:
        for name in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(name, str) and name not in context.steps:
                message = f'`{call.name}()` names the unknown step "{name}"'
                context.report_inside(
                    "unknown-step", site, call.offset, len(call.name), message, did_you_mean(name, context.steps)
                )


def _check_code(context: AnalysisContext, node: Scalar) -> None:
    names = _SCOPES_IN_CODE | context.workload_keys | context.ctx_keys | set(context.steps)
    for found in _IN_CODE.finditer(node.value):
        if found.group(1) in names:
            message = "code is not a template: this text is not evaluated"
            hint = f'pass the value under `input` (`x: "{{{{ {found.group(1)}... }}}}"`) and read `x` in the code'
            length = len(found.group())
            context.reader.findings.add_inside("template-in-code", node, found.start(), length, message, hint)
            return


def _check_foreign(context: AnalysisContext, node: Scalar) -> None:
    """Report a template of another tool: it is text, or its `$` is."""
    for found in _FOREIGN.finditer(node.value):
        if found.group(1) is None:
            message, hint = "the `$` before this template is text", "remove the `$`: a template is `{{ ... }}`"
        elif found.group(1) in _SCOPES_IN_CODE or found.group(1) in context.steps:
            inside = found.group().lstrip("$#")[1:-1].strip()
            message, hint = "this is not a template: it remains as it is", f"write `{{{{ {inside} }}}}`"
        else:
            continue
        context.reader.findings.add_inside("foreign-template", node, found.start(), len(found.group()), message, hint)
        return
