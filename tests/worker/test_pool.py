from __future__ import annotations

import asyncio
import time

import pytest
from work_link import Bench, until

from noetl.core.model.events import StepDone, StepFailed, TaskDone
from noetl.core.model.outcome import error_info, ok
from noetl.errors import RequestRefused, StoreUnavailable
from noetl.worker import reports as reporter
from noetl.worker.runner import Runner

ONE = "workflow: [{step: s, tool: [{name: a, kind: act}]}]"
NOOP = "workflow: [{step: s, tool: [{name: a, kind: noop}]}]"
TWO = "workflow: [{step: s, tool: [{name: a, kind: act}, {name: b, kind: act}]}]"


class Gate:
    """A tool that waits to be let through, and remembers who was there and who was stopped."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside: list[str] = []
        self.stopped: list[str] = []
        self.most = 0

    async def __call__(self, call):
        self.inside.append(call.task_run_id)
        self.most = max(self.most, len(self.inside))
        try:
            await self.open.wait()
            return ok(call.task)
        except asyncio.CancelledError:
            self.stopped.append(call.task_run_id)
            raise
        finally:
            self.inside.remove(call.task_run_id)

    async def until(self, number: int) -> None:
        await until(lambda: len(self.inside) >= number)


def runs(bench, number, **fields):
    return [bench.order(run=f"1:s:{n}", **fields) for n in range(1, number + 1)]


def ids(orders):
    return [order.run_id for order in orders]


def test_no_more_runs_are_claimed_than_there_are_slots():
    async def check():
        gate = Gate()
        bench = Bench(ONE, slots=3, act=gate)
        async with bench.running():
            orders = runs(bench, 8)
            bench.link.offer(*orders)
            await gate.until(3)
            await asyncio.sleep(0.02)
            assert len(gate.inside) == 3 and bench.pool.busy <= 4
            gate.open.set()
            await bench.link.until_ended(*ids(orders))
            assert gate.most == 3

    asyncio.run(check())


def test_reports_of_many_runs_share_one_call():
    async def check():
        bench = Bench(NOOP, slots=50)
        async with bench.running():
            orders = runs(bench, 50)
            bench.link.offer(*orders)
            await bench.link.until_ended(*ids(orders))
            assert sum(bench.link.calls) == 50 and len(bench.link.calls) <= 3
            assert len(bench.link.fetched) == 1  # and the playbook came once

    asyncio.run(check())


def test_reports_of_consecutive_turns_are_batched_up_to_half_of_the_runs():
    async def check():
        began = []

        async def one_after_the_other(call):
            began.append(call)
            for _ in range(len(began)):
                await asyncio.sleep(0)
            return ok(None)

        bench = Bench(ONE, slots=40, act=one_after_the_other)
        async with bench.running():
            await bench.runner.cache.programs("d")
            orders = runs(bench, 40)
            bench.link.offer(*orders)
            await bench.link.until_ended(*ids(orders))
            assert sum(bench.link.calls) == 40
            assert 2 <= len(bench.link.calls) <= 12, "not one by one, and not all at the end"

    asyncio.run(check())


def test_a_single_finished_run_is_reported_at_once():
    async def check():
        gate = Gate()

        async def act(call):
            return ok(None) if call.task_run_id.startswith("1:s:1:") else await gate(call)

        bench = Bench(ONE, slots=10, act=act)
        async with bench.running():
            orders = runs(bench, 10)
            bench.link.offer(*orders)
            await bench.link.until_ended("1:s:1")
            assert len(gate.inside) == 9
            gate.open.set()
            await bench.link.until_ended(*ids(orders))

    asyncio.run(check())


def test_a_run_that_never_waits_costs_no_task_of_its_own():
    async def check():
        bench = Bench(NOOP, slots=50)
        made = []
        loop = asyncio.get_running_loop()
        async with bench.running():
            await bench.runner.cache.programs("d")
            loop.set_task_factory(lambda loop, coro: made.append(coro.__qualname__) or asyncio.Task(coro, loop=loop))
            orders = runs(bench, 50)
            bench.link.offer(*orders)
            await bench.link.until_ended(*ids(orders))
            loop.set_task_factory(None)
        assert sum(name == "Pool._work" for name in made) <= 4

    asyncio.run(check())


def test_an_acknowledgement_can_carry_the_next_order():
    async def check():
        bench = Bench(NOOP)
        async with bench.running():
            bench.link.follow_ups = [bench.order(run="1:s:2"), bench.order(run="1:s:3")]
            bench.link.offer(bench.order(run="1:s:1"))
            await bench.link.until_ended("1:s:1", "1:s:2", "1:s:3")
            assert bench.link.free_seen == [1, 1, 1]

    asyncio.run(check())


def test_lingering_events_are_not_sent_with_reports_of_other_runs(monkeypatch):
    monkeypatch.setattr(reporter, "LINGER", 30.0)

    async def check():
        gates = {"1:s:1": asyncio.Event(), "1:s:2": asyncio.Event()}

        async def act(call):
            await gates[call.task_run_id[:5]].wait()
            return ok()

        bench = Bench(ONE, slots=2, act=act)
        async with bench.running():
            bench.link.offer(*runs(bench, 2))
            gates["1:s:1"].set()
            await bench.link.until_ended("1:s:1")
            gates["1:s:2"].set()
            await bench.link.until_ended("1:s:2")
        assert bench.link.story == ["report task.started,task.done,step.done"] * 2

    asyncio.run(check())


def test_lingering_events_are_sent_after_a_delay(monkeypatch):
    monkeypatch.setattr(reporter, "LINGER", 0.01)

    async def check():
        gate = Gate()
        bench = Bench(ONE, act=gate)
        async with bench.running():
            bench.link.offer(bench.order())
            await until(lambda: bench.link.story == ["report task.started"])
            gate.open.set()
            await bench.link.until_ended("1:s:1")

    asyncio.run(check())


def test_a_run_fails_if_the_server_cannot_read_its_events():
    """A newer worker has events that the server does not know: the run must not end as lost after several leases."""

    async def check():
        bench = Bench(NOOP, slots=3)
        real = bench.link.report

        async def picky(worker, reports, *, free=0):
            if any(
                not isinstance(event, StepFailed) for each in reports if each.run_id == "1:s:2" for event in each.events
            ):
                raise RequestRefused("the event step.news of version 1 is unknown")
            return await real(worker, reports, free=free)

        bench.link.report = picky
        async with bench.running():
            bench.link.offer(*runs(bench, 3))
            await bench.link.until_ended("1:s:1", "1:s:2", "1:s:3")
            await until(lambda: not bench.pool.busy)
        (failed,) = [event for each in bench.link.reports if each.run_id == "1:s:2" for event in each.events]
        assert "step.news of version 1 is unknown; servers must be as new" in failed.output.error.message

    asyncio.run(check())


def test_a_failed_report_is_repeated_unchanged():
    async def check():
        bench = Bench(ONE, act=Gate())
        bench.tools["act"].open.set()
        bench.link.fail_reports = [StoreUnavailable("away"), OSError("broken pipe")]
        async with bench.running():
            bench.link.offer(bench.order())
            await bench.link.until_ended("1:s:1")
            await until(lambda: not bench.pool.busy)
        assert len(bench.link.reports) == 3 and len({report.number for report in bench.link.reports}) == 1
        assert bench.link.reports[0] == bench.link.reports[1] == bench.link.reports[2]

    asyncio.run(check())


def test_a_rejected_report_does_not_block_the_others():
    async def check():
        bench = Bench(NOOP, slots=3)
        real = bench.link.report

        async def picky(worker, reports, *, free=0):
            if any(report.run_id == "1:s:2" for report in reports):
                raise RequestRefused("this one I cannot read")
            return await real(worker, reports, free=free)

        bench.link.report = picky
        async with bench.running():
            bench.link.offer(*runs(bench, 3))
            await bench.link.until_ended("1:s:1", "1:s:3")
            await until(lambda: not bench.pool.busy)

    asyncio.run(check())


@pytest.mark.parametrize("how", ["revoked", "extend"])
def test_a_lost_lease_stops_the_tool_and_its_reports(how):
    async def check():
        gate = Gate()
        bench = Bench(ONE, slots=2, act=gate)
        bench.pool._heartbeat_seconds = 0.5 if how == "extend" else 3600
        async with bench.running():
            bench.link.offer(*runs(bench, 2))
            await gate.until(2)
            if how == "revoked":
                bench.link.revoke("1:s:1")
            else:
                bench.link.lost.add("1:s:1")
            await until(lambda: gate.stopped)
            assert gate.stopped == ["1:s:1:a:1:1"]
            gate.open.set()
            await bench.link.until_ended("1:s:2")
            assert not bench.link.ended("1:s:1")
            # and the slot is free for others
            bench.link.offer(bench.order(run="1:s:3"))
            await bench.link.until_ended("1:s:3")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("effect", "expired", "inside", "runs_again"),
    [
        ("at_most_once", False, "main", True),
        ("at_most_once", True, "main", False),  # another worker may have run it
        ("at_most_once", False, "final", False),  # it had begun here
        ("at_least_once", True, "main", True),
        ("at_least_once", False, "final", True),
    ],
)
def test_a_finally_with_an_effect_at_most_once_is_not_run_twice(effect, expired, inside, runs_again):
    text = f"""
