"""Scenarios of whole control planes in virtual time: what the servers store, lease, queue and answer, as whole values.

One or two servers over stores in memory execute the playbooks of the simulation, with limits, tenants and quotas, for
workers that claim, report, send heartbeats, are lost and return runs, and users that pause, signal, cancel, query and run
again; servers restart. The seed determines all of it. After every act the new events, the summaries, leases, timers and
queues are noted. `python -m tests.server.generated_scenarios` writes the logs again after an intended change and prints the
first difference of each scenario; review it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from noetl.core.model.events import Event, decode_body, encode_body
from noetl.core.model.playbook import Playbook
from noetl.core.model.quotas.token_bucket import Demand, QuotaCall
from noetl.core.model.work import Claim, Report, RunOrder
from noetl.errors import NoetlError
from noetl.runtime.tasks import cancel
from noetl.server.composition import Cluster, Options, Stores, build_orchestrator
from noetl.server.lifecycle import recovery
from noetl.server.lifecycle.wait_timers import WaitTimers
from noetl.server.orchestrator import execution_actor
from noetl.server.orchestrator.catalog import Source, source_digest
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import RerunRequest, Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.events import Append
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.scripted_worker import KINDS, Nondeterminism, Worker
from tests.server.server_tables import Payloads, relative, tables_of, waiting_runs
from tests.simulation.playbooks import TEXTS
from tests.simulation.stores import MemoryHeartbeats, MemoryResultStore, ServerQueue
from tests.simulation.virtual_time import Process, VirtualClock, run_virtually
from tests.stored_logs import plain, write

HERE = Path(__file__).parent
STORED = HERE / "scenarios.json.xz"
CONSTRUCTS = (HERE.parent / "core" / "engine" / "scenarios" / "constructs.yaml").read_text().split("\n---\n")
ACTS = 110
LEASE_SECONDS = 10.0
SETTLE_SECONDS = 0.01  # after every act
SNAPSHOT_EVENTS = 15  # so that short executions have snapshots


class NotingStore(MemoryEventStore):
    """A store that notes what is appended beside the events."""

    def __init__(self) -> None:
        super().__init__()
        self.appended: list[Any] = []

    async def append(self, append: Append) -> None:
        """Append, and note it."""
        await super().append(append)
        beside = (append.was, append.takes, append.news, append.rewaits, append.state)
        self.appended.append([append.execution_id, len(append.events), *map(msgspec.to_builtins, beside)])


class Server:
    """One server process."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.process = Process(f"server {number}")
        queue: Any = ServerQueue(scenario.queue, self.process)
        self.orchestrator = build_orchestrator(
            Stores(scenario.store, scenario.playbooks, scenario.results, queue, scenario.triggers),
            lambda: KINDS,
            clock=scenario.clock,
            nondeterminism=Nondeterminism(),
            cluster=Cluster(scenario.heartbeats if scenario.servers_wanted > 1 else None),
            options=Options(
                lease_seconds=LEASE_SECONDS,
                process_number=number,
                stored_timers=True,
                cached_executions=scenario.cached,
                max_waiting_runs=scenario.max_waiting,
            ),
        )

        news = self.orchestrator.actors.news
        news.enabled = news.custom = scenario.listed

    async def start(self, clock: VirtualClock) -> None:
        """Read the limits, watch leases, and continue what is unfinished."""
        await self.orchestrator.load_limits()
        self.orchestrator.start()
        await recovery.resume(self.orchestrator, waiting=False)
        self.process.start(WaitTimers(self.orchestrator, clock).run())


