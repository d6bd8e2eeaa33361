"""A worker with a fake link: tests offer orders, read its reports and provide tools as functions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from noetl.core.language.compile import compile_playbook
from noetl.core.model.events import ChildRequested, Event, IterationDone, IterationFailed, StepDone, StepFailed
from noetl.core.model.outcome import Outcome, ok
from noetl.core.model.playbook import Playbook
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.core.model.work import Claim, HeartbeatReply, Report, ReportAck, RunContext, RunOrder
from noetl.errors import NotFound, PayloadUnavailable, SecretUnavailable
from noetl.worker.host import HostServices
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner

TERMINAL = (StepDone, StepFailed, IterationDone, IterationFailed, ChildRequested)

SPECS = {
    "noop": ToolSpec(kind="noop", open_fields=True, pure=True),
    "act": ToolSpec(kind="act", open_fields=True, helpers={"act": {"code": None}}),
    "python": ToolSpec(kind="python", open_fields=True, fields={"code": Field("code", raw=True)}),
    "workbook": ToolSpec(
        kind="workbook", open_fields=True, pure=True, fields={"block": Field("string"), "payload": Field("mapping")}
    ),
    "playbook": ToolSpec(
        kind="playbook", open_fields=True, suspends=True, fields={"path": Field("string"), "payload": Field("mapping")}
    ),
}


class FakeClock:
    """A clock whose sleeps are recorded and advance it at once."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return 1_800_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        if seconds >= 3600:  # disables heartbeats
            await asyncio.Event().wait()
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0.005 if seconds >= 1 else 0)