workflow:
  - step: s
    tool:
      - name: main
        kind: act
        spec: {{policy: {{finally: [{{name: final, kind: act, spec: {{effect: {effect}}}}}]}}}}
"""

    async def check():
        gate, began = Gate(), []

        async def act(call):
            began.append(call.task)
            if call.task == inside and began.count(inside) == 1:
                return await gate(call)
            return ok(None)

        bench = Bench(text, act=act)
        bench.link.term = 10.0
        async with bench.running():
            bench.link.offer(bench.order())
            await gate.until(1)
            before = list(began)
            if expired:
                bench.clock.time += 11
            bench.link.cancelled.add("1:s:1")
            bench.link.revoke("1:s:1")
            await until(lambda: gate.stopped and not bench.pool.busy)
            for _ in range(20):
                await asyncio.sleep(0)
        assert began[len(before) :] == (["final"] if runs_again else [])

    asyncio.run(check())


def test_a_forged_message_that_a_run_is_revoked_stops_nothing():
    async def check():
        gate = Gate()
        bench = Bench(ONE, slots=2, act=gate)
        bench.pool._heartbeat_seconds = 3600
        async with bench.running():
            bench.link.offer(*runs(bench, 2))
            await gate.until(2)
            extended = len(bench.link.extended)
            for run_id in ("1:s:1", "1:s:1", "1:s:2", "unknown", ""):
                bench.link.hint(run_id)
            await until(lambda: len(bench.link.extended) > extended)
            assert gate.stopped == []
            gate.open.set()
            await bench.link.until_ended("1:s:1", "1:s:2")

    asyncio.run(check())


def test_a_rejected_report_ends_the_run_before_its_next_tool():
    async def check():
        seen = []

        async def act(call):
            seen.append(call.task)
            return ok(1)

        bench = Bench(TWO, act=act)
        bench.link.refuse.add("1:s:1")
        async with bench.running():
            bench.link.offer(bench.order())
            await until(lambda: bench.link.reports and not bench.pool.busy)
            assert seen == ["a"] and not bench.link.ended("1:s:1")

    asyncio.run(check())


def test_a_run_that_the_server_ended_is_stopped():
    async def check():
        seen = []

        async def act(call):
            seen.append(call.task)
            return ok(1)

        bench = Bench(TWO, act=act)
        bench.link.verdict_error = error_info("ctx.conflict", "two writers")
        async with bench.running():
            bench.link.offer(bench.order())
            await until(lambda: bench.link.reports and not bench.pool.busy)
            assert seen == ["a"]

    asyncio.run(check())


def test_the_pool_sends_heartbeats_while_a_tool_hangs():
    async def check():
        gate = Gate()
        bench = Bench(ONE, act=gate)
        bench.pool._heartbeat_seconds = 0.5
        async with bench.running():
            bench.link.offer(bench.order())
            await gate.until(1)
            await until(lambda: len(bench.link.extended) >= 3)
            assert bench.link.extended[-1] == [("1:s:1", 1)]

    asyncio.run(check())


AT_MOST_ONCE = ONE.replace("kind: act", "kind: act, spec: {effect: at_most_once}")


def test_an_at_most_once_task_extends_its_lease_after_its_start_is_stored_and_before_it_runs():
    async def check():
        gate = Gate()
        bench = Bench(AT_MOST_ONCE, act=gate)
        async with bench.running():
            await until(lambda: bench.link.extended)
            before = len(bench.link.extended)
            bench.link.offer(bench.order())
            await gate.until(1)
            assert [event.NAME for report in bench.link.reports for event in report.events] == ["task.started"]
            assert len(bench.link.extended) == before + 1

    asyncio.run(check())


def test_an_at_most_once_task_whose_lease_is_lost_does_not_run():
    async def check():
        gate = Gate()
        bench = Bench(AT_MOST_ONCE, act=gate)
        bench.link.lost.add("1:s:1")
        async with bench.running():
            await until(lambda: bench.link.extended)  # the heartbeat of the start
            bench.link.offer(bench.order())
            await until(lambda: bench.link.reports and not bench.pool.busy)
            assert not gate.most

    asyncio.run(check())


def test_an_at_most_once_task_does_not_run_when_the_confirmation_took_longer_than_a_lease():
    async def check():
        gate = Gate()
        bench = Bench(AT_MOST_ONCE, act=gate)
        bench.link.term = 0.2
        extend = bench.link.extend

        async def slow(worker, runs):
            reply = await extend(worker, runs)
            if runs:
                bench.clock.time += 0.3
            return reply

        bench.link.extend = slow
        async with bench.running():
            await until(lambda: bench.link.extended)
            bench.link.offer(bench.order())
            await until(lambda: bench.link.reports and not bench.pool.busy)
            assert not gate.most

    asyncio.run(check())


def test_a_run_with_a_lost_order_is_given_back_and_a_late_order_is_ignored():
    async def check():
        bench = Bench(NOOP)
        bench.pool._heartbeat_seconds = 3599  # no heartbeat follows: the worker has been notified of the loss
        bench.link.leased = [("1:s:1", 1)]
        async with bench.running():
            bench.pool.reconcile_soon()
            await until(lambda: bench.link.given_back)
            assert set(bench.link.given_back) == {("1:s:1", 1)}
            assert bench.link.extended[0] == []
            bench.link.leased = []
            bench.link.offer(bench.order(run="1:s:1", epoch=1), bench.order(run="1:s:2"))
            await bench.link.until_ended("1:s:2")
            assert not bench.link.ended("1:s:1")
            # another lease of the same run is another matter
            bench.link.offer(bench.order(run="1:s:1", epoch=2))
            await bench.link.until_ended("1:s:1")

    asyncio.run(check())


def test_a_run_that_was_stopped_here_is_not_given_back():
    async def check():
        gate = Gate()
        bench = Bench(ONE, act=gate)
        bench.pool._heartbeat_seconds = 0.5
        bench.link.leased = [("1:s:1", 1)]
        async with bench.running():
            bench.link.offer(bench.order())
            await gate.until(1)
            bench.link.lost.add("1:s:1")
            await until(lambda: gate.stopped)
            said = len(bench.link.extended)
            await until(lambda: len(bench.link.extended) > said + 2)
            assert bench.link.given_back == []

    asyncio.run(check())


def test_a_waiting_retry_frees_its_slot():
    text = """