class Scenario:
    """Servers, workers and users whose acts the seed determines; everything observable is noted."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.chance = random.Random(f"server {seed}")
        self.clock = clock
        self.servers_wanted = self.chance.choice([1, 1, 2])
        self.cached = self.chance.choice([1, 2000])
        self.max_waiting = self.chance.choice([None, None, 4])
        self.listed = self.chance.random() < 0.5  # whether new statuses and custom events are listed
        self.failing = self.chance.choice([0.0, 0.1, 0.4])
        self.store, self.playbooks = NotingStore(), MemoryPlaybookStore()
        self.results: Any = MemoryResultStore()
        self.queue, self.triggers = MemoryRunQueue(), MemoryTriggerStore()
        self.heartbeats = MemoryHeartbeats(clock)
        self.servers: list[Server] = []
        self.started = 0
        self.executions: list[str] = []
        self.working: dict[str, dict[str, Worker]] = {"w1": {}, "w2": {}, "w3": {}}
        self.polls: dict[str, tuple[Server, asyncio.Task[list[RunOrder]]]] = {}  # open long polls by worker
        self.numbers: dict[str, int] = {}
        self.sent: list[Report] = []
        self.seen: dict[str, int] = {}
        self.summaries: dict[str, Any] = {}
        self.state: Any = None  # leases, timers and queues after the last act
        self.noted: list[Any] = []

    @property
    def server(self) -> Orchestrator:
        """A server, as a load balancer chooses it."""
        return self.chance.choice(self.servers).orchestrator

    async def play(self) -> list[Any]:
        """Perform the acts."""
        for text in (*TEXTS.values(), *CONSTRUCTS):
            path = text.partition("path: ")[2].partition("}")[0]
            await self.playbooks.register(StoredPlaybook(path, 0, source_digest(Source(text)), text))
        for _ in range(self.servers_wanted):
            await self._start_server()
        acts = [
            (self.submit, 12), (self.claim, 16), (self.poll, 14), (self.close_poll, 1), (self.work, 45), (self.heartbeat, 6), (self.give_back, 3), (self.lose, 2),
            (self.revoked, 2), (self.user, 8), (self.query, 8), (self.limit, 5), (self.rerun, 2), (self.restart, 2),
            (self.pass_time, 8), (self.repeat, 4), (self.ask, 8),
        ]  # fmt: skip
        functions, weights = zip(*acts, strict=True)
        await self._do(self.submit)
        for _ in range(ACTS):
            await self._do(self.chance.choices(functions, weights)[0])
        await self._do(self.query)
        for worker in list(self.polls):
            await self._cancel_poll(worker)
        for server in self.servers:
            await server.orchestrator.close()
            server.process.kill()
        return self.noted

    async def _do(self, act: Any) -> None:
        try:
            result = await act()
        except NoetlError as problem:
            result = f"{type(problem).__name__}: {problem}"
        except TimeoutError as problem:
            result = f"TimeoutError: {problem}"
        await asyncio.sleep(SETTLE_SECONDS)
        for worker in [each for each, (_, poll) in self.polls.items() if poll.done()]:
            self.noted.append([worker, await self._accept(worker, self.polls.pop(worker)[1].result())])
        self.noted.append([act.__name__, round(self.clock.monotonic(), 3), msgspec.to_builtins(result, enc_hook=str)])
        await self._note_changes()

    async def _note_changes(self) -> None:
        """What the act changed: events, summaries, and the tables of the servers."""
        if self.store.appended:
            self.noted.append(self.store.appended)
            self.store.appended = []
        for execution_id in sorted(self.store._logs):
            events = await self.store.read(execution_id, self.seen.get(execution_id, 0))
            if events:
                self.seen[execution_id] = events[-1].seq
                self.noted.append(
                    [
                        execution_id,
                        *(
                            [e.seq, e.parent_seq, relative(e.at), e.body.NAME, msgspec.to_builtins(e.body)]
                            for e in events
                        ),
                    ]
                )
            summary = msgspec.to_builtins(await self.store.summary(execution_id))
            if summary != self.summaries.get(execution_id):
                self.summaries[execution_id] = summary
                self.noted.append(summary)
        state = {
            "news": [[each.execution_id, each.status] for each in await self.store.news()],
            "snapshots": {
                each: [found[0], crc32(found[1])]
                for each in self.store._logs
                if (found := await self.store.snapshot(each))
            },
            "servers": [tables_of(each.orchestrator) for each in self.servers],
            "queue": [
                *(msgspec.to_builtins(each) for each in await self.queue.depths()),
                *(msgspec.to_builtins(each) for each in await self.queue.limit_depths()),
                sorted((await self.queue.tenant_depths()).items()),
                sorted(msgspec.to_builtins(run) for run in waiting_runs(self.queue)),
            ],
        }
        if state != self.state:
            self.state = state
            self.noted.append(state)

    # ── servers ─────────────────────────────────────────────────────────────────────────

    async def _start_server(self) -> None:
        self.started += 1
        server = Server(self, self.started)
        await asyncio.wait((server.process.start(server.start(self.clock)),))
        self.servers.append(server)

    async def restart(self) -> str:
        """Stop a server, and start another one a little later."""
        server = self.servers.pop(self.chance.randrange(len(self.servers)))
        for worker in [each for each, (polled, _) in self.polls.items() if polled is server]:
            await self._cancel_poll(worker)
        server.process.kill()
        await server.orchestrator.close()
        await asyncio.sleep(self.chance.choice([0.5, 15.0]))
        await self._start_server()
        return "restarted"

    async def pass_time(self) -> float:
        """Let time pass."""
        seconds = self.chance.choice([0.5, 3.0, LEASE_SECONDS + 1, 40.0])
        await asyncio.sleep(seconds)
        return seconds

    # ── requests ────────────────────────────────────────────────────────────────────────

    async def submit(self) -> Any:
        """Start an execution, sometimes with a key that was used before."""
        chance = self.chance
        text = chance.choice([*TEXTS.values(), *CONSTRUCTS])
        path = text.partition("path: ")[2].partition("}")[0]
        labels = chance.choice([{}, {}, {"tenant": "a"}, {"tenant": "b", "team": "x"}])
        given = {"path": path} if chance.random() < 0.5 else {"text": text, "file": "p.yaml"}
        submission = Submission(
            **given,
            payload=chance.choice([{}, {"n": 2}]),
            key=chance.choice([None, None, None, f"of {path}"]),
            requested_by=chance.choice([None, "ann"]),
            labels=labels,
            bounded=chance.random() < 0.5,
        )
        execution_id = await self.server.submit(submission)
        if execution_id not in self.executions:
            self.executions.append(execution_id)
        return execution_id

    async def user(self) -> Any:
        """Pause, resume, signal or cancel."""
        chance, server, execution_id = self.chance, self.server, self._any()
        key = chance.choice(["", "c1", "c2"])
        signal = chance.choice(["go", "answer", "approve"])
        match chance.choice(["pause", "resume", "resume", "signal", "signal", "role", "cancel", "undo"]):
            case "pause":
                return await server.pause(execution_id, "lunch", id=key)
            case "resume":
                return await server.resume(execution_id, id=key)
            case "signal":
                data = {"n": chance.randint(0, 3), "sent": 1, "approved": True}
                return await server.signal(execution_id, signal, data, by="ann", id=key)
            case "role":
                return await server.signal(execution_id, signal, {"x": 1}, by="ben", roles=["viewer"])
            case "cancel":
                return await server.cancel(execution_id, "enough", id=key)
            case _:
                return await server.cancel(execution_id, compensate=True)

    async def query(self) -> Any:
        """Ask for something about an execution."""
        chance, server, execution_id = self.chance, self.server, self._any()
        summary = await server.summary(execution_id, newest=chance.random() < 0.5)
        match chance.choice(
            ["why", "past", "waits", "inbox", "progress", "explain", "wait", "compare", "events", "limits"]
        ):
            case "why":
                return await server.why(execution_id)
            case "past":
                return await server.why(execution_id, chance.randint(1, max(1, summary.seq)))
            case "waits":
                return await server.waits_for(summary)
            case "inbox":
                return await server.inbox(limit=chance.choice([1, 100]))
            case "progress":
                return [
                    msgspec.to_builtins(each, enc_hook=str)
                    for each in (await server.progress(execution_id)).steps.values()
                ]
            case "explain":
                return await server.explain(execution_id)
            case "wait":
                return await server.wait(execution_id, 2.0)
            case "compare":
                return await server.compare(execution_id, self._any())
            case "events":
                return [each.seq for each in await server.events(execution_id, 2, 5)]
            case _:
                assert server.limits is not None
                return await server.limits.documents(await server.limits.list())

    async def rerun(self) -> Any:
        """Run an execution again, or from a point of it."""
        chance, server = self.chance, self.server
        execution_id = self._any()
        state = await server.state(execution_id)
        request = RerunRequest(
            execution_id,
            **chance.choice(
                [
                    {},
                    {"failed": True},
                    {"from_step": chance.choice([step.name for step in state.playbook.steps])},
                    {"at": chance.randint(1, state.seq)},
                    {"version": "latest", "changes": {"n": 5}},
                ]
            ),
        )
        plan = await server.plan_rerun(request)
        started = await server.rerun(request, key=chance.choice([None, "r1"]), by="ann")
        if started not in self.executions:
            self.executions.append(started)
        return [msgspec.to_builtins(plan), plan.describe(), started]

    async def limit(self) -> Any:
        """Set, change or remove a limit."""
        chance, limits = self.chance, self.server.limits
        assert limits is not None
        subject, name = chance.choice(
            [
                ("pool", "default"),
                ("playbook", "fan_out"),
                ("playbook", "calls"),
                ("label", "tenant=a"),
                ("playbook", "called"),
            ]
        )
        if chance.random() < 0.3:
            await limits.remove(subject, name)
            return [subject, name]
        values: dict[str, Any] = {"most": chance.choice([0, 1, 1, 2, 5])}
        if subject == "label":
            values |= {"weight": chance.choice([None, 3]), "max_waiting": chance.choice([None, 1])}
        return await limits.set(subject, name, by="ann", **values)

    def _any(self) -> str:
        return self.chance.choice(self.executions) if self.executions and self.chance.random() < 0.95 else "1"

    # ── workers ─────────────────────────────────────────────────────────────────────────

    def _claim(self, worker: str) -> Claim:
        labels = {"w1": (), "w2": ("zone=eu",), "w3": ("gpu=true", "zone=eu")}[worker]
        pool = "light" if worker == "w2" and self.chance.random() < 0.3 else "default"
        return Claim(worker, self.chance.randint(1, 3), pool, labels, 4)

    async def claim(self) -> Any:
        """Claim runs for a worker, and wait for them a little."""
        worker = self.chance.choice(["w1", "w1", "w2", "w3"])
        wait = self.chance.choice([0.0, 0.0, 1.0])
        return await self._accept(worker, await self.server.work.claim(self._claim(worker), wait=wait))

    async def poll(self) -> str:
        """Open a long poll of a worker, unless it has one; what follows happens while it is open."""
        worker = self.chance.choice(sorted(self.working))
        if worker not in self.polls:
            server = self.chance.choice(self.servers)
            claim = server.orchestrator.work.claim(self._claim(worker), wait=self.chance.choice([2.0, 20.0]))
            self.polls[worker] = server, asyncio.get_running_loop().create_task(claim)
        return worker

    async def close_poll(self) -> str:
        """A worker closes the connection of its long poll."""
        worker = self.chance.choice(sorted(self.working))
        await self._cancel_poll(worker)
        return worker

    async def _cancel_poll(self, worker: str) -> None:
        if worker in self.polls:
            await cancel(self.polls.pop(worker)[1])

    async def _accept(self, worker: str, orders: list[RunOrder]) -> list[Any]:
        for order in orders:
            playbook = msgspec.json.decode(await self.server.work.playbook(order.context.playbook), type=Playbook)
            self.working[worker][order.run_id] = Worker(order, playbook, self.failing, Payloads(self.results))
        return [[order.run_id, order.epoch, order.lost, order.context.step] for order in orders]

    async def work(self) -> Any:
        """Let a worker act and report."""
        chance = self.chance
        busy = [name for name, runs in self.working.items() if runs]
        if not busy:
            return await self.claim()
        worker = chance.choice(busy)
        reports = []
        ended = []
        for run_id in chance.sample(sorted(self.working[worker]), min(len(self.working[worker]), chance.randint(1, 2))):
            run = self.working[worker][run_id]
            for _ in range(chance.randint(1, 4)):
                if not run.ended:
                    run.act(chance, self.clock.now())
            if run.events:
                events, run.events = run.events, []
                reports.append(self._report(run.order, events))
            if run.ended:
                ended.append(run_id)
        if not reports:
            return "nothing to report"
        for run_id in ended:
            del self.working[worker][run_id]
        acks, orders = await self.server.work.report(worker, reports, free=chance.choice([0, 0, 1, 2]))
        for ack in acks:
            if not ack.accepted or ack.error:
                self.working[worker].pop(ack.run_id, None)
        return [msgspec.to_builtins(acks), await self._accept(worker, orders)]

    def _report(self, order: RunOrder, events: list[Event]) -> Report:
        number = self.numbers[order.run_id] = self.numbers.get(order.run_id, 0) + 1
        sent = tuple(decode_body(each.NAME, each.VERSION, encode_body(each)) for each in events)
        report = Report(order.run_id, order.epoch, number, sent)
        self.sent.append(report)
        return report

    async def repeat(self) -> Any:
        """Send an earlier report again: as it was, of another worker, with another epoch or with fewer events."""
        if not self.sent:
            return None
        chance, report = self.chance, self.chance.choice(self.sent)
        if chance.random() < 0.5:
            epoch, events = report.epoch + chance.choice([0, 1]), report.events[: chance.randint(0, 2)]
            report = msgspec.structs.replace(report, epoch=epoch, events=events)
        worker = chance.choice(["w1", "w2", "w3", "w4"])
        acks, orders = await self.server.work.report(worker, [report], free=chance.choice([0, 2]))
        return [msgspec.to_builtins(acks), await self._accept(worker if orders else "w1", orders)]

    async def ask(self) -> Any:
        """Requests of workers, also for what they do not have."""
        chance, work = self.chance, self.server.work
        worker = chance.choice(sorted(self.working))
        others = [each for name in self.working for each in self._held(name)]
        match chance.choice(["playbook", "secrets", "quota", "extend", "return", "placement", "withdraw", "shared"]):
            case "playbook":
                return len(await work.playbook(source_digest(Source(chance.choice([*CONSTRUCTS, "none"])))))
            case "secrets":
                execution_id = self._any()
                held = [each for each in others if each[0].startswith(execution_id)]
                return await work.secrets_of_runs(execution_id, worker, held, [chance.choice(["api", "db", "none"])])
            case "quota":
                demand = Demand(chance.choice(["a", "b"]), chance.choice([0.1, 2.0]), chance.randint(1, 2))
                return await work.quota(QuotaCall(demand, pause_s=chance.choice([None, None, 5.0])))
            case "extend":
                wrong = [(run_id, epoch + chance.choice([0, 0, 1])) for run_id, epoch in [*others, ("1:start:1", 1)]]
                return await work.extend(worker, wrong)
            case "return":
                await work.give_back(worker, [(run_id, epoch + 1) for run_id, epoch in others[:2]])
                return others[:2]
            case "placement":
                labels = chance.choice([(), ("zone=eu",), ("gpu=true", "zone=eu"), ("zone=us",)])
                return work.placement_problem(chance.choice(["default", "light", "none"]), labels)
            case "withdraw":
                return work.withdraw_claims(worker)
            case _:
                return await self.server.poll_external_changes(lambda found: found[:1])

    def _held(self, worker: str) -> list[tuple[str, int]]:
        return [(run_id, run.order.epoch) for run_id, run in sorted(self.working[worker].items())]

    async def heartbeat(self) -> Any:
        """Send the heartbeat of every worker; what is not theirs any more is stopped."""
        found = []
        for worker in self.working:
            reply = await self.server.work.extend(worker, self._held(worker))
            for run_id in reply.lost:
                self.working[worker].pop(run_id, None)
            if reply.unknown:
                await self.server.work.give_back(worker, reply.unknown)
            found.append(msgspec.to_builtins(reply))
        return found

    async def give_back(self) -> Any:
        """Return the runs of a worker."""
        worker = self.chance.choice(sorted(self.working))
        held = self._held(worker)
        begun = [run_id for run_id, run in self.working[worker].items() if run.started is not None]
        self.working[worker] = {}
        await self.server.work.give_back(worker, held, begun=begun)
        return held

    async def lose(self) -> Any:
        """A worker ends without a word."""
        worker = self.chance.choice(sorted(self.working))
        self.working[worker] = {}
        if self.chance.random() < 0.3:
            self.server.work.forget(worker)
        return worker

    async def revoked(self) -> Any:
        """The runs that the servers have taken away from the workers."""
        found = {}
        for server in self.servers:
            for worker in self.working:
                runs = await server.orchestrator.work.revoked(worker, wait=0.0)
                for run_id in runs:
                    self.working[worker].pop(run_id, None)
                found[f"{server.process.name} {worker}"] = runs
        return found


def played(seed: int) -> list[Any]:
    """What was observed in a scenario."""

    async def play(clock: VirtualClock) -> list[Any]:
        return await Scenario(seed, clock).play()

    before = execution_actor.SNAPSHOT_EVENTS
    execution_actor.SNAPSHOT_EVENTS = SNAPSHOT_EVENTS
    try:
        return run_virtually(play)
    finally:
        execution_actor.SNAPSHOT_EVENTS = before


def seeds() -> range:
    """The seeds of the scenarios."""
    return range(120)


if __name__ == "__main__":
    write(STORED, {str(seed): plain(played(seed)) for seed in seeds()})
