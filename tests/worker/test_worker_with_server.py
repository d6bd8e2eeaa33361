"""Workers and the orchestrator in one event loop, tested end to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from work_link import SPECS, MemoryResults, noop, until

from noetl.core.model.events import (
    ChildFinished,
    IterationDone,
    IterationFailed,
    Recorded,
    StepDone,
    TaskDone,
    TaskStarted,
    WorkerLost,
    WorkflowFinished,
)
from noetl.core.model.outcome import error, ok
from noetl.core.model.tool import ToolCall
from noetl.runtime.clock import RealClock
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.orchestrator.catalog import Source
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.worker.host import HostServices
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"


class Keychain:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    async def resolve(self, entries: Any, names: Any, *, workload: Any = None, file: str = "") -> dict[str, Any]:
        return {name: self.values[name] for name in names}

    async def close(self) -> None:
        return


class Planes:
    """An orchestrator in memory and as many workers as a test starts."""

    def __init__(
        self, *, lease_seconds: float | None = None, secrets: dict[str, Any] | None = None, **tools: Any
    ) -> None:
        self.tools = {"noop": noop, **tools}
        self.results = MemoryResults()
        self.store = MemoryEventStore()
        self.lease_seconds = lease_seconds
        self.control = build_orchestrator(
            Stores(self.store, MemoryPlaybookStore(), self.results, MemoryRunQueue()),
            lambda: SPECS,
            keychain=Keychain(secrets or {}),
            options=Options(lease_seconds=lease_seconds),
        )
        self.workers: list[Pool] = []
        self.killing = False

    async def worker(self, slots: int = 8) -> Pool:
        clock = RealClock()
        runner = Runner(
            self.control.work, HostServices(self.results), specs=SPECS, load=self.tools.__getitem__, clock=clock
        )
        beat = 3600 if self.lease_seconds is None else self.lease_seconds / 4
        pool = Pool(
            self.control.work, runner, worker=f"w{len(self.workers) + 1}", clock=clock, slots=slots, heartbeat=beat
        )
        await pool.start()
        self.workers.append(pool)
        return pool

    @asynccontextmanager
    async def up(self, workers: int = 1) -> AsyncIterator[Planes]:
        self.control.start()
        for _ in range(workers):
            await self.worker()
        try:
            yield self
        finally:
            for pool in self.workers:
                await pool.abandon()
            await self.control.close()

    async def submit(self, text: str, **fields: Any) -> str:
        return await self.control.submit(Submission(text=HEAD + text, file="p.yaml", **fields))

    async def done(self, execution: str) -> WorkflowFinished:
        await self.control.wait(execution, timeout=10)
        return next(r.body for r in reversed(await self.log(execution)) if isinstance(r.body, WorkflowFinished))

    async def log(self, execution: str) -> list[Recorded]:
        return await self.store.read(execution)

    def of(self, execution: str, kind: type[Any]) -> list[Any]:
        return [each.body for each in self.store._logs.get(execution, ()) if isinstance(each.body, kind)]

    def lost(self, execution: str) -> int:
        return len(self.of(execution, WorkerLost))


def play(
    text: str, *, workers: int = 1, payload: dict[str, Any] | None = None, **planes: Any
) -> tuple[WorkflowFinished, list[Any]]:
    async def once() -> tuple[WorkflowFinished, list[Any]]:
        async with Planes(**planes).up(workers) as both:
            execution = await both.submit(text, payload=payload or {})
            return await both.done(execution), [recorded.body for recorded in await both.log(execution)]

    return asyncio.run(once())


PAGES = """
metadata: {name: pages}
workload: {last: 3, endpoints: [a, b]}
workflow:
  - step: fetch_all
    loop: {in: "{{ workload.endpoints }}", iterator: endpoint, spec: {mode: parallel, max_in_flight: 2}}
    tool:
      - {name: init, kind: noop, set: {iter.page: 1, iter.rows: []}}
      - name: fetch
        kind: act
        input: {page: "{{ iter.page }}", of: "{{ iter.endpoint }}"}
        spec:
          policy:
            rules:
              - when: "{{ output.error.kind == 'server_error' }}"
                then: {do: retry, attempts: 3, delay: 0.001}
              - else: {then: {do: continue, set: {iter.rows: "{{ iter.rows + output.data.rows }}"}}}
      - name: paginate
        kind: noop
        input: {rows: "{{ iter.rows }}"}
        spec:
          policy:
            rules:
              - when: "{{ iter.page < workload.last }}"
                then: {do: jump, to: fetch, set: {iter.page: "{{ iter.page + 1 }}"}}
              - else: {then: {do: break}}
    next: {arcs: [{step: end, when: "{{ event.name == 'loop.done' }}"}]}
  - {step: end, tool: {kind: noop, input: {all: "{{ fetch_all.results }}", n: "{{ fetch_all.stats.succeeded }}"}}}
