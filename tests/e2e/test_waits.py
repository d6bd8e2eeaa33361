"""`kind: wait` from text to result: in loops, blocks, constructs, children, with rules, retries and jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from noetl.errors import Conflict, RequestRefused
from noetl.server.orchestrator.submissions import Submission
from noetl.server.read_models.summaries import run_result
from tests.e2e.conftest import Ran, Stage, check_oracles, playbook
from tests.waiting import until


class Asker:
    """One execution that waits, and the signals to it."""

    def __init__(self, stage: Stage, execution_id: str) -> None:
        self.orchestrator = stage.orchestrator
        self.id = execution_id

    async def waits(self, count: int = 1) -> list[Any]:
        """The open waits, once there are this many and nothing else runs."""

        async def found() -> list[Any] | None:
            state = await self.orchestrator.state(self.id)
            return list(state.waits.values()) if len(state.waits) == count and state.status == "waiting" else None

        return await until(found)

    async def signal(self, name: str, **data: Any) -> None:
        await self.orchestrator.signal(self.id, name, data, by="ann")


def drive(
    stage: Stage, text: str, script: Callable[[Asker], Awaitable[None]], payload: dict[str, Any] | None = None
) -> Ran:
    """Run a playbook; `script` answers its waits."""

    async def scenario() -> Ran:
        orchestrator = stage.orchestrator
        execution_id = await orchestrator.submit(Submission(text=playbook(text), payload=payload or {}))
        await script(Asker(stage, execution_id))
        await orchestrator.wait(execution_id, 30)
        return await stage.ran(run_result(execution_id, await orchestrator.progress(execution_id)))

    ran: Ran = stage.do(scenario())
    check_oracles(ran)
    return ran


APPROVAL = """
workload: {amount: 100, payee: Bob}
workflow:
  - step: start
    tool:
      - name: approval
        kind: wait
        signal: approve
        title: "Pay {{ workload.amount }} to {{ workload.payee }}?"
        form: {type: object, required: [approved], properties: {approved: {type: boolean}, comment: {type: string}}}
        timeout: 48h
    next:
      arcs:
        - {step: pay, when: "{{ output.data.approved }}"}
        - {step: refuse}
  - step: pay
    tool: {kind: noop}
    set: {ctx.by: "{{ start.meta.signal.by }}"}
  - {step: refuse, tool: {kind: noop}}
