"""The contract of `ports.WorkLink`, as tests: a link subclasses the suite and inherits them.

A line is judged by what both its ends see: orders that come, verdicts, what is lost or taken away, and the log that
the control plane behind it has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from noetl.core.model.events import IterationDone, Recorded, StepDone, TaskDone
from noetl.core.model.outcome import ok
from noetl.core.model.playbook import Playbook
from noetl.core.model.quotas.token_bucket import Demand, QuotaCall, Turn
from noetl.core.model.reference import Reference
from noetl.core.model.task_log import LogChunk, LogLine, LogSource
from noetl.core.model.work import Claim, HeartbeatReply, Report, RunOrder
from noetl.errors import NotFound, SecretUnavailable
from noetl.server.composition import Stores, build_orchestrator
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.work_link import WorkLink
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.tools.registry import specs

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: suite, path: suite}\nworkflow:\n"
ONE = HEAD + "  - {step: only, tool: {kind: noop}}\n"
TWO = (
    HEAD
    + "  - {step: first, tool: {kind: noop}, next: {arcs: [{step: second}]}}\n  - {step: second, tool: {kind: noop}}\n"
)
MANY = (
    HEAD
    + "  - step: each\n    loop: {in: '{{ range(12) | list }}', iterator: n, spec: {mode: parallel}}\n"
    + "    tool: {kind: noop}\n"
)
TOGETHER = MANY.replace("{mode: parallel}", "{mode: parallel, policy: {exec: local}}")
DOOR = HEAD + "  - {step: only, tool: {kind: noop, input: {a: [door, window]}}}\n"
FAR = HEAD + "  - {step: only, spec: {pool: far away}, tool: {kind: noop}}\n"

Link = Callable[[str], WorkLink]  # a worker's name -> its link
Scenario = Callable[[Orchestrator, Link], Awaitable[None]]


class WorkLinkSuite:
    """Claims, reports, heartbeats and returns behave the same over every link."""

    SOON = 5.0  # seconds within which a waiting worker is notified

    def joined(self, orchestrator: Orchestrator) -> AbstractAsyncContextManager[Link]:
        """Links to this control plane while the block runs."""
        raise LookupError("the suite's subclass says how to open its lines")

    def _run(self, scenario: Scenario, secrets: Mapping[str, Any] | None = None) -> None:
        async def run() -> None:
            queue = MemoryRunQueue()
            stores = Stores(MemoryEventStore(), MemoryPlaybookStore(), _NoResults(), queue)
            orchestrator = build_orchestrator(stores, specs, keychain=_Secrets(secrets or {}))
            orchestrator.start()
            try:
                async with self.joined(orchestrator) as link:
                    await scenario(orchestrator, link)
            finally:
                await orchestrator.close()

        asyncio.run(asyncio.wait_for(run(), 60))

    # ── claims ──────────────────────────────────────────────────────────────────────────

    def test_tokens_of_a_quota_have_different_instants(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            line, demand = link("w1"), Demand("api", 1.0)
            first, second = [await line.quota(QuotaCall(demand)) for _ in range(2)]
            assert (first.seconds, second.at - first.at) == (0.0, 1.0)
            assert (await line.quota(QuotaCall(demand, Turn(second.at)))).at == second.at
            await line.quota(QuotaCall(demand, pause_s=60))
            assert (await line.quota(QuotaCall(demand))).seconds > 50

        self._run(scenario)

    def test_a_waiting_worker_gets_a_run_immediately(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            waiting = asyncio.create_task(link("w").claim(Claim("w", 4), wait=20))
            await asyncio.sleep(0.05)
            execution_id = await orchestrator.submit(Submission(text=ONE))
            (order,) = await asyncio.wait_for(waiting, self.SOON)
            assert (order.context.execution_id, order.context.step, order.epoch) == (execution_id, "only", 1)

        self._run(scenario)

    def test_lines_of_tasks_reach_the_store_once(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=ONE))
            await claim_until(link("w"), Claim("w", 1), 1)
            chunk = LogChunk(execution_id, [LogSource("only", "t")], [LogLine(0, 5.0, "stdout", "ä\x1b[0m", 2)])
            for number in (1, 2, 2):
                await link("w").logs("w", number, [chunk])
            lines = (await orchestrator.task_logs.read(execution_id)).lines
            assert [(each.seq, each.line) for each in lines] == [(1, chunk.lines[0]), (2, chunk.lines[0])]

        self._run(scenario)

    def test_a_queued_run_is_leased_to_one_worker(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=MANY))
            names = ("a", "b", "c")
            taken = await asyncio.gather(*(claim_until(link(name), Claim(name, 4), 4) for name in names))
            runs = [order.run_id for orders in taken for order in orders]
            assert len(runs) == len(set(runs)) == 12
            assert await link("a").claim(Claim("a", 4), wait=0) == []

        self._run(scenario)

    def test_a_worker_gets_runs_of_its_pool(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=FAR))
            assert await link("near").claim(Claim("near", 4), wait=0.1) == []
            (order,) = await claim_until(link("far"), Claim("far", 4, "far away"), 1)
            assert order.context.step == "only"

        self._run(scenario)

    def test_a_worker_gets_at_most_its_free_slots(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=MANY))
            orders = await claim_until(link("w"), Claim("w", 5), 5)
            assert len(orders) == 5
            _, more = await link("w").report("w", [done(order) for order in orders[:2]], free=2)
            assert len(more) <= 2

        self._run(scenario)

    def test_a_local_loop_stays_on_one_worker(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=TOGETHER))
            (first,) = await claim_until(link("a"), Claim("a", 1), 1)
            assert await link("b").claim(Claim("b", 12), wait=0.2) == []
            rest = await claim_until(link("a"), Claim("a", 12), 3)
            assert {order.context.step_run_id for order in rest} == {first.context.step_run_id}

        self._run(scenario)

    def test_a_distributed_loop_is_shared(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=MANY))
            assert len(await claim_until(link("a"), Claim("a", 4), 4)) == 4
            assert len(await claim_until(link("b"), Claim("b", 8), 8)) == 8

        self._run(scenario)

    def test_an_empty_queue_yields_no_orders(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            assert await link("w").claim(Claim("w", 4), wait=0) == []
            assert await link("w").claim(Claim("w", 4), wait=0.1) == []

        self._run(scenario)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def test_a_report_is_acknowledged_after_the_append_with_the_next_run(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=TWO))
            (first,) = await claim_until(link("w"), Claim("w", 1), 1)
            verdicts, (second,) = await link("w").report("w", [done(first, {"n": 1})], free=1)
            assert [verdict.accepted for verdict in verdicts] == [True]
            assert second.context.step == "second"
            assert [body.step for body in await bodies(orchestrator, execution_id, StepDone)] == ["first"]
            await link("w").report("w", [done(second)])
            assert (await orchestrator.wait(execution_id, 5)).status == "success"

        self._run(scenario)

    def test_a_repeated_report_is_acknowledged_and_stored_once(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=ONE))
            (order,) = await claim_until(link("w"), Claim("w", 1), 1)
            answers = [await link("w").report("w", [done(order, {"n": 1})]) for _ in range(3)]
            assert [verdict.accepted for verdicts, _ in answers for verdict in verdicts] == [True] * 3
            assert len(await bodies(orchestrator, execution_id, StepDone)) == 1

        self._run(scenario)

    def test_reports_of_several_runs_are_acknowledged_in_order(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=MANY))
            orders = await claim_until(link("w"), Claim("w", 12), 12)
            stranger = msgspec.structs.replace(done(orders[0]), run_id="77:ghost:1")
            reports = [done(order) for order in orders]
            verdicts, _ = await link("w").report("w", [*reports[:5], stranger, *reports[5:]])
            assert [verdict.accepted for verdict in verdicts] == [True] * 5 + [False] + [True] * 7
            assert (await orchestrator.wait(execution_id, 5)).status == "success"

        self._run(scenario)

    def test_a_report_of_a_stale_lease_is_rejected(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=ONE))
            (old,) = await claim_until(link("a"), Claim("a", 1), 1)
            await link("a").give_back("a", [(old.run_id, old.epoch)])
            (new,) = await claim_until(link("b"), Claim("b", 1), 1)
            assert (new.run_id, new.epoch) == (old.run_id, old.epoch + 1)
            verdicts, _ = await link("a").report("a", [done(old, {"by": "a"})])
            assert [verdict.accepted for verdict in verdicts] == [False]
            await link("b").report("b", [done(new, {"by": "b"})])
            (ended,) = await bodies(orchestrator, execution_id, StepDone)
            assert ended.output.data == {"by": "b"}

        self._run(scenario)

    def test_large_reports_and_orders_are_delivered(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            large = "x" * 3_000_000
            execution_id = await orchestrator.submit(Submission(text=TWO, payload={"large": large}))
            (first,) = await claim_until(link("w"), Claim("w", 1), 1)
            assert first.context.workload["large"] == large
            verdicts, orders = await link("w").report("w", [done(first, large)], free=1)
            assert [verdict.accepted for verdict in verdicts] == [True]
            (second,) = orders or await claim_until(link("w"), Claim("w", 1), 1)
            assert (second.context.step, second.lost) == ("second", 0)
            (ended,) = await bodies(orchestrator, execution_id, StepDone)
            assert ended.output.data == large

        self._run(scenario)

    # ── leases ──────────────────────────────────────────────────────────────────────────

    def test_a_heartbeat_lists_lost_leases(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=ONE))
            (order,) = await claim_until(link("w"), Claim("w", 1), 1)
            held = (order.run_id, order.epoch)

            def stands(lost: list[str] | None = None, ended: list[str] | None = None) -> HeartbeatReply:
                return HeartbeatReply(lost or [], term=orchestrator.work.term, ended=ended or [])

            assert await link("w").extend("w", [held]) == stands()
            assert await link("w").extend("w", [held, ("77:ghost:1", 1)]) == stands(["77:ghost:1"])
            assert await link("other").extend("other", [held]) == stands([order.run_id])
            await link("w").report("w", [done(order)])
            assert await link("w").extend("w", [held]) == stands([order.run_id], [order.run_id])

        self._run(scenario)

    def test_a_heartbeat_lists_runs_whose_order_was_lost(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=MANY))
            orders = await claim_until(link("w"), Claim("w", 3), 3)
            runs = [(order.run_id, order.epoch) for order in orders]
            assert (await link("w").extend("w", runs[:1])).unknown == []  # the reply may be in transit
            for lease in orchestrator.work.leases.held_by("w"):
                lease.since -= 60
            standing = await link("w").extend("w", runs[:1])
            assert (standing.lost, sorted(standing.unknown)) == ([], sorted(runs[1:]))
            await link("w").give_back("w", runs[1:])
            assert (await link("w").extend("w", runs[:1])).unknown == []
            again = await claim_until(link("other"), Claim("other", 11), 11)
            assert {order.run_id for order in again} >= {run_id for run_id, _ in runs[1:]}
            assert {order.lost for order in again} == {0}

        self._run(scenario)

    def test_a_returned_run_is_available_at_once_and_costs_no_attempt(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=ONE))
            (order,) = await claim_until(link("a"), Claim("a", 1), 1)
            waiting = asyncio.create_task(link("b").claim(Claim("b", 1), wait=20))
            await link("a").give_back("a", [(order.run_id, order.epoch)])
            (again,) = await asyncio.wait_for(waiting, self.SOON)
            assert (again.run_id, again.lost) == (order.run_id, 0)

        self._run(scenario)

    def test_a_worker_is_notified_of_a_cancelled_run(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=ONE))
            line = link("w")
            (order,) = await claim_until(line, Claim("w", 1), 1)
            listening = asyncio.create_task(line.revoked("w", wait=20))
            await asyncio.sleep(0.05)
            await orchestrator.cancel(execution_id)
            assert await asyncio.wait_for(listening, self.SOON) == [order.run_id]
            assert await line.revoked("w", wait=0.05) == []
            verdicts, _ = await line.report("w", [done(order)])
            assert [verdict.accepted for verdict in verdicts] == [False]

        self._run(scenario)

    # ── playbooks and secrets ───────────────────────────────────────────────────────────────

    def test_a_playbook_is_fetched_by_digest(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            await orchestrator.submit(Submission(text=TWO))
            (order,) = await claim_until(link("w"), Claim("w", 1), 1)
            playbook = msgspec.json.decode(await link("w").playbook(order.context.playbook), type=Playbook)
            assert [step.name for step in playbook.steps] == ["first", "second"]
            await _refused(NotFound, link("w").playbook("0" * 64))

        self._run(scenario)

    def test_secrets_are_delivered_or_reported_missing(self) -> None:
        async def scenario(orchestrator: Orchestrator, link: Link) -> None:
            execution_id = await orchestrator.submit(Submission(text=DOOR))
            await claim_until(link("w"), Claim("w", 1), 1)
            assert await link("w").secrets(execution_id, ["door"]) == {"door": {"key": "sesame"}}
            await _refused(SecretUnavailable, link("w").secrets(execution_id, ["window"]))

        self._run(scenario, {"door": {"key": "sesame"}})


# ── for subclasses and scenarios ────────────────────────────────────────────────────────────


def done(order: RunOrder, value: Any = None, number: int = 1) -> Report:
    """The report of a run's only task, and of its end."""
    names: dict[str, Any] = {"step": order.context.step, "step_run_id": order.context.step_run_id}
    outcome = ok(value)
    task = TaskDone(**names, task=order.context.step, kind="noop", outcome=outcome, path=order.path)
    end = IterationDone(**names, path=order.path, output=outcome) if order.path else StepDone(**names, output=outcome)
    return Report(order.run_id, order.epoch, number, (task, end))