"""


def test_pages_are_fetched_in_order_and_retried_in_every_iteration():
    failures = {"b": 2}

    async def act(call: ToolCall) -> Any:
        of = call.input["of"]
        if call.input["page"] == 2 and failures.get(of, 0):
            failures[of] -= 1
            return error("server_error", "500")
        return ok({"rows": [f"{of}{call.input['page']}"]})

    finished, log = play(PAGES, act=act)
    rows = [{"rows": ["a1", "a2", "a3"]}, {"rows": ["b1", "b2", "b3"]}]
    assert finished.outcome == "success" and finished.output.data == {"all": rows, "n": 2}
    keys = [(e.NAME, e.path, e.task, e.visit, e.attempt) for e in log if isinstance(e, TaskStarted | TaskDone)]
    assert len(keys) == len(set(keys))
    assert max(e.attempt for e in log if isinstance(e, TaskDone)) == 3


def test_retries_that_run_out_fail_the_execution_with_the_last_error():
    async def act(call: ToolCall) -> Any:
        return error("server_error", f"try {call.attempt}")

    finished, _ = play(PAGES, act=act, payload={"endpoints": ["a"]})
    assert finished.outcome == "failed" and finished.error.message.endswith("try 3")


TWO_STEPS = """
metadata: {name: two}
workflow:
  - step: one
    tool: [{name: a, kind: act}, {name: b, kind: act}, {name: c, kind: act}]
    next: {arcs: [{step: two}]}
  - {step: two, tool: {kind: noop, input: {x: "{{ one.n }}"}}}
"""


def test_a_run_whose_worker_died_resumes_at_its_current_task():
    async def check() -> None:
        ran: list[tuple[str, int]] = []
        stuck = asyncio.Event()

        async def act(call: ToolCall) -> Any:
            ran.append((call.task, call.attempt))
            if call.task == "b" and call.attempt == 1:
                stuck.set()
                await asyncio.Event().wait()
            return ok({"n": len(ran)})

        async with Planes(lease_seconds=0.4, act=act).up() as both:
            execution = await both.submit(TWO_STEPS)
            await asyncio.wait_for(stuck.wait(), 5)
            await both.workers[0].abandon()
            await both.worker()
            finished = await both.done(execution)
            assert finished.outcome == "success" and finished.output.data == {"x": 4}
            assert ran == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
            assert [e.body.worker for e in await both.log(execution) if isinstance(e.body, WorkerLost)] == ["w1"]

    asyncio.run(check())


def test_a_task_that_may_run_only_once_is_ambiguous_after_its_worker_died():
    text = TWO_STEPS.replace("{name: b, kind: act}", "{name: b, kind: act, spec: {effect: at_most_once}}")

    async def check() -> None:
        ran: list[str] = []
        stuck = asyncio.Event()

        async def act(call: ToolCall) -> Any:
            ran.append(call.task)
            if call.task == "b":
                stuck.set()
                await asyncio.Event().wait()
            return ok(1)

        async with Planes(lease_seconds=0.4, act=act).up() as both:
            execution = await both.submit(text)
            await asyncio.wait_for(stuck.wait(), 5)
            await both.workers[0].abandon()
            await both.worker()
            finished = await both.done(execution)
            assert finished.outcome == "failed" and finished.error.kind == "ambiguous" and ran == ["a", "b"]

    asyncio.run(check())


def test_a_task_that_kills_its_worker_fails_alone_and_its_neighbours_succeed():
    text = """metadata: {name: p}
