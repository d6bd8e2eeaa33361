"""Endless cycles: of arcs between steps, of jumps between tasks, of blocks that call each other.

A cycle is reported when nothing in it can end it. A guard that can be false, a gate that can stay closed, and a
rule that fails or breaks can each end it. A possible error of a tool does not count, unless it is handled: by an
arc for the failure, or by a rule that fails on a condition other than an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.control_flow import END, Pipeline
from noetl.core.language.flow.guard_conditions import always_false, always_true
from noetl.core.language.flow.reachability import components
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.node_reader import is_template
from noetl.core.language.source.nodes import Scalar
from noetl.core.language.syntax.tree import ArcSyntax, BodySyntax, ConstructSyntax, RuleSyntax, StepSyntax, TaskSyntax

# Fields of `output` that describe the error itself.
_ERROR_FIELDS = frozenset({"status", "error", "http", "pg", "py"})


def check(context: AnalysisContext) -> None:
    """Check every pipeline, the graph of steps, and the calls between blocks."""
    for body in context.document.bodies():
        if body.items:
            _check_pipeline(context, body)
    if not context.has_dynamic_steps:  # steps created at run time may leave the cycle
        _check_graph(context)
        _check_self_call(context)
    _check_calls(context)


# --- tasks --------------------------------------------------------------------------------------


def _check_pipeline(context: AnalysisContext, body: BodySyntax) -> None:
    if not any(_has_jump(task) for task in body.tasks()) and not any(body.constructs()):
        return
    pipeline = Pipeline(body)
    handled = _routes_failures(body)
    incoming: dict[int, list[int]] = {}
    ends = [END]
    for number, node in enumerate(pipeline.nodes):
        for edge in node.edges:
            incoming.setdefault(edge.target, []).append(number)
        if node.task is not None and _can_fail(node.task, node.fails, handled):
            ends.append(number)
    leaving = _reachable_from(ends, incoming)
    reachable = _reachable_from(
        [pipeline.first], {n: [edge.target for edge in p.edges] for n, p in enumerate(pipeline.nodes)}
    )
    trapped = [node for number, node in enumerate(pipeline.nodes) if number in reachable and number not in leaving]
    if not trapped:
        return
    for node in trapped:
        for edge in node.edges:
            if edge.rule is not None and edge.rule.do == "jump":
                to = edge.rule.fields["to"]
                assert node.task is not None
                message = f'endless cycle: after this jump from "{node.task.name}" nothing ends the pipeline'
                hint = "give the jump a `when` that eventually fails, or add a rule with `do: break`"
                context.reader.add("endless-cycle", to, message, hint)
                return
    for node in trapped:
        if node.construct is not None:
            message = f"endless `{node.construct.keyword}`: its guard never changes, and no rule breaks out of it"
            hint = "write a guard that changes, or add a rule with `do: break`"
            context.reader.add("endless-cycle", node.construct.node, message, hint)
            return


def _has_jump(task: TaskSyntax) -> bool:
    return any(rule.do == "jump" for rule in task.rules)


def _routes_failures(body: BodySyntax) -> bool:
    """Whether a failure is handled: by a guarded arc, or by the caller of a block."""
    if not isinstance(body, StepSyntax):
        return True
    return any(arc.when is not None for arc in body.arcs)


def _can_fail(task: TaskSyntax, fails: list[RuleSyntax], handled: bool) -> bool:
    """Whether a failure of the task is an intended end of the cycle."""
    if any("raise" in text or "exit" in text for text in _code(task)):
        return True
    rules = task.rules
    if handled and (fails or not rules):
        return True
    conditional = False
    for rule in rules:
        conditional = conditional or _reads_more_than_errors(rule)
        if rule in fails and conditional:
            return True
    return False


def _failing(task: TaskSyntax) -> list[RuleSyntax]:
    return [rule for rule in task.rules if rule.do in ("fail", "retry")]


def _code(task: TaskSyntax) -> Iterable[str]:
    for parameter in task.parameters.values():
        if isinstance(parameter.value, Scalar) and isinstance(parameter.value.value, str):
            yield parameter.value.value


def _reads_more_than_errors(rule: RuleSyntax) -> bool:
    if not isinstance(rule.when, Scalar) or not isinstance(rule.when.value, str):
        return False
    for read in analyze_template(rule.when.value).reads:
        if not (read.path[0] in ("output", "outcome") and len(read.path) > 1 and read.path[1] in _ERROR_FIELDS):
            return True
    return False


def _reachable_from(first: list[int], successors: dict[int, list[int]]) -> set[int]:
    known = set(first)
    pending = list(first)
    while pending:
        for following in successors.get(pending.pop(), ()):
            if following not in known:
                known.add(following)
                pending.append(following)
    return known


# --- steps --------------------------------------------------------------------------------------


def _check_graph(context: AnalysisContext) -> None:
    steps = context.document.steps
    numbers = {step.name: number for number, step in enumerate(steps)}
    if context.entry not in numbers:
        return
    arcs = [[numbers[arc.target] for arc in step.arcs if arc.target in numbers] for step in steps]
    for cycle in components(arcs, [numbers[context.entry]]):
        if len(cycle) == 1 and cycle[0] not in arcs[cycle[0]]:
            continue
        inside = {steps[number].name for number in cycle}
        if not any(_can_leave(steps[number], inside) for number in cycle):
            _report_cycle(context, [steps[number] for number in sorted(cycle)], inside)


def _can_leave(step: StepSyntax, inside: set[str]) -> bool:
    """Whether a token in this step can leave the cycle, or stop in it."""
    if step.admit is not None and (step.admit.once or (step.admit.rules and not always_true(step.admit.rules[0].when))):
        return True
    if step.deadline_s is not None or step.router is None:
        return True
    if any(_can_fail(task, _failing(task), handled=False) for task in step.tasks()):
        return True
    continues = False
    for arc in step.router.arcs:
        if always_false(arc.when):
            continue
        out = arc.target not in inside
        if out and (arc.when is not None or (not continues and step.router.mode == "exclusive")):
            return True
        if not out and always_true(arc.when):
            if arc.when is not None and step.router.mode == "exclusive":
                return False
            continues = True
    return not continues


def _report_cycle(context: AnalysisContext, steps: list[StepSyntax], inside: set[str]) -> None:
    arc = _back_arc(steps, inside)
    if arc is None:
        return
    names = " → ".join([*(step.name for step in steps[:6]), *(["…"] if len(steps) > 6 else []), steps[0].name])
    message = f"endless cycle ({names}): no arc leaves it, and no guard or gate can stop it"
    hint = "give this arc a `when` that eventually fails, or add an arc that leaves the cycle before it"
    context.reader.add("endless-cycle", arc.target_node or arc.node, message, hint)


def _back_arc(steps: list[StepSyntax], inside: set[str]) -> ArcSyntax | None:
    """The arc that closes the cycle: from a later step to the same or an earlier one."""
    earlier: set[str] = set()
    for step in steps:
        earlier.add(step.name)
        for arc in step.arcs:
            if arc.target in earlier and arc.target in inside:
                return arc
    return None


# --- a playbook that calls itself ---


def _check_self_call(context: AnalysisContext) -> None:
    """Report a call of this playbook that every execution reaches."""
    own = {context.document.catalog_path, context.document.name}
    file = context.reader.findings.file.replace("\\", "/").rpartition("/")[2]
    steps = {step.name: step for step in context.document.steps}
    name: str | None = context.entry
    seen: set[str] = set()
    while name in steps and name not in seen:
        step = steps[name]
        seen.add(name)
        if step.admit_rules:
            return
        for item in step.items:
            if step.loop is not None or isinstance(item, ConstructSyntax) or _may_skip(item):
                continue  # its tasks are conditional: a collection may be empty
            path = item.parameters.get("path") if item.kind == "playbook" else None
            called = path.value.text.strip() if path is not None and isinstance(path.value, Scalar) else ""
            if called and (called in own or (file and called.removeprefix("./") == file)):
                message = f'endless recursion: every execution calls this playbook ("{called}") again'
                hint = "put the call under `choose`, or guard the arc that leads to it"
                context.reader.add("endless-cycle", path.value if path is not None else item.node, message, hint)
                return
            if any(rule.do in ("break", "jump", "fail") for rule in item.rules):
                break
        name = _always_next(step)


def _always_next(step: StepSyntax) -> str | None:
    """The step that always follows, if there is one."""
    open_arcs = [arc for arc in step.arcs if not always_false(arc.when)]
    first = open_arcs[0] if open_arcs else None
    return first.target if first is not None and always_true(first.when) else None


# --- blocks -------------------------------------------------------------------------------------


def _check_calls(context: AnalysisContext) -> None:
    """Report blocks that call each other unconditionally as their first task."""
    calls: dict[str, tuple[str, TaskSyntax]] = {}
    for block in context.document.blocks:
        first = block.items[0] if block.items else None
        if block.loop is None and isinstance(first, TaskSyntax) and first.kind == "workbook" and not _may_skip(first):
            called = first.parameters.get("block")
            if called is not None and isinstance(called.value, Scalar) and not is_template(called.value):
                calls[block.name] = (called.value.text, first)
    seen: dict[str, str] = {}  # block -> the block from which it was first visited
    for start in calls:
        name = start
        while name in calls and name not in seen:
            seen[name] = start
            name = calls[name][0]
        if seen.get(name) == start and name in calls:
            chain = [name]
            while calls[chain[-1]][0] != name:
                chain.append(calls[chain[-1]][0])
            message = f"endless recursion: the block calls itself unconditionally ({' → '.join([*chain, name])})"
            hint = "put the call under `choose`, or give it a rule with `do: skip`"
            context.reader.add("endless-cycle", calls[name][1].node, message, hint)


def _may_skip(task: TaskSyntax) -> bool:
    return any(rule.do == "skip" for rule in task.rules)