"""


@pytest.mark.parametrize(("approved", "step"), [(True, "pay"), (False, "refuse")])
def test_an_approval_routes_by_its_answer(stage: Stage, approved: bool, step: str):
    async def script(asker: Asker) -> None:
        (wait,) = await asker.waits()
        assert wait.request.title == "Pay 100 to Bob?"
        assert (await asker.orchestrator.summary(asker.id)).status == "waiting"
        with pytest.raises(RequestRefused, match='"approved" is a required property'):
            await asker.signal("approve", comment="?")
        await asker.waits()
        await asker.signal("approve", approved=approved)

    ran = drive(stage, APPROVAL, script)
    assert ran.order("step.scheduled") == ["start", step]
    assert ran.ctx == ({"by": "ann"} if approved else {})


def test_rules_see_the_timeout_and_can_escalate(stage: Stage):
    text = """
    workflow:
      - step: start
        tool:
          - name: ask
            kind: wait
            signal: "ask-{{ _attempt }}"
            timeout: 50ms
            spec:
              policy:
                rules:
                  - when: "{{ output.error.kind == 'timeout' and _attempt < 2 }}"
                    then: {do: retry, attempts: 2}
                  - when: "{{ output.status == 'error' }}"
                    then: {do: continue, set: {ctx.escalated: "{{ output.error.kind }}"}}
          - {name: boss, kind: wait, title: "Escalated: {{ ctx.escalated }}"}
    """

    async def script(asker: Asker) -> None:
        async def escalated() -> bool:
            waits = (await asker.orchestrator.state(asker.id)).waits.values()
            return any(wait.request.title == "Escalated: timeout" for wait in waits)

        await until(escalated)
        await asker.signal("boss", decision="go")

    ran = drive(stage, text, script)
    assert ran.status == "success" and ran.data == {"decision": "go"}
    assert [body.signal for body in ran.of("wait.started")] == ["ask-1", "ask-2", "boss"]


def test_without_rules_a_timeout_fails_the_step_and_can_be_routed(stage: Stage):
    text = """
    workflow:
      - step: start
        tool: {kind: wait, signal: x, timeout: 20ms}
        next: {arcs: [{step: late, when: "{{ output.error.kind == 'timeout' }}"}, {step: fine}]}
      - {step: late, tool: {kind: noop}}
      - {step: fine, tool: {kind: noop}}
    """

    async def script(asker: Asker) -> None: ...

    ran = drive(stage, text, script)
    assert ran.order("step.scheduled") == ["start", "late"]


def test_time_only_and_time_or_signal(stage: Stage):
    text = """
    workflow:
      - step: start
        tool:
          - {name: pause, kind: wait, for: 30ms}
          - {name: past, kind: wait, until: "2020-01-01"}
          - {name: either, kind: wait, signal: go, for: 1h}
          - {name: show, kind: python, input: {a: "{{ pause.data }}", b: "{{ either.data.n }}"}, code: "result = [a, b]"}
    """

    async def script(asker: Asker) -> None:
        await asker.signal("go", n=7)  # before its wait

    ran = drive(stage, text, script)
    assert ran.data == [None, 7]


def test_a_parallel_loop_waits_for_named_signals_in_any_order(stage: Stage):
    text = """
    workload: {orders: [a, b, c]}
    workflow:
      - step: start
        loop: {in: "{{ workload.orders }}", iterator: order, spec: {mode: parallel}}
        tool:
          - {name: ask, kind: wait, signal: "ship-{{ iter.order }}", title: "Ship {{ iter.order }}?"}
          - {name: done, kind: noop, set: {iter.x: "{{ ask.data.ok }}"}}
          - {name: out, kind: python, input: {o: "{{ iter.order }}", x: "{{ iter.x }}"}, code: "result = [o, x]"}
    """

    async def script(asker: Asker) -> None:
        await asker.waits(3)
        for name in ("c", "a", "b"):
            await asker.signal(f"ship-{name}", ok=name == "b")

    ran = drive(stage, text, script)
    assert ran.data == [["a", False], ["b", True], ["c", False]]


def test_a_sequential_loop_a_block_and_constructs_wait(stage: Stage):
    text = """
    workbook:
      ask:
        tool:
          - {name: inner, kind: wait, signal: "{{ input.name }}"}
    workflow:
      - step: start
        loop: {in: [1, 2], iterator: n}
        tool: {kind: workbook, block: ask, input: {name: "block-{{ iter.n }}"}}
        next: {arcs: [{step: again}]}
      - step: again
        tool:
          - {name: init, kind: noop, set: {step.n: 0}}
          - name: more
            while:
              when: "{{ step.n < 2 }}"
              tool:
                - {name: each, kind: wait, set: {step.n: "{{ step.n + 1 }}"}}
          - {name: end, kind: python, input: {n: "{{ step.n }}", last: "{{ each.data.v }}"}, code: "result = [n, last]"}
    """

    async def script(asker: Asker) -> None:
        for number in (1, 2):
            (wait,) = await asker.waits()
            assert wait.request.signal == f"block-{number}" and wait.request.task == "start_task/inner"
            await asker.signal(f"block-{number}", v=number)
        for number in (1, 2):
            await asker.waits()
            await asker.signal("each", v=number)

    ran = drive(stage, text, script)
    assert ran.data == [2, 2]
    assert [(body.task, body.visit) for body in ran.of("wait.started")][2:] == [("each", 1), ("each", 2)]


def test_a_child_that_waits_is_answered_by_its_own_id(stage: Stage):
    stage.register(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: asks, path: waits/child}\n"
        "workflow:\n  - {step: start, tool: {kind: wait, signal: go}}\n"
    )
    text = "workflow:\n  - {step: start, tool: {kind: playbook, path: waits/child}}\n"

    async def script(asker: Asker) -> None:
        async def child() -> str | None:
            entries, _ = await asker.orchestrator.inbox()
            return next((entry.execution_id for entry in entries if entry.path == "waits/child"), None)

        found = await until(child)

        async def waits() -> bool:
            return (await asker.orchestrator.summary(asker.id)).status == "waiting"

        await until(waits)
        await asker.orchestrator.signal(found, "go", {"n": 1})

    ran = drive(stage, text, script)
    assert ran.data == {"n": 1}


CALLER = """
workflow:
  - step: start
    loop: {in: [a, b], iterator: name, spec: {mode: parallel}}
    tool: {kind: playbook, path: tests/middle, payload: {name: "{{ iter.name }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""
MIDDLE = """
workload: {name: ""}
workflow:
  - step: start
    tool: {kind: playbook, path: tests/asks, payload: {name: "{{ workload.name }}"}}
"""
ASKS = """
workload: {name: ""}
workflow:
  - step: start
    tool:
      - {name: question, kind: wait, signal: "{{ workload.name }}"}
      - {name: again, kind: wait, signal: again}
"""


def test_a_caller_waits_while_all_its_children_only_wait(stage: Stage):
    async def script(asker: Asker) -> None:
        orchestrator = asker.orchestrator

        async def status(id: str) -> str:
            summary = await orchestrator.store.summary(id)
            assert summary is not None
            assert summary.status == (await orchestrator.state(id)).status
            return summary.status

        async def children(id: str) -> list[str]:
            return [str(each.child) for each in (await orchestrator.state(id)).children.values()]

        async def is_waiting() -> bool:
            return await status(asker.id) == "waiting"

        await until(is_waiting)
        assert any("which waits itself" in each.text for each in await orchestrator.why(asker.id))
        middles = await children(asker.id)
        assert [await status(each) for each in middles] == ["waiting", "waiting"]
        asking = [(await children(each))[0] for each in middles]
        for id, name in zip(asking, ("a", "b"), strict=True):
            names = [wait.request.signal for wait in (await orchestrator.state(id)).waits.values()]
            await orchestrator.signal(id, names[0], {}, by="ann")
            assert name

        async def both_again() -> bool:
            states = [await orchestrator.state(each) for each in asking]
            return all("again" in [w.request.signal for w in state.waits.values()] for state in states)

        await until(both_again)
        await until(is_waiting)
        for id in asking:
            await orchestrator.signal(id, "again", {}, by="ann")

    for name, text in (("tests/middle", MIDDLE), ("tests/asks", ASKS)):
        head = f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: child, path: {name}}}"
        stage.register(head + text)
    ran = drive(stage, CALLER, script)
    assert ran.result.status == "success"
    waits = [each.body.waiting for each in ran.events if each.body.NAME == "child.waiting"]
    assert waits.count(True) >= 2


