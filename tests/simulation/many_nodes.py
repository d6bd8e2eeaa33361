"""`python -m tests.simulation.many_nodes`: thousands of workers and servers in virtual time (G14).

A discrete-event model of the protocol between clients, servers, workers and the database. Executions arrive at random
servers. A request is one append, which leases the first step to a worker with an open long poll at that server; otherwise
the run waits in the shared queue. A worker executes a step and reports it; one append ends it and leases the next step to
the same worker, and the worker's free slot takes a run of the queue, fair between two tenants, or polls again. Servers are
killed and workers are cut off; leases expire, epochs rise, and reports of an older epoch are refused. The CPU time of each
message is that of the cost table (docs/explanation/cost-of-an-execution.md); `bench.model_check` compares the model with a
real run.

After the run every execution must have ended once, with one accepted report for each step.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

HEARTBEAT = 5.0  # seconds between heartbeats of a worker
LEASE = 30.0  # seconds without a heartbeat after which a lease expires
SERVER_DEAD = 5.0  # seconds without a heartbeat after which a server counts as stopped
SERVER_HEARTBEAT = 1.0
POLL = 20.0  # seconds of a long poll


COLUMNS = (
    "workers", "servers", "executions", "messages", "heartbeats", "appends", "bytes", "server CPU ms", "queued", "p50 s",
    "p99 s", "p99 of tenants s", "memory kB", "detection s", "refused",
)  # fmt: skip


class Costs(Struct, frozen=True):
    """Seconds of CPU on a server for each message, of the database for an append, and bytes in the log."""

    submit: float = 0.0009
    report: float = 0.0005
    claim: float = 0.00025
    stream: float = 0.00105  # of the client that follows the execution
    heartbeat: float = 0.00010
    append: float = 0.00030
    flush: float = 0.002
    network: float = 0.0003
    events_per_append: float = 4.0
    bytes_per_event: float = 210.0
    bytes_of_queued_execution: float = 700.0  # in the memory of its server


class Size(Struct, frozen=True):
    """The size of an installation and its load."""

    workers: int = 10
    servers: int = 2
    executions: int = 1000
    steps: int = 3
    slots: int = 4  # of each worker
    task_seconds: float = 1.0
    load: float = 0.5  # share of all slots that are in use on average
    killed_servers: int = 1
    cut_off_workers: int = 2  # for longer than a lease


class Result(Struct, frozen=True):
    """What a run has counted."""

    size: Size
    seconds: float  # virtual
    messages: float  # per execution
    heartbeats: float  # per execution, not included in `messages`
    appends: float
    bytes: float
    memory: float  # largest number of bytes on one server
    cpu_ms: float  # of servers, per execution
    queued: float  # share of the steps that waited in the queue
    p50: float
    p99: float
    takeover: float  # longest time until the stop of a killed server was detected
    tenants: tuple[float, float]  # p99 of the tenant with one tenth of the load, and of the other
    refused: int  # reports of an older epoch
    violations: tuple[str, ...]


class _Execution(Struct, eq=False):
    number: int
    began: float
    tenant: int
    step: int = 0
    epoch: int = 0
    ended: bool = False
    accepted: int = 0


class _Worker(Struct, eq=False):
    number: int
    server: int
    free: int
    polls: bool = False
    cut_off_until: float = 0.0


class Simulation:
    """One run of the model."""

    def __init__(self, size: Size, seed: int = 1, costs: Costs = Costs()) -> None:  # noqa: B008 - immutable
        self._size, self._costs = size, costs
        self._chance = random.Random(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._busy = [0.0] * size.servers  # until when the CPU of a server is busy
        self._alive = [True] * size.servers
        self._polls: list[deque[_Worker]] = [deque() for _ in range(size.servers)]
        self._queues: tuple[deque[_Execution], ...] = (deque(), deque())
        self._turn = 0
        self._workers = [_Worker(number, number % size.servers, size.slots) for number in range(size.workers)]
        self._left = size.executions
        self._counts = dict.fromkeys(("messages", "heartbeats", "appends", "queued", "refused", "steps"), 0)
        self._cpu = 0.0
        self._latencies: tuple[list[float], list[float]] = ([], [])
        self._waiting = 0
        self._most_waiting = 0
        self._detected_at: dict[int, float] = {}  # killed server -> when the others know it
        self._takeover = 0.0
        self._settled_at = 0.0  # when reports of workers that were cut off have arrived
        self._violations: list[str] = []

    def run(self) -> Result:
        """Run until every execution has ended."""
        size = self._size
        every = size.steps * size.task_seconds / (size.workers * size.slots * size.load)
        at, span = 0.0, every * size.executions
        for number in range(size.executions):
            at += self._chance.expovariate(1 / every)
            self._at(at, self._submit, _Execution(number, at, int(self._chance.random() < 0.1)))
        for worker in self._workers:
            self._at(self._chance.random() * HEARTBEAT, self._heartbeat, worker)
            self._poll(worker)
        for number in self._chance.sample(range(size.servers), min(size.killed_servers, size.servers - 1)):
            self._at(span * self._chance.uniform(0.2, 0.8), self._kill, number)
        for worker in self._chance.sample(self._workers, min(size.cut_off_workers, size.workers - 1)):
            self._at(span * self._chance.uniform(0.1, 0.6), self._cut_off, worker)
        while self._left or self._now < self._settled_at:
            self._now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
        return self._result()

    # ── messages ────────────────────────────────────────────────────────────────────────

    def _at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, act, arguments))

    def _handle(self, server: int, cpu: float, act: Callable[..., None], *arguments: Any, append: bool = False) -> None:
        """A request and its response: the server handles requests one after the other, appends are flushed."""
        self._counts["messages"] += 2
        begins = max(self._now + self._costs.network, self._busy[server])
        self._busy[server] = begins + cpu
        self._cpu += cpu
        after = self._busy[server] + self._costs.network
        if append:
            self._counts["appends"] += 1
            after += self._costs.append + self._costs.flush
        self._at(after, act, *arguments)

    def _server(self, preferred: int | None = None) -> int:
        if preferred is not None and self._alive[preferred]:
            return preferred
        return self._chance.choice([number for number, alive in enumerate(self._alive) if alive])

    def _submit(self, execution: _Execution) -> None:
        server = self._server(self._chance.randrange(self._size.servers))
        self._handle(server, self._costs.submit, self._submitted, execution, server, append=True)

    def _submitted(self, execution: _Execution, server: int) -> None:
        if not self._alive[server]:
            # The append is stored, its effects are lost: another server continues when it has detected the stop.
            self._at(max(self._now, self._detected_at[server]), self._enqueue, execution)
            return
        while self._polls[server]:
            worker = self._polls[server].popleft()
            if worker.polls and worker.server == server and worker.free and worker.cut_off_until <= self._now:
                worker.polls = False
                self._lease(execution, worker)
                self._poll(worker)
                return
        self._enqueue(execution)

    def _enqueue(self, execution: _Execution) -> None:
        self._counts["queued"] += 1
        self._queues[execution.tenant].append(execution)
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)
        for worker in self._workers[:: max(1, len(self._workers) // 64)] if self._waiting == 1 else ():
            if worker.polls and worker.free:  # woken by the notification of the queue
                self._take(worker)
                return

    def _take(self, worker: _Worker) -> None:
        """Take runs of the queue for the free slots, of each tenant in turn."""
        while worker.free and self._waiting and worker.cut_off_until <= self._now:
            self._turn ^= 1
            queue = self._queues[self._turn] or self._queues[self._turn ^ 1]
            self._waiting -= 1
            execution = queue.popleft()
            if not execution.ended:
                self._counts["appends"] += 1
                self._lease(execution, worker)

    def _lease(self, execution: _Execution, worker: _Worker) -> None:
        worker.free -= 1
        execution.epoch += 1
        self._counts["steps"] += 1
        takes = self._chance.uniform(0.5, 1.5) * self._size.task_seconds
        self._at(
            self._now + self._costs.network + takes, self._report, execution, worker, execution.epoch, execution.step
        )

    def _report(self, execution: _Execution, worker: _Worker, epoch: int, step: int) -> None:
        if worker.cut_off_until > self._now:
            self._at(worker.cut_off_until, self._report, execution, worker, epoch, step)
            return
        server = worker.server = self._server(worker.server)
        self._handle(server, self._costs.report, self._reported, execution, worker, epoch, step, append=True)

    def _reported(self, execution: _Execution, worker: _Worker, epoch: int, step: int) -> None:
        worker.free += 1
        if epoch != execution.epoch or execution.ended:
            self._counts["refused"] += 1
        else:
            if execution.step != step:
                self._violations.append(f"execution {execution.number}: step {step} was reported twice")
            execution.accepted += 1
            execution.step += 1
            if execution.step < self._size.steps:
                self._lease(execution, worker)
                return
            self._end(execution)
        self._take(worker)
        self._poll(worker)

    def _end(self, execution: _Execution) -> None:
        execution.ended = True
        self._left -= 1
        self._cpu += self._costs.stream
        self._latencies[execution.tenant].append(self._now - execution.began)
        if execution.accepted != self._size.steps:
            self._violations.append(f"execution {execution.number}: {execution.accepted} accepted reports")

    def _poll(self, worker: _Worker) -> None:
        """Open a long poll, unless there is one."""
        if worker.free and not worker.polls:
            worker.polls = True
            worker.server = self._server(worker.server)
            self._handle(worker.server, self._costs.claim, self._listed, worker, worker.server)

    def _listed(self, worker: _Worker, server: int) -> None:
        if worker.polls and worker.server == server and self._alive[server]:
            self._take(worker)
            if worker.free:
                self._polls[server].append(worker)
            else:
                worker.polls = False

    # ── heartbeats and faults ───────────────────────────────────────────────────────────

    def _heartbeat(self, worker: _Worker) -> None:
        self._counts["heartbeats"] += 2
        self._cpu += self._costs.heartbeat
        if worker.polls and not self._alive[worker.server]:
            worker.polls = False
            self._poll(worker)
        elif worker.polls and worker.free and self._waiting:
            self._take(worker)
        self._at(self._now + HEARTBEAT, self._heartbeat, worker)

    def _kill(self, server: int) -> None:
        self._alive[server] = False
        last_heartbeat = self._now - self._chance.random() * SERVER_HEARTBEAT
        checked = self._chance.random() * SERVER_HEARTBEAT  # by another server, once per interval
        self._detected_at[server] = last_heartbeat + SERVER_DEAD + checked
        self._takeover = max(self._takeover, self._detected_at[server] - self._now)
        self._polls[server].clear()
        for worker in self._workers:
            if worker.server == server:  # its connections are reset, and it uses the next address
                worker.polls = False
                self._at(self._now + self._chance.random(), self._poll, worker)

    def _cut_off(self, worker: _Worker) -> None:
        worker.cut_off_until = self._now + 2 * LEASE
        self._settled_at = max(self._settled_at, worker.cut_off_until + 1)
        for _, _, act, arguments in list(self._events):
            if act == self._report and arguments[1] is worker:
                self._at(self._now + LEASE, self._expire, arguments[0], arguments[2])

    def _expire(self, execution: _Execution, epoch: int) -> None:
        if execution.epoch == epoch and not execution.ended:
            execution.epoch += 1
            self._counts["appends"] += 1
            self._enqueue(execution)

    def _result(self) -> Result:
        size, costs, count = self._size, self._costs, self._counts
        every = sorted([*self._latencies[0], *self._latencies[1]])
        return Result(
            size=size,
            seconds=self._now,
            messages=count["messages"] / size.executions,
            heartbeats=count["heartbeats"] / size.executions,
            appends=count["appends"] / size.executions,
            bytes=count["appends"] * costs.events_per_append * costs.bytes_per_event / size.executions,
            memory=self._most_waiting * costs.bytes_of_queued_execution / size.servers,
            cpu_ms=self._cpu * 1e3 / size.executions,
            queued=count["queued"] / max(1, count["steps"]),
            p50=_percentile(every, 0.5),
            p99=_percentile(every, 0.99),
            takeover=self._takeover,
            tenants=(_percentile(sorted(self._latencies[1]), 0.99), _percentile(sorted(self._latencies[0]), 0.99)),
            refused=count["refused"],
            violations=tuple(self._violations),
        )


def _percentile(values: Sequence[float], part: float) -> float:
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the model for growing numbers of workers; exit code 1 if a rule was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.many_nodes", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--servers", type=int, default=100, help="at most; one for every 100 workers, at least two")
    parser.add_argument("--executions", type=int, default=1_000_000, help="of the last row; others have 20 per worker")
    parser.add_argument("--load", type=float, default=0.5, help="share of all slots that executions need")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---:|" * len(COLUMNS))
    wrong: list[str] = []
    for workers in options.workers:
        servers = max(2, min(options.servers, workers // 100))
        executions = (
            options.executions if workers == options.workers[-1] else min(options.executions, 20 * workers + 2000)
        )
        faults = {"killed_servers": max(1, servers // 20), "cut_off_workers": max(1, workers // 200)}
        found = Simulation(Size(workers, servers, executions, load=options.load, **faults), options.seed).run()
        wrong += found.violations
        print(
            f"| {workers:,} | {servers} | {executions:,} | {found.messages:.2f} | {found.heartbeats:.2f} | {found.appends:.2f} | "
            f"{found.bytes:,.0f} | {found.cpu_ms:.2f} | {100 * found.queued:.1f} % | {found.p50:.2f} | {found.p99:.2f} | "
            f"{found.tenants[0]:.2f} / {found.tenants[1]:.2f} | {found.memory / 1e3:,.0f} | {found.takeover:.1f} | {found.refused} |",
            flush=True,
        )  # fmt: skip
    for each in wrong[:20]:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
