"""Dynamic synthesis: a step returns workflow nodes as data (`spec.policy.synthesize`).

It happens on the server, in one append with the step's end: the data is evaluated and validated by
the validator for playbooks (a data request to the shell), and either rejected, which fails the
step, or recorded as `workflow.synthesized`. The recorded steps are in their lowered form, so
replay rebuilds the same net without validator or template. A token enters them at their entry;
the step's own arcs fire as usual.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from noetl.core.engine.effects import Synthesized, ValidateSynthesis
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.evaluation.names import at_arcs
from noetl.core.engine.state import State, StepRun
from noetl.core.model.events import Event, StepFailed, WorkflowSynthesized
from noetl.core.model.outcome import ErrorInfo, Outcome, error_info
from noetl.core.model.playbook import WORKBOOK, Step, Synthesis, Task

MAX_SYNTHESIZED = 10_000  # steps of one execution


def synthesize(state: State, env: EvaluationContext, step_run: StepRun) -> list[Event]:
    """Evaluate and validate the synthesized nodes of a step; [] if it does not synthesize."""
    compiled = state.net.compiled(step_run.step.name)
    plan = step_run.step.synthesize
    if compiled.synthesize is None or plan is None or step_run.synthesized:
        return []
    try:
        nodes = env.evaluate(compiled.synthesize, at_arcs(state, env, step_run), plan.path)
    except Failure as failure:
        return _refused(step_run, failure.error)
    if not nodes:
        return [WorkflowSynthesized(step=step_run.step.name, step_run_id=step_run.id)]
    answer = env.validate(
        ValidateSynthesis(
            key=f"{step_run.id}#synthesis",
            step=step_run.step.name,
            nodes=nodes,
            max_steps=plan.max_steps,
            kinds=plan.kinds,
            known=tuple(state.net.steps),
        )
    )
    problems = _problems(state, plan, answer)
    if problems:
        where = state.playbook.where(plan.path)
        listed = "; ".join(problems[:10])
        error = error_info("schema", f"{where}: the synthesized workflow is invalid: {listed}")
        return _refused(step_run, error)
    steps = tuple(_bounded(step, plan, step_run.step.name, answer.entry) for step in answer.steps)
    return [WorkflowSynthesized(step=step_run.step.name, step_run_id=step_run.id, steps=steps, entry=answer.entry)]


def _bounded(step: Step, plan: Synthesis, creator: str, entry: str | None) -> Step:
    """A synthesized step: what it synthesizes in turn uses no other kinds, and the entry knows its creator."""
    if step.synthesize is not None and plan.kinds:
        own = step.synthesize.kinds
        kinds = tuple(kind for kind in plan.kinds if kind in own) if own else plan.kinds
        step = replace(step, synthesize=replace(step.synthesize, kinds=kinds or plan.kinds))
    return replace(step, synthesized_by=creator) if step.name == entry else step


def _all_tasks(state: State, step: Step) -> Iterator[Task]:
    """The tasks of a step, of its compensation and of the blocks that they call."""
    pending = [*step.tasks, *(step.compensation.step.tasks if step.compensation is not None else ())]
    called: set[str] = set()
    while pending:
        task = pending.pop()
        yield task
        block = str(task.input.get("block", "")) if task.kind == WORKBOOK else ""
        if block in state.playbook.blocks and block not in called:
            called.add(block)
            pending += state.playbook.blocks[block].tasks


def _refused(step_run: StepRun, error: ErrorInfo) -> list[Event]:
    name, run_id = step_run.step.name, step_run.id
    return [
        WorkflowSynthesized(step=name, step_run_id=run_id, error=error),
        StepFailed(
            step=name,
            step_run_id=run_id,
            output=Outcome("error", error=error),
            results=step_run.results,
            by_server=True,
        ),
    ]


def _problems(state: State, plan: Synthesis, answer: Synthesized) -> list[str]:
    """The problems of the synthesized steps, including those that the validator found."""
    problems = list(answer.problems)
    steps: tuple[Step, ...] = tuple(answer.steps)
    known = state.net.steps
    if len(steps) > plan.max_steps:
        problems.append(f"it has {len(steps)} steps, the limit is {plan.max_steps}")
    if len(state.synthesized) + len(steps) > MAX_SYNTHESIZED:
        problems.append(f"an execution has at most {MAX_SYNTHESIZED:,} synthesized steps")
    names = {step.name for step in steps}
    if len(names) < len(steps):
        problems.append("it has two steps with the same name")
    problems += [f'step "{name}" already exists' for name in sorted(names & set(known))]
    if answer.entry is not None and answer.entry not in names:
        problems.append(f'its entry step "{answer.entry}" does not exist')
    for step in steps:
        problems += [
            f'an arc of "{step.name}" leads to "{arc.target}", which does not exist'
            for arc in step.router.arcs
            if arc.target not in names and arc.target not in known
        ]
        if plan.kinds:
            problems += [
                f'step "{step.name}" uses the kind "{task.kind}"; allowed are {", ".join(plan.kinds)}'
                for task in _all_tasks(state, step)
                if task.kind not in plan.kinds
            ]
    return problems
