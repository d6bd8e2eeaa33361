"""Task rules: guards of `skip`, unreachable rules, errors that no rule handles."""

from __future__ import annotations

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import alternatives, always_true, conjuncts, expression
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.syntax.tree import RuleSyntax, TaskSyntax

_FIELDS_OF = {
    "attempts": ("retry",),
    "backoff": ("retry",),
    "delay": ("retry", "jump"),
    "max_delay": ("retry",),
    "to": ("jump",),
    "message": ("fail",),
    "kind": ("fail",),
}


def check(context: AnalysisContext) -> None:
    """Check every rule of every task, and admission rules."""
    for body in context.document.bodies():
        for task in body.tasks():
            if task.policy is not None:
                _check_task(context, task, task.policy.rules)
        for construct in body.constructs():
            _check_order(context, [(branch.when, branch.node) for branch in construct.branches], "branch")
    for step in context.document.steps:
        _check_order(context, [(rule.when, rule.node) for rule in step.admit_rules], "rule")


def _check_task(context: AnalysisContext, task: TaskSyntax, rules: list[RuleSyntax]) -> None:
    for rule in rules:
        _check_fields(context, rule)
        if rule.do == "skip":
            _check_skip(context, rule)
    _check_order(context, [(rule.when, rule.node) for rule in rules if rule.do != "skip"], "rule")
    if task.policy is not None and not task.policy.has_rules:
        return
    complete = (task.policy is None or task.policy.complete) and not any(_is_broken(rule.when) for rule in rules)
    if complete and task.kind != "noop" and not _fails_unmatched(context, task) and not _handles_errors(rules):
        where = task.policy.node if task.policy is not None else task.node
        message = "an error that no rule matches is silently ignored"
        hint = (
            "write `on_unmatched: fail` beside `rules`, or add a rule with `when: \"{{ output.status == 'error' }}\"`"
        )
        context.reader.add("missing-else", where, message, hint)


def _is_broken(when: Node | None) -> bool:
    """Whether a guard cannot be read; that is reported elsewhere."""
    return isinstance(when, Scalar) and isinstance(when.value, str) and analyze_template(when.value).problem is not None


def _fails_unmatched(context: AnalysisContext, task: TaskSyntax) -> bool:
    """Whether an error that no rule matches fails the task."""
    if task.policy is not None and task.policy.on_unmatched is not None:
        return task.policy.on_unmatched == "fail"
    executor = context.document.executor
    default = executor.defaults.get("on_unmatched") if executor is not None and executor.defaults is not None else None
    return isinstance(default, Scalar) and default.value == "fail"


def _check_fields(context: AnalysisContext, rule: RuleSyntax) -> None:
    for name, node in rule.fields.items():
        if name == "backoff" and isinstance(node, Scalar) and node.value == "fixed":
            context.reader.add(
                "old-spelling",
                node,
                "`backoff: fixed` is an old spelling of `none`",
                "write `backoff: none`, or remove it",
            )
        belongs = _FIELDS_OF[name]
        if rule.do is not None and rule.do not in belongs:
            message = f"`{name}` belongs to `do: {belongs[0]}`; `do: {rule.do}` ignores it"
            context.reader.add("unused-field", node, message, "remove it")


def _check_skip(context: AnalysisContext, rule: RuleSyntax) -> None:
    if rule.is_else:
        message = "`skip` is evaluated before the tool runs and requires a `when`"
        context.reader.add("skip-under-else", rule.node, message, "give the rule a `when`, or use `do: continue`")
        return
    if not isinstance(rule.when, Scalar) or not isinstance(rule.when.value, str):
        return
    for read in analyze_template(rule.when.value).reads:
        if read.path[0] in ("output", "outcome"):
            message = f"`skip` is evaluated before the tool runs: `{read.path[0]}` does not exist yet"
            hint = "use `iter`, `ctx`, `input` or `_prev` in the guard, or use `do: continue` after the task"
            context.reader.findings.add_inside(
                "skip-reads-output", rule.when, read.offset, len(read.path[0]), message, hint
            )
    if rule.sets:
        message = "a skipped task makes no assignments"
        context.reader.add("unused-field", rule.sets[0].key, message, "move the `set` to the previous task")


def _check_order(context: AnalysisContext, rules: list[tuple[Node | None, Node]], what: str) -> None:
    """Report rules after `else` (or after a guard that is always true)."""
    last: Node | None = None
    for when, node in rules:
        if last is not None:
            message = f"this {what} is never reached: the one on line {last.line} always matches"
            context.reader.add("unreachable-rule", node, message, f"move it before line {last.line}")
            return
        if always_true(when):
            last = node


def _handles_errors(rules: list[RuleSyntax]) -> bool:
    """Whether the rules handle every error: with `else`, or with guards that require nothing but the error."""
    if any(rule.is_else for rule in rules):
        return True
    required: set[str] = set()
    for rule in rules:
        if rule.do == "skip":
            continue
        if always_true(rule.when):
            return True
        for part in alternatives(expression(rule.when)):
            # A further condition narrows the guard; `x` in one rule and `not x` in another cover every error.
            narrowing = {_normalize(each) for each in conjuncts(part)} - _ANY_ERROR
            if not narrowing:
                return True
            if len(narrowing) == 1:
                required |= narrowing
    return any(f"not{each}" in required for each in required)


def _normalize(text: str) -> str:
    return text.replace('"', "'").replace("outcome.", "output.").replace(" ", "")


_ANY_ERROR = frozenset(
    {
        "output.status=='error'",
        "'error'==output.status",
        "output.status!='ok'",
        "output.status!='success'",
        "notoutput.status=='ok'",
        "output.error",
        "output.errorisdefined",
        "output.error!=none",
        "output.errorisnotnone",
    }
)