class MemoryResults:
    """`ports.ResultStore` in memory; `fail` makes the next puts raise."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.reads = 0
        self.fail: Exception | None = None

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        rows: int | None = None,
        columns: Any = None,
        ttl: str | None = None,
    ) -> Reference:
        if self.fail is not None:
            raise self.fail
        data = b"".join([chunk async for chunk in chunks])
        key = f"{name}#{len(self.kept)}"
        self.kept[key] = data
        self.puts.append(name)
        meta = ReferenceMeta(
            content_type=content_type, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), rows=rows, ttl=ttl
        )
        return Reference(type="blob", locator={"name": key}, meta=meta)

    async def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.reads += 1
        if reference.locator["name"] not in self.kept:
            raise PayloadUnavailable("no such payload")
        data = self.kept[reference.locator["name"]]
        yield data[offset : None if length is None else offset + length]

    def data(self, reference: Reference) -> Any:
        return msgspec.json.decode(self.kept[reference.locator["name"]])

    async def delete(self, reference: Reference) -> None:
        del self.kept[reference.locator["name"]]

    async def collect(self, now: float) -> int:
        return 0

    async def close(self) -> None:
        self.kept.clear()


class FakeLink:
    """`ports.WorkLink` of a server that accepts everything unless the test configures a refusal."""

    def __init__(self) -> None:
        self.playbooks: dict[str, Playbook] = {}
        self.keychain: dict[str, Any] = {}
        self.reports: list[Report] = []
        self.calls: list[int] = []  # reports in each call
        self.story: list[str] = []  # what happened, in order: "report a,b" and whatever tools add
        self.refuse: set[str] = set()
        self.verdict_error: Any = None
        self.fail_reports: list[Exception] = []
        self.follow_ups: list[RunOrder] = []
        self.free_seen: list[int] = []
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()  # lost runs that no other worker continues
        self.term: float | None = None  # of its leases
        self.leased: list[tuple[str, int]] = []  # what the worker holds as the server sees it
        self.given_back: list[tuple[str, int]] = []
        self.begun: list[str] = []
        self.fetched: list[str] = []
        self.extended: list[list[tuple[str, int]]] = []
        self._orders: asyncio.Queue[RunOrder] = asyncio.Queue()
        self._revoked: asyncio.Queue[str] = asyncio.Queue()
        self._ended = asyncio.Condition()
        self.report_gate: asyncio.Event | None = None

    def offer(self, *orders: RunOrder) -> None:
        for order in orders:
            self._orders.put_nowait(order)

    def revoke(self, run_id: str) -> None:
        self.lost.add(run_id)
        self.hint(run_id)

    def hint(self, run_id: str) -> None:
        """Send the message alone, without a revoked lease."""
        self._revoked.put_nowait(run_id)

    async def claim(self, claim: Claim, *, wait: float) -> list[RunOrder]:
        orders = [await self._orders.get()]
        while len(orders) < claim.slots and not self._orders.empty():
            orders.append(self._orders.get_nowait())
        return orders

    async def extend(self, worker: str, runs: Sequence[tuple[str, int]]) -> HeartbeatReply:
        self.extended.append(list(runs))
        unsaid = [key for key in self.leased if key not in runs]
        lost = [run_id for run_id, _ in runs if run_id in self.lost]
        return HeartbeatReply(lost, unsaid, self.term, ended=[each for each in lost if each in self.cancelled])

    async def revoked(self, worker: str, *, wait: float) -> list[str]:
        return [await self._revoked.get()]

    async def give_back(self, worker: str, runs: Sequence[tuple[str, int]], *, begun: Collection[str] = ()) -> None:
        self.given_back += runs
        self.begun += begun

    async def report(
        self, worker: str, reports: Sequence[Report], *, free: int = 0
    ) -> tuple[list[ReportAck], list[RunOrder]]:
        self.free_seen.append(free)
        if self.report_gate is not None:
            await self.report_gate.wait()
        if self.fail_reports:
            self.reports += reports  # it may have arrived, only the answer is missing
            raise self.fail_reports.pop(0)
        await asyncio.sleep(0)
        self.calls.append(len(reports))
        self.reports += reports
        for report in reports:
            self.story.append("report " + ",".join(event.NAME for event in report.events))
        verdicts = [ReportAck(r.run_id, r.run_id not in self.refuse, self.verdict_error) for r in reports]
        async with self._ended:
            self._ended.notify_all()
        orders, self.follow_ups = self.follow_ups[:free], self.follow_ups[free:]
        return verdicts, orders

    async def playbook(self, digest: str) -> bytes:
        self.fetched.append(digest)
        if digest not in self.playbooks:
            raise NotFound(f"no playbook {digest}")
        await asyncio.sleep(0)
        return msgspec.json.encode(self.playbooks[digest])

    async def secrets(self, execution_id: str, names: Sequence[str]) -> dict[str, Any]:
        missing = {name: "not there" for name in names if name not in self.keychain}
        if missing:
            raise SecretUnavailable(missing)
        return {name: self.keychain[name] for name in names}

    async def close(self) -> None:
        pass

    # ── for tests ───────────────────────────────────────────────────────────────────────

    def events(self, run_id: str = "1:s:1") -> list[Event]:
        seen: dict[tuple[int, int], Report] = {(r.epoch, r.number): r for r in self.reports if r.run_id == run_id}
        return [event for key in sorted(seen) for event in seen[key].events]

    def ended(self, run_id: str) -> bool:
        return any(isinstance(event, TERMINAL) for event in self.events(run_id))

    async def until_ended(self, *run_ids: str) -> None:
        async with asyncio.timeout(5), self._ended:
            await self._ended.wait_for(lambda: all(self.ended(run_id) for run_id in run_ids))

    def written(self) -> bytes:
        """Everything that left the worker."""
        return b"".join(msgspec.json.encode(report) for report in self.reports)


class Bench:
    """A pool with a fake link, clock and result store."""

    def __init__(self, text: str = "", *, slots: int = 4, **tools: Callable[[ToolCall], Awaitable[Outcome]]) -> None:
        self.link = FakeLink()
        self.clock = FakeClock()
        self.results = MemoryResults()
        self.tools = {"noop": noop, **tools}
        self.book = compiled(text) if text else None
        if self.book is not None:
            self.link.playbooks["d"] = self.book
        self.runner = Runner(self.link, HostServices(self.results), specs=SPECS, load=self.load, clock=self.clock)
        self.pool = Pool(self.link, self.runner, worker="w", clock=self.clock, slots=slots, heartbeat=3600)

    def load(self, kind: str) -> Any:
        return self.tools[kind]

    def order(self, step: str = "s", run: str | None = None, **fields: Any) -> RunOrder:
        names = ("workload", "args", "input", "results", "task_results", "defer_input")
        context = {name: fields.pop(name) for name in names if name in fields}
        return RunOrder(
            run_id=run or f"1:{step}:1",
            epoch=fields.pop("epoch", 1),
            context=RunContext(
                id=fields.pop("context_id", f"1:{step}"),
                playbook="d",
                execution_id="1",
                step=step,
                step_run_id=f"1:{step}:1",
                **context,
            ),
            **fields,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        await self.pool.start()
        try:
            yield self
        finally:
            await self.pool.abandon()

    async def once(self, **order: Any) -> list[Event]:
        """Execute one order and return its events."""
        made = self.order(**order)
        async with self.running():
            self.link.offer(made)
            await self.link.until_ended(made.run_id)
        return self.link.events(made.run_id)

    def run(self, **order: Any) -> list[Event]:
        return asyncio.run(self.once(**order))


async def noop(call: ToolCall) -> Outcome:
    return ok(call.input or None)


def compiled(text: str) -> Playbook:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
    compilation = compile_playbook(head + text, file="p.yaml", specs=SPECS)
    assert compilation.playbook is not None, [str(d) for d in compilation.diagnostics]
    return compilation.playbook


async def until(condition: Callable[[], Any]) -> None:
    """Run the event loop until the condition is true; fail after five seconds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
