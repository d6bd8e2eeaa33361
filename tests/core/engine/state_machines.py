"""State machines of the engine as Mermaid diagrams, derived from the appliers that fold a log.

No transition is written by hand: `transitions` applies a log event by event and compares the states before and
after each one. `python tests/core/engine/state_machines.py` draws the transitions of all golden logs and of
`scripted`, executions with rare transitions, into `docs/explanation/state-machines.md`. The text of the page is
written by hand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from engine_harness import Harness, failure
from golden import LOGS, events_of, playbook_of, read

from noetl.core.engine.commands import ExpireLease, PauseExecution
from noetl.core.engine.evolve import evolve
from noetl.core.engine.state import State, StepRun
from noetl.core.model.events import ChildRequested, Recorded
from noetl.core.model.playbook import Playbook

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "state-machines.md"
OUTSIDE = "[*]"  # before the start and after the end, as in Mermaid

Transition = tuple[str, str, str]  # state before, event, state after


def execution_states(state: State) -> dict[str, str]:
    """The state of the execution, by its id."""
    if state.request is None or state.processed:
        return {}
    ending = state.ending is not None and state.finished is None
    return {state.execution_id: "ending" if ending else state.status}


def step_run_states(state: State) -> dict[str, str]:
    """The state of every step run, by its id."""
    return {step_run.id: _step_run_state(step_run) for step_run in state.runs.values()}


def _step_run_state(step_run: StepRun) -> str:
    if step_run.phase == "ended":
        return "failed" if step_run.failed else "done"
    if step_run.phase == "looped":
        return "loop_done"
    return "scheduled" if step_run.started_at is None else "running"


def run_states(state: State) -> dict[str, str]:
    """The lease status of every open run, by its id."""
    return {run.id: run.status for run in state.open.values()}


MACHINES: dict[str, Callable[[State], dict[str, str]]] = {
    "Execution": execution_states,
    "Step run": step_run_states,
    "Lease of a run": run_states,
}


def transitions(playbook: Playbook, log: Iterable[Recorded]) -> Iterator[tuple[str, Transition]]:
    """Every change of state while a log is applied: the machine and its transition."""
    state: State | None = None
    for recorded in log:
        if state is None:
            state = State(playbook, recorded.execution_id)
        before = {machine: states(state) for machine, states in MACHINES.items()}
        evolve(state, recorded.body, recorded.at)
        for machine, states in MACHINES.items():
            old, new = before[machine], states(state)
            for key in {**old, **new}:
                source, target = old.get(key, OUTSIDE), new.get(key, OUTSIDE)
                if source != target:
                    yield machine, (source, recorded.body.NAME, target)


# ── executions with rare transitions ────────────────────────────────────────────────────


def scripted() -> Iterator[Harness]:
    """Executions with the transitions that no golden log has."""
    limit = "executor: {spec: {policy: {limits: {max_step_runs: 1}}}}\n"
    yield Harness(limit + "workflow:\n  - {step: a, next: {arcs: [{step: b}]}}\n  - {step: b}\n").run()
    yield _failure_during_pause()
    yield _late_report(LOOP)
    yield _late_child_request()
    yield Harness(LOOP + """    next: {arcs: [{step: after, when: "{{ no.such.name }}"}]}\n  - {step: after}\n""").run()


LOOP = """
workflow:
  - step: start
    loop: {in: [1, 2], iterator: n}
    tool: {kind: noop}
"""
CALL = "workflow:\n  - {step: start, tool: {name: call, kind: playbook, path: kids/one}}\n"


def _failure_during_pause() -> Harness:
    harness = Harness("workflow:\n  - {step: start, tool: {kind: noop}}\n").start()
    order = harness.claim()
    harness.send(PauseExecution())
    harness.complete(order, failure())
    return harness


def _late_report(text: str) -> Harness:
    """The worker reports after its lease has expired, before another worker has claimed the run."""
    harness = Harness(text).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    harness.complete(order)
    return harness


def _late_child_request() -> Harness:
    harness = Harness(CALL).start()
    order = harness.claim()
    harness.send(ExpireLease(order.run_id, order.epoch))
    harness.report(order, ChildRequested("start", order.run_id, "call", "kids/one"))
    return harness


# ── the page ────────────────────────────────────────────────────────────────────────────


@lru_cache(1)
def observed() -> dict[str, set[Transition]]:
    """The transitions of all golden logs and scripted executions, by machine."""
    found: dict[str, set[Transition]] = {machine: set() for machine in MACHINES}
    for stored in (each for path in sorted(LOGS.glob("*.jsonl.gz")) for each in read(path)):
        for machine, transition in transitions(playbook_of(stored), events_of(stored)):
            found[machine].add(transition)
    for harness in scripted():
        for machine, transition in transitions(harness.playbook, harness.log):
            found[machine].add(transition)
    return found


def states_of(machine: str) -> list[str]:
    """The states of a machine."""
    named = {state for source, _, target in observed()[machine] for state in (source, target)}
    return sorted(named - {OUTSIDE})


def diagram(machine: str) -> str:
    """A machine as a Mermaid state diagram: one arrow per pair of states, labelled with its events."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, event, target in sorted(observed()[machine]):
        arrows[source, target].append(event)
    lines = [f"    {source} --> {target} : {', '.join(events)}" for (source, target), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def with_diagrams(page: str) -> str:
    """The page with the first diagram of each machine's section replaced by the current one."""
    for machine in MACHINES:
        pattern = rf"(^## {machine}$.*?)^```mermaid$.*?^```$"
        page, count = re.subn(
            pattern, lambda found, machine=machine: found[1] + diagram(machine), page, count=1, flags=re.M | re.S
        )
        assert count == 1, f"the page has no diagram in a section {machine}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_diagrams(PAGE.read_text()))