workflow:
  - step: s
    tool:
      - name: a
        kind: act
        spec: {policy: {rules: [{when: "{{ _attempt < 2 }}", then: {do: retry, delay: 100}}]}}
  - {step: t, tool: [{name: b, kind: noop}]}
"""

    async def check():
        bench = Bench(text, slots=1)
        asleep, wake = asyncio.Event(), asyncio.Event()

        async def act(call):
            return ok(1)

        async def sleep(seconds):
            if seconds >= 3600:
                await asyncio.Event().wait()
            if seconds == 100:
                asleep.set()
                await wake.wait()
            await asyncio.sleep(0)

        bench.tools["act"] = act
        bench.clock.sleep = sleep
        async with bench.running():
            bench.link.offer(bench.order())
            await asyncio.wait_for(asleep.wait(), 5)
            bench.link.offer(bench.order("t"))
            await bench.link.until_ended("1:t:1")
            assert not bench.link.ended("1:s:1")
            wake.set()
            await bench.link.until_ended("1:s:1")

    asyncio.run(check())


def test_stop_finishes_active_runs_and_gives_back_queued_ones():
    async def check():
        gate = Gate()
        bench = Bench(ONE, slots=1, act=gate)
        await bench.pool.start()
        first, second = runs(bench, 2)
        bench.link.offer(first)
        await gate.until(1)
        bench.pool._accept([second])  # an order beyond its slots, as an answer may bring
        leaving = asyncio.create_task(bench.pool.stop(grace=5))
        await asyncio.sleep(0.01)
        gate.open.set()
        await leaving
        assert bench.link.ended("1:s:1") and bench.link.given_back == [("1:s:2", 1)] and not bench.link.begun
        assert bench.pool.busy == 0

    asyncio.run(check())


def test_runs_above_the_grace_period_are_cancelled_and_given_back():
    async def check():
        gate = Gate()
        bench = Bench(ONE, slots=1, act=gate)
        await bench.pool.start()
        bench.link.offer(bench.order())
        await gate.until(1)
        await bench.pool.stop(grace=0.05)
        assert gate.stopped == ["1:s:1:a:1:1"] and bench.link.given_back == [("1:s:1", 1)]
        assert bench.link.begun == ["1:s:1"]
        assert not bench.link.ended("1:s:1")

    asyncio.run(check())


def test_calls_to_an_unreachable_server_are_repeated():
    async def check():
        bench = Bench(NOOP)
        real, failures = bench.link.claim, [OSError("refused"), StoreUnavailable("away")]

        async def claim(claim, *, wait):
            if failures:
                raise failures.pop()
            return await real(claim, wait=wait)

        bench.link.claim = claim
        async with bench.running():
            bench.link.offer(bench.order())
            await bench.link.until_ended("1:s:1")

    asyncio.run(check())


def test_fetching_a_playbook_is_retried():
    async def check():
        bench = Bench(NOOP)
        real, failures = bench.link.playbook, [StoreUnavailable("away")]

        async def playbook(digest):
            if failures:
                raise failures.pop()
            return await real(digest)

        bench.link.playbook = playbook
        events = await bench.once()
        assert isinstance(events[-1], StepDone)

    asyncio.run(check())


def test_the_same_run_under_a_new_epoch_is_another_lease():
    async def check():
        bench = Bench("workflow: [{step: s, tool: [{name: k, kind: playbook, path: c}, {name: b, kind: noop}]}]")
        async with bench.running():
            bench.link.offer(bench.order())
            await bench.link.until_ended("1:s:1")
            position = bench.link.events()[-1].position
            bench.link.offer(bench.order(epoch=2, position=position, resume=ok("child")))
            await until(lambda: any(isinstance(event, StepDone) for event in bench.link.events()))
        assert [event.task for event in bench.link.events() if isinstance(event, TaskDone)] == ["k", "b"]

    asyncio.run(check())


@pytest.mark.serial
def test_a_noop_iteration_is_cheap():
    async def check():
        bench = Bench(NOOP, slots=500)
        async with bench.running():
            for _ in range(2):  # the first round warms up
                started = time.process_time()
                orders = [bench.order(run=f"1:s:{n}") for n in range(500)]
                bench.pool._accept(orders)
                await bench.link.until_ended(*ids(orders))
                spent = time.process_time() - started
                bench.link.reports.clear()
        # The bound in bench/ is tighter; this one only notices a change of kind on any machine.
        assert spent / 500 < 0.001

    asyncio.run(check())


def test_an_internal_error_fails_the_run(caplog):
    async def check():
        bench = Bench(NOOP)

        async def broken(self, order, reports, set_waiting):
            raise ZeroDivisionError("ours")

        bench.runner.run = broken.__get__(bench.runner, Runner)
        return await bench.once()

    events = asyncio.run(check())
    assert isinstance(events[-1], StepFailed) and "ZeroDivisionError" in events[-1].output.error.message
    assert "internal error while executing run" in caplog.text


def test_the_heartbeat_interval_follows_the_lease_duration():
    bench = Bench()  # whose own heart beats once an hour
    bench.link.term = 20.0

    async def scenario() -> None:
        async with bench.running():
            await until(lambda: len(bench.link.extended) >= 4)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert set(bench.clock.slept) == {5.0}