@pytest.mark.parametrize("policy", ["timeout_s: 0.05", "deadline_s: 0.05"])
def test_time_limits_of_the_step_apply_while_it_waits(stage: Stage, policy: str):
    text = f"""
    workflow:
      - step: start
        spec: {{policy: {{lifecycle: {{{policy}}}}}}}
        tool: {{kind: wait}}
    """

    async def script(asker: Asker) -> None: ...

    ran = drive(stage, text, script)
    assert (ran.status, ran.error["kind"]) == ("failed", "timeout")


def test_cancel_and_pause_while_it_waits(stage: Stage):
    async def script(asker: Asker) -> None:
        await asker.waits()
        await asker.orchestrator.pause(asker.id)
        await asker.signal("start_task", n=1)
        await asyncio.sleep(0)
        assert (await asker.orchestrator.summary(asker.id)).status == "paused"
        await asker.orchestrator.resume(asker.id)

    text = "workflow:\n  - {step: start, tool: {kind: wait}}\n"
    assert drive(stage, text, script).data == {"n": 1}

    async def cancel(asker: Asker) -> None:
        await asker.waits()
        await asker.orchestrator.cancel(asker.id, "enough")
        with pytest.raises(Conflict):
            await asker.signal("start_task", n=1)

    assert drive(stage, text, cancel).status == "cancelled"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("signal: '{{ workload.none }}'", "signal"),
        ("for: '{{ workload.word }}'", "`for` must be a duration"),
        ("until: '{{ workload.word }}'", "is not an instant"),
        ("form: {type: '{{ workload.word }}'}", "`form` is not a JSON Schema"),
        ("roles: '{{ [workload.word] }}'", "`roles` must be a list of viewer"),
    ],
)
def test_a_template_that_gives_a_wrong_value_is_an_error_outcome(play, fields: str, words: str):
    text = f"""
    workload: {{word: soon, none: null}}
    workflow:
      - step: start
        tool: {{kind: wait, {fields}, timeout: 1s}}
    """
    ran = play(text)
    if fields.startswith("signal"):  # null: the name of the task
        assert ran.error["kind"] == "timeout" and ran.of("wait.started")[0].signal == "start_task"
    else:
        assert ran.error["kind"] == "schema" and words in ran.error["message"]
        assert ".yaml:" in ran.error["message"] or "test:" in ran.error["message"]


def test_secrets_do_not_reach_the_wait_event(stage: Stage):
    text = """
    keychain: [{name: pin, kind: static, value: "secret-4711"}]
    workflow:
      - step: start
        tool: {kind: wait, title: "PIN {{ keychain.pin }}?", signal: go}
    """

    async def script(asker: Asker) -> None:
        await asker.waits()
        await asker.signal("go")

    ran = drive(stage, text, script)
    (started,) = ran.of("wait.started")
    assert "secret-4711" not in started.title and started.title.startswith("PIN ")