workflow:
  - step: start
    spec: {policy: {failure: {mode: best_effort}}}
    loop: {in: [0, 1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: {name: work, kind: act, input: {n: "{{ iter.n }}"}}
"""

    async def check() -> None:
        planes: list[Planes] = []
        beside: list[int] = []  # neighbours that ran when the killer began
        running: set[int] = set()

        async def act(call: ToolCall) -> Any:
            number = call.input["n"]
            both, worker = planes[0], planes[0].workers[-1]
            if number == 0:
                await until(lambda: len(running) == 3 or call.attempt > 2)
                beside.append(len(running))
                asyncio.get_running_loop().create_task(worker.abandon())
                await until(lambda: False)
            running.add(number)
            try:
                if both.killing:
                    await asyncio.Event().wait()  # until the killer has taken the worker down
                return ok(number)
            finally:
                running.discard(number)

        async with Planes(lease_seconds=0.4, act=act).up() as both:
            planes.append(both)
            both.killing = True
            execution = await both.submit(text)
            for losses in (1, 2):
                await until(lambda losses=losses: both.lost(execution) >= 4 * losses)
                both.killing = losses < 2
                await both.worker()
            await until(lambda: both.of(execution, IterationFailed))
            await both.worker()
            finished = await both.done(execution)
            assert finished.output.data == [None, 1, 2, 3]
            assert beside == [3, 3, 0]  # the third time it was alone
            (failed,) = both.of(execution, IterationFailed)
            assert failed.path == (0,) and failed.output.error.kind == "worker.lost"

    asyncio.run(check())


def test_a_task_that_may_run_only_once_is_ambiguous_after_its_worker_was_stopped():
    text = TWO_STEPS.replace("{name: b, kind: act}", "{name: b, kind: act, spec: {effect: at_most_once}}")

    async def check() -> None:
        ran: list[str] = []
        stuck = asyncio.Event()

        async def act(call: ToolCall) -> Any:
            ran.append(call.task)
            if call.task == "b":
                stuck.set()
                await asyncio.Event().wait()
            return ok(1)

        async with Planes(act=act).up() as both:
            execution = await both.submit(text)
            await asyncio.wait_for(stuck.wait(), 5)
            await both.workers[0].stop(grace=0.01)
            await both.worker()
            finished = await both.done(execution)
            assert finished.outcome == "failed" and finished.error.kind == "ambiguous" and ran == ["a", "b"]

    asyncio.run(check())


def test_a_task_that_a_draining_worker_interrupts_uses_up_its_attempt():
    async def check() -> None:
        ran: list[tuple[str, int]] = []
        stuck = asyncio.Event()

        async def act(call: ToolCall) -> Any:
            ran.append((call.task, call.attempt))
            if len(ran) == 2:
                stuck.set()
                await asyncio.Event().wait()
            return ok({"n": 0})

        async with Planes(act=act).up() as both:
            execution = await both.submit(TWO_STEPS)
            await asyncio.wait_for(stuck.wait(), 5)
            await both.workers[0].stop(grace=0.01)
            await both.worker()
            assert (await both.done(execution)).outcome == "success"
            assert ran == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
            assert [
                (e.body.returned, e.body.begun) for e in await both.log(execution) if isinstance(e.body, WorkerLost)
            ] == [(True, True)]

    asyncio.run(check())


def test_cancelling_an_execution_stops_the_tool():
    async def check() -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        async def act(call: ToolCall) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.set()
                raise

        async with Planes(act=act).up() as both:
            execution = await both.submit(TWO_STEPS)
            await asyncio.wait_for(started.wait(), 5)
            await both.control.cancel(execution, "enough")
            await asyncio.wait_for(stopped.wait(), 5)
            assert (await both.done(execution)).outcome == "cancelled"
            await until(lambda: both.workers[0].busy == 0)

    asyncio.run(check())


HOOKED = """
metadata: {name: hooked}
workflow:
  - step: start
    tool:
      - name: hold
        kind: act
        input: {what: work}
        spec:
          policy:
            before: [{name: lock, kind: act, input: {what: lock}}]
            finally: [{name: unlock, kind: act, input: {what: unlock}}]
"""


@pytest.mark.parametrize("how", ["heartbeat", "report"])
def test_finally_runs_if_the_cancellation_arrives_before_the_revocation(how):
    async def check() -> None:
        reached, resume = asyncio.Event(), asyncio.Event()
        calls: list[str] = []

        async def act(call: ToolCall) -> Any:
            calls.append(call.input["what"])
            if call.input["what"] == ("work" if how == "heartbeat" else "lock"):
                reached.set()
                await resume.wait()
            return ok(None)

        async with Planes(act=act).up() as both:
            leases = both.control.work.leases
            leases.revoke = lambda run_id, epoch, worker: leases.release(run_id, epoch)  # it never arrives
            execution = await both.submit(HOOKED)
            await asyncio.wait_for(reached.wait(), 5)
            await both.control.cancel(execution, "enough")
            await both.done(execution)
            if how == "heartbeat":
                await both.workers[0]._heartbeat()
            resume.set()  # the report of the lock is rejected
            await until(lambda: calls[-1] == "unlock")
            await until(lambda: both.workers[0].busy == 0)
            assert calls == (["lock", "work", "unlock"] if how == "heartbeat" else ["lock", "unlock"])

    asyncio.run(check())


def test_a_child_playbook_occupies_no_slot_of_its_caller():
    child = """
metadata: {name: child}
workload: {n: 0}
workflow: [{step: end, tool: {kind: noop, input: {twice: "{{ workload.n * 2 }}"}}}]
"""
    parent = """
metadata: {name: parent}
workflow:
  - step: call
    loop: {in: "{{ [1, 2, 3] }}", iterator: n, spec: {mode: parallel}}
    tool:
      - {name: kid, kind: playbook, path: child, input: {n: "{{ iter.n }}"}}
      - {name: after, kind: noop, input: {got: "{{ kid.twice }}"}}
"""

    async def check() -> None:
        both = Planes()
        both.control.start()
        await both.worker(slots=1)
        try:
            await both.control.catalog.register(Source(HEAD + child, "child.yaml"), at=0.0)
            execution = await both.submit(parent)
            finished = await both.done(execution)
            assert finished.output.data == [{"got": 2}, {"got": 4}, {"got": 6}]
            kids = [r.body for r in await both.log(execution) if isinstance(r.body, ChildFinished)]
            assert len(kids) == 3
        finally:
            await both.workers[0].abandon()
            await both.control.close()

    asyncio.run(check())


def test_no_secret_is_in_the_log_or_the_results():
    canary = "pa55/word+with=signs"

    async def act(call: ToolCall) -> Any:
        return ok({"echo": call.input["auth"], "big": [call.input["auth"]] * 20_000})

    text = """
metadata: {name: secret}
keychain: [{name: token, kind: static, value: x}]
workflow:
  - step: s
    tool:
      - {name: a, kind: act, input: {auth: "Bearer {{ keychain.token }}"}, set: {ctx.seen: "{{ output.data.echo }}"}}
    next: {arcs: [{step: e}]}
  - {step: e, tool: {kind: noop, input: {seen: "{{ ctx.seen }}", n: "{{ s.big | length }}"}}}
"""

    async def check() -> None:
        async with Planes(secrets={"token": canary}, act=act).up() as both:
            execution = await both.submit(text)
            finished = await both.done(execution)
            assert finished.output.data == {"seen": "Bearer ***", "n": 20_000}
            written = b"".join(msgspec.json.encode(r.body) for r in await both.log(execution))
            assert b"pa55" not in written + b"".join(both.results.kept.values())

    asyncio.run(check())


@pytest.mark.parametrize("workers", [1, 3])
def test_a_parallel_loop_over_a_stored_collection_keeps_order_and_bound(workers):
    inside, most = 0, 0

    async def act(call: ToolCall) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return ok(call.input["v"])

    text = """
metadata: {name: many}
workload: {n: 600}
workflow:
  - step: make
    tool: {kind: noop, input: {rows: "{{ range(workload.n) | list }}", pad: "{{ 'x' * 80000 }}"}}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ make.rows }}", iterator: row, spec: {mode: parallel, max_in_flight: 5}}
    tool: [{name: t, kind: act, input: {v: "{{ iter.row }}"}}]
"""
    finished, log = play(text, workers=workers, act=act)
    assert finished.outcome == "success" and most <= 5
    assert sum(isinstance(e, IterationDone) for e in log) == 600
    step = next(e for e in log if isinstance(e, StepDone) and e.step == "each")
    assert step.output.data is None or step.output.data == list(range(600))