async def claim_until(link: WorkLink, claim: Claim, count: int) -> list[RunOrder]:
    """Claim until this many runs are leased, or until a timeout."""
    orders: list[RunOrder] = []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 10
    while len(orders) < count and loop.time() < deadline:
        asked = msgspec.structs.replace(claim, slots=count - len(orders))
        orders += await link.claim(asked, wait=2)
    return orders


async def bodies(orchestrator: Orchestrator, execution_id: str, kind: type[Any]) -> list[Any]:
    """The events of one type in the log."""
    log: list[Recorded] = await orchestrator.events(execution_id)
    return [each.body for each in log if isinstance(each.body, kind)]


async def _refused(kind: type[Exception], asked: Awaitable[Any]) -> None:
    try:
        await asked
    except kind:
        return
    raise AssertionError(f"this was not refused with {kind.__name__}")


class _Secrets:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    async def resolve(self, entries: Any, names: Sequence[str], **_: Any) -> dict[str, Any]:
        missing = {name: "there is none" for name in names if name not in self._values}
        if missing:
            raise SecretUnavailable(missing)
        return {name: self._values[name] for name in names}

    async def close(self) -> None:
        return


class _NoResults:
    """A result store that the tests do not use."""

    async def put(self, name: str, chunks: AsyncIterator[bytes], **_: Any) -> Reference:
        raise AssertionError(f"{name} was stored")

    def open(self, reference: Reference, **_: Any) -> AsyncIterator[bytes]:
        raise AssertionError(f"{reference} was opened")

    async def delete(self, reference: Reference) -> None:
        raise AssertionError(f"{reference} was deleted")

    async def collect(self, now: float) -> int:
        return 0

    async def forget(self, executions: Sequence[str]) -> int:
        return 0

    async def close(self) -> None:
        return
