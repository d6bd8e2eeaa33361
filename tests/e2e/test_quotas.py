"""Quotas from text to result: rates over executions, waits without a slot, pauses, cancellation, restarts."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from noetl.core.model.quotas.token_bucket import Demand, QuotaCall, QuotaReply
from noetl.embedded import open_local
from noetl.server.orchestrator.submissions import Submission
from tests.e2e.conftest import playbook
from tests.waiting import until

STAMP = "{kind: noop, name: t, input: {at: '{{ now() }}'}}"


def stamps(data) -> list[float]:
    return [datetime.fromisoformat(each["at"]).timestamp() for each in data]


@pytest.fixture
def calls(stage, monkeypatch) -> list[tuple[QuotaCall, QuotaReply]]:
    """What runs asked of the quotas, and the replies: unlike the time of a start, the turns do not depend on the load
    of the machine."""
    found: list[tuple[QuotaCall, QuotaReply]] = []
    quotas = stage.orchestrator.work.quotas
    ask = quotas.call

    async def recorded(call: QuotaCall) -> QuotaReply:
        reply = await ask(call)
        found.append((call, reply))
        return reply

    monkeypatch.setattr(quotas, "call", recorded)
    return found


def turns(calls, key: str) -> list[float]:
    """The instants that new demands of a key were given, in order."""
    asked = (call for call in calls if call[0].demand.key == key)
    return sorted(reply.at for call, reply in asked if call.turn is None and call.pause_s is None)


def follows_rate(instants: Sequence[float], rate: float, burst: int = 1) -> bool:
    """Whether no interval has more starts than the rate and the burst allow."""
    return all(
        instants[last] - instants[first] >= (last - first + 1 - burst) / rate - 0.001
        for first, last in itertools.combinations(range(len(instants)), 2)
    )


def are_after(starts: Sequence[float], instants: Sequence[float]) -> bool:
    """Whether there is a turn for each start, not after it (`now()` has milliseconds)."""
    return all(start >= instant - 0.01 for start, instant in zip(sorted(starts), instants, strict=True))


def loop_of(count: int, quotas: str, *, key: str, more: str = "") -> str:
    return f"""
    workflow:
      - step: call
        loop: {{in: "{{{{ range({count}) | list }}}}", iterator: n, spec: {{mode: parallel}}}}
        spec: {{policy: {{quotas: {{{quotas}, key: {key}}}{more}}}}}
        tool: {STAMP}
    """


def test_iterations_start_at_the_rate_of_the_step(play, calls):
    ran = play(loop_of(12, "rate: 10/s, burst: 3", key="spaced"))
    assert ran.status == "success"
    starts = stamps(ran.data)
    assert len(starts) == 12
    given = turns(calls, "spaced")
    assert follows_rate(given, 10, 3) and are_after(starts, given)
    waits = ran.of("wait.started")
    assert all((wait.quota.key, wait.quota.rate, wait.quota.burst) == ("spaced", 10.0, 3) for wait in waits)


def test_executions_that_share_a_key_share_its_bucket(stage, calls):
    text = playbook(loop_of(4, "rate: 5/s", key="shared"))

    async def scenario():
        ids = [await stage.orchestrator.submit(Submission(text=text)) for _ in range(3)]
        data = []
        for each in ids:
            await stage.orchestrator.wait(each, 30)
            data += stamps((await stage.engine.result(each)).output["data"])
        return data

    starts = stage.do(scenario())
    assert len(starts) == 12
    given = turns(calls, "shared")
    assert follows_rate(given, 5) and are_after(starts, given)


def test_the_key_is_a_template_over_the_iteration(play, calls):
    ran = play("""
    workflow:
      - step: call
        loop: {in: "{{ range(8) | list }}", iterator: n, spec: {mode: parallel}}
        spec: {policy: {quotas: {rate: 2/s, key: "tenant-{{ iter.n % 4 }}"}}}
        tool: {kind: noop, name: t, input: {at: "{{ now() }}"}}
    """)
    for number in range(4):
        given = turns(calls, f"tenant-{number}")
        assert follows_rate(given, 2) and are_after(stamps(ran.data)[number::4], given)
    assert {wait.quota.key for wait in ran.of("wait.started")} <= {f"tenant-{number}" for number in range(4)}


def test_every_attempt_of_a_task_takes_a_token(play, calls):
    ran = play("""
    workflow:
      - step: start
        tool:
          - name: before
            kind: python
            code: result = "ready"
          - name: call
            kind: python
            input: {attempt: "{{ _attempt }}", seen: "{{ before.data }}"}
            code: |
              if attempt < 3:
                  raise ValueError("no")
              result = {"seen": seen, "attempt": attempt}
            spec:
              policy:
                quotas: {rate: 20/m, burst: 2, key: attempts}
                rules:
                  - when: "{{ output.status == 'error' }}"
                    then: {do: retry, attempts: 5}
    """)
    assert ran.status == "success", ran.error
    assert ran.data["seen"] == "ready"
    assert ran.data["attempt"] == 3
    (wait,) = ran.of("wait.started")  # two at once, the third after three seconds
    assert (wait.task, wait.attempt, wait.position.turn.of_step) == ("call", 3, False)
    assert [each.attempt for each in ran.of("task.started", task="call")] == [1, 2, 3]
    starts = [each.at for each in ran.events if each.body.NAME == "task.started" and each.body.task == "call"]
    given = turns(calls, "attempts")
    assert follows_rate(given, 20 / 60, 2) and given[2] == wait.until and starts[2] >= wait.until - 0.01


def test_a_run_that_waits_holds_no_slot_and_says_until_when(tmp_path):
    async def scenario():
        async with await open_local(store=str(tmp_path / "noetl.db"), home=tmp_path, slots=1) as engine:
            orchestrator = engine.orchestrator
            slow = playbook(loop_of(3, "rate: 1/h", key="hourly"))
            waiting = await orchestrator.submit(Submission(text=slow))

            async def waits():
                state = await orchestrator.state(waiting)
                return len(state.waits) == 2 and state.status == "waiting"

            await until(waits)
            other = await engine.run(playbook("workflow: [{step: start, tool: {kind: noop}}]"), timeout=20)
            assert other.status == "success"
            (finding,) = [each for each in await orchestrator.why(waiting) if each.subject == "quota"]
            assert '2 iterations of "call" wait for the quota "hourly" (1/h) the first until 20' in finding.text
            assert "in 60 min" in finding.text
            assert "the last until" in finding.text
            row = await orchestrator.summary(waiting)
            assert await orchestrator.waits_for(row) == [finding.text]
            assert (row.status, row.inbox) == ("waiting", 0)
            assert row.due == pytest.approx(time.time() + 3600, abs=60)
            await orchestrator.cancel(waiting, "enough")
            assert (await orchestrator.wait(waiting, 20)).status == "cancelled"

    asyncio.run(scenario())


def test_turns_of_a_cancelled_execution_are_free_for_others(stage):
    text = playbook(loop_of(50, "rate: 1/m", key="given_back"))

    async def scenario():
        orchestrator = stage.orchestrator
        first = await orchestrator.submit(Submission(text=text))

        async def waits():
            return len((await orchestrator.state(first)).waits) == 49

        await until(waits)
        await orchestrator.cancel(first, "enough")
        await orchestrator.wait(first, 20)

        async def is_next():
            reply = await orchestrator.work.quotas.call(QuotaCall(Demand("given_back", 1 / 60)))
            return reply.seconds

        return await is_next()

    assert stage.do(scenario()) <= 120


def test_a_wait_survives_a_stop_of_everything(tmp_path):
    store = str(tmp_path / "noetl.db")
    text = playbook(loop_of(6, "rate: 1/s", key="restarted"))

    async def begin():
        async with await open_local(store=store, home=tmp_path) as engine:
            orchestrator = engine.orchestrator
            found = await orchestrator.submit(Submission(text=text))

            async def waits():
                return (await orchestrator.state(found)).waits

            await until(waits)
            return found

    execution_id = asyncio.run(begin())

    async def finish():
        async with await open_local(store=store, home=tmp_path, resume=True) as engine:
            await engine.orchestrator.wait(execution_id, 60)
            events = await engine.orchestrator.events(execution_id)
            return await engine.result(execution_id), events

    result, events = asyncio.run(finish())
    assert result.status == "success"
    began = stamps(result.output["data"])
    waits = {each.body.path[0]: each.body.until for each in events if each.body.NAME == "wait.started"}
    assert waits and follows_rate(sorted(waits.values()), 1)
    assert all(began[number] >= until - 0.01 for number, until in waits.items())
    starts = [(each.body.path, each.body.attempt) for each in events if each.body.NAME == "task.started"]
    assert len(set(starts)) == len(starts)


class Overloaded(BaseHTTPRequestHandler):
    """Responds 429 with `Retry-After: 2` to the first call, then 200."""

    seen: list[float] = []

    def do_GET(self):
        self.seen.append(time.time())
        first = len(self.seen) == 1
        self.send_response(429 if first else 200)
        if first:
            self.send_header("Retry-After", "2")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def overloaded():
    Overloaded.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Overloaded) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("retried", ["retry: {attempts: 3}", "spec: {policy: {rules: [RULE]}}"])
def test_a_429_with_retry_after_lowers_the_rate_of_all(play, calls, overloaded, retried):
    key = f"overloaded{len(retried)}"
    rule = "{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3}}"
    ran = play(
        f"""
    workflow:
      - step: call
        loop: {{in: "{{{{ range(6) | list }}}}", iterator: n, spec: {{mode: parallel}}}}
        spec: {{policy: {{quotas: {{rate: 10/s, key: "{key}"}}}}}}
        tool: {{name: t, kind: http, url: "{overloaded}", {retried.replace("RULE", rule)}}}
    """
    )
    assert ran.status == "success", ran.error
    seen = sorted(Overloaded.seen)
    assert len(seen) == 7
    # What had its turn before the response continues; the retry waits for two seconds.
    assert seen[-1] - seen[0] >= 1.99
    (pause,) = [reply for call, reply in calls if call.pause_s == 2.0 and call.demand.key == key]
    assert pause.at == pause.now + 2


def test_quotas_of_blocks_children_hooks_and_compensations(play):
    ran = play("""
    workflow:
      - step: start
        spec:
          policy:
            compensation:
              tool:
                - {name: undo, kind: noop, set: {ctx.undone: true}, spec: {policy: {quotas: {rate: 40/m, key: everywhere}}}}
        tool:
          - {name: block, kind: workbook, block: b, spec: {policy: {quotas: {rate: 40/m, key: everywhere}}}}
          - name: main
            kind: noop
            spec:
              policy:
                quotas: {rate: 40/m, key: everywhere}
                finally: [{name: last, kind: noop, set: {ctx.last: true}}]
        next: {arcs: [{step: fails}]}
      - {step: fails, tool: {kind: python, code: "raise ValueError('no')"}}
    workbook:
      b: {tool: [{name: inner, kind: noop, set: {ctx.inner: true}, spec: {policy: {quotas: {rate: 40/m, key: everywhere}}}}]}
    """)
    assert ran.status == "failed"
    assert ran.ctx == {"inner": True, "last": True, "undone": True}
    tasks = [wait.task for wait in ran.of("wait.started")]
    assert tasks == ["block/inner", "main", "undo"]
    assert ran.result.compensation == {"done": 1, "failed": 0}


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ("{rate: '{{ workload.rate }}', key: k}", "'fast' is not a rate"),
        ("{rate: 1/s, burst: '{{ workload.burst }}', key: k}", "0 is not a burst"),
        ("{rate: 1/s, key: '{{ workload.empty }}'}", "the key of a quota has 1 to 300 characters"),
        ("{rate: 1/s, key: '{{ workload.list }}'}", "the key of a quota must be a text"),
    ],
)
def test_a_value_that_is_no_quota_is_an_error_of_the_task(play, quotas, words):
    ran = play(f"""
    workload: {{rate: fast, burst: 0, empty: "", list: [1]}}
    workflow:
      - step: start
        tool: {{name: t, kind: noop, spec: {{policy: {{quotas: {quotas}}}}}}}
    """)
    assert ran.status == "failed"
    assert ran.error["kind"] == "schema"
    assert words in ran.error["message"]


def test_a_playbook_without_quotas_asks_for_no_token(play, stage):
    asked = []
    call = stage.orchestrator.work.quotas.call
    stage.orchestrator.work.quotas.call = lambda each: asked.append(each) or call(each)
    try:
        assert play("workflow: [{step: start, tool: {kind: noop}}]").status == "success"
    finally:
        del stage.orchestrator.work.quotas.call
    assert asked == []
