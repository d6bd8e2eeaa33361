"""G18: servers, workers, Postgres, NATS and clients as hosts of a network that loses packets and is partitioned.

Every component has its own network namespace (`chaos.node_network`). While executions are submitted, nodes are cut off
from each other, in one direction or in both, for less and for more than the duration of a lease. The side effects of
the executions are rows of a table, as in the experiment `kills`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from chaos.cluster import ROOT, unfinished
from chaos.findings import Finding
from chaos.kills import ITEMS, PLAYBOOK, POISON, check_effects, create_effects_table
from chaos.node_network import NodeNetwork
from chaos.oracles import OracleReport, check_executions
from devcluster.servers import Nats, Postgres
from noetl.client import Client
from noetl.errors import StoreUnavailable

T = TypeVar("T")

LEASE_SECONDS = 5.0
SERVER_PORT, POSTGRES_PORT, NATS_PORT = 8080, 5432, 4222
SERVE = "from noetl.server.process import serve; from noetl.settings import load; serve(load().settings)"
WORK = (
    "from noetl.runtime import event_loop; from noetl.worker.process import work; from noetl.settings import load; "
    "event_loop.run(work(load().settings))"
)


class NodeCluster:
    """Two servers and their workers, Postgres, NATS and a client, each on a node of its own."""

    def __init__(self, network: NodeNetwork, folder: Path, *, servers: int, workers: int, lease: float) -> None:
        self.network = network
        self.lease = lease  # seconds
        self.servers = [f"server-{number}" for number in range(1, servers + 1)]
        self.workers = [f"worker-{number}" for number in range(1, workers + 1)]
        self._nodes = {name: network.add(name) for name in ("postgres", "nats", *self.servers, *self.workers, "client")}
        self._home = folder / "home"
        self._home.mkdir()
        self._log = folder / "log.txt"
        self._postgres = Postgres(folder / "postgres", host=network.address("postgres"), port=POSTGRES_PORT)
        self._nats = Nats(folder / "nats", host=network.address("nats"), port=NATS_PORT)
        self.dsn = self._postgres.dsn()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all processes; stop them at the end of the block."""
        with ExitStack() as stopping:
            for name, server in (("postgres", self._postgres), ("nats", self._nats)):
                self._nodes[name].run(server.start)
                stopping.callback(self._nodes[name].run, server.stop)
            stopping.callback(self._stop)
            for name in self.servers:
                address = self.network.address(name)
                self._start(name, SERVE, NOETL_SERVER_HOST=address, NOETL_SERVER_HOSTS=address)
                self.on_client(self._wait_until_ready, f"http://{address}:{SERVER_PORT}/readyz")
            for number, name in enumerate(self.workers):
                self._start(name, WORK, NOETL_SERVER_URL=self.urls(number), NOETL_TOKEN=self._token)
            yield

    def urls(self, first: int = 0) -> str:
        """The addresses of all servers, beginning with the n-th."""
        turn = first % len(self.servers)
        names = self.servers[turn:] + self.servers[:turn]
        return ",".join(f"http://{self.network.address(name)}:{SERVER_PORT}" for name in names)

    def on_client(self, function: Callable[..., T], *args: object) -> T:
        """Call a function on the node of the client."""
        return self._nodes["client"].run(function, *args)

    def submit(self, number: int, within: float) -> str:
        """Start an execution, trying all servers until one acknowledges it; called on the client's node."""
        deadline = time.monotonic() + within
        for turn in range(1_000_000):
            try:
                with closing(Client(self.urls(number + turn), self._token, timeout=3)) as client:
                    payload = {"dsn": self.dsn, "number": number}
                    return client.submit(content=PLAYBOOK, payload=payload, key=f"nodes-{number}")
            except (StoreUnavailable, OSError) as problem:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"request {number} was not accepted in {within:g} s: {problem}") from problem
        raise AssertionError

    def ended(self) -> list[str]:
        """The components whose process has ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def log_tail(self) -> str:
        """The end of the log of servers and workers."""
        return self._log.read_text(errors="replace")[-2000:]

    @property
    def _token(self) -> str:
        return (self._home / "admin.token").read_text().strip()

    def _start(self, name: str, code: str, **more: str) -> None:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NOETL_")},
            "PYTHONPATH": str(ROOT),
            "NOETL_HOME": str(self._home),
            "NOETL_STORE": self.dsn,
            "NOETL_NATS_URL": self._nats.url,
            "NOETL_SERVER_PORT": str(SERVER_PORT),
            "NOETL_SERVER_LEASE_SECONDS": str(self.lease),
            "NOETL_PRIVATE_NETWORKS": "10.77.0.0/24",
            "NOETL_SLOTS": "8",
            **more,
        }
        with self._log.open("ab") as log:
            self._processes[name] = self._nodes[name].run(
                lambda: subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=log, stderr=log)
            )

    def _stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _wait_until_ready(self, url: str) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if self.ended():
                    break
                time.sleep(0.05)
        raise RuntimeError(f"a server did not start:\n{self.log_tail()}")


class Cut(Struct, frozen=True):
    """A partition: no packets from `senders` to `receivers`, with `both` also not in the other direction."""

    kind: str
    senders: Sequence[str]
    receivers: Sequence[str]
    both: bool = True


class PartitionReport(Struct):
    """The partitions and their results."""

    cuts: Counter[str] = field(default_factory=Counter)
    recovered: float = 0.0  # seconds from the end of the last partition to the end of the last execution
    poisoned: int = 0
    report: OracleReport = field(default_factory=OracleReport)


def draw_cut(cluster: NodeCluster, draw: random.Random, turn: int) -> Cut:
    """A partition: the kinds take turns, the nodes and the direction are drawn."""
    server, worker = draw.choice(cluster.servers), draw.choice(cluster.workers)
    everyone = ["postgres", "nats", *cluster.servers, *cluster.workers, "client"]
    kinds = [
        Cut("server and workers", [server], cluster.workers),
        Cut("server and Postgres", [server], ["postgres"]),
        Cut("server and NATS", [server], ["nats"]),
        Cut("worker and NATS", [worker], ["nats"]),
        Cut("worker to all, one direction", [worker], everyone, both=False),
        Cut("Postgres to server, one direction", ["postgres"], [server], both=False),
        Cut("server to Postgres, one direction", [server], ["postgres"], both=False),
        Cut("server and all others", [server], everyone),
        Cut("worker and all others", [worker], everyone),
        Cut("workers and Postgres", cluster.workers, ["postgres"]),
    ]
    return kinds[turn % len(kinds)]


def partition_while_running(
    cluster: NodeCluster, *, executions: int, cuts: int, loss: float, delay: float, within: float
) -> PartitionReport:
    """Cut nodes off from each other while executions are submitted and run; then every execution must end."""
    draw = random.Random(18)
    done = PartitionReport()
    numbers: dict[str, int] = {}  # request number by execution
    violations: list[str] = []
    lengths = [draw.uniform(0.5, 1.0) if turn % 3 else draw.uniform(1.2, 1.6) for turn in range(cuts)]  # in leases
    cluster.on_client(create_effects_table, cluster.dsn)
    cluster.network.configure(loss=loss, delay=delay)
    pause = sum(lengths) * cluster.lease / executions

    def submit_all() -> None:
        for number in range(executions):
            try:
                found = cluster.submit(number, within)
                if numbers.setdefault(found, number) != number:
                    violations.append(f"{found} was acknowledged for two requests")
            except RuntimeError as problem:
                violations.append(str(problem))
            time.sleep(pause * 0.8)

    submitter = threading.Thread(target=cluster.on_client, args=[submit_all])
    submitter.start()
    for turn, length in enumerate(lengths):
        cut = draw_cut(cluster, draw, turn)
        done.cuts[cut.kind] += 1
        cluster.network.cut(cut.senders, cut.receivers, both=cut.both)
        time.sleep(length * cluster.lease)
        cluster.network.heal()
        time.sleep(draw.uniform(0.2, 1.0))
    healed = time.monotonic()
    submitter.join()
    left = list(numbers)
    while left and time.monotonic() < healed + within:
        still_open = set(cluster.on_client(unfinished, cluster.dsn))
        left = [each for each in left if each in still_open]
        time.sleep(0.2)
    done.recovered = time.monotonic() - healed
    cluster.network.configure(loss=0.0, delay=0.0)
    ids = list(numbers)
    done.report = cluster.on_client(check_executions, cluster.dsn, ids)
    failed = {each for each in ids for what in done.report.violations if each in what and POISON in what}
    done.poisoned = len(failed)
    done.report.violations = [what for what in done.report.violations if POISON not in what] + violations
    done.report.violations += [f"execution {each} did not end within {within:g} s" for each in left]
    done.report.violations += cluster.on_client(
        check_effects, cluster.dsn, executions, {numbers[each] for each in failed}
    )
    done.report.violations += [f"the process of {name} has ended" for name in cluster.ended()]
    return done


def experiment(*, quick: bool) -> Finding:
    """G18, on two servers and four workers."""
    executions, cuts, servers, workers = (20, 10, 2, 2) if quick else (200, 40, 2, 4)
    loss, delay = 0.05, 0.004
    with (
        tempfile.TemporaryDirectory(prefix="noetl-nodes-") as folder,
        NodeNetwork() as network,
    ):
        cluster = NodeCluster(network, Path(folder), servers=servers, workers=workers, lease=LEASE_SECONDS)
        with cluster.running():
            done = partition_while_running(
                cluster, executions=executions, cuts=cuts, loss=loss, delay=delay, within=300.0
            )
    report = done.report
    kinds = "; ".join(f"{count} {kind}" for kind, count in done.cuts.items())
    return Finding(
        part="nodes",
        guarantee="G18",
        target="Partitions, also in one direction, and a packet loss of 5 %: everything ends after healing, nothing "
        "is doubled",
        setup=f"{servers} servers, {workers} workers, Postgres, NATS and a client in network namespaces of their own; "
        f"a packet is delayed by {delay * 500:g} to {delay * 1000:g} ms, and one in {1 / loss:g} is lost; {executions} "
        f"executions of {ITEMS + 2} runs, {ITEMS + 1} of them with a side effect in a database; {cuts} partitions of "
        f"half to one and a half of a lease of {LEASE_SECONDS:g} s.",
        figures={
            "partitions": f"{sum(done.cuts.values())} ({kinds})",
            "successful executions": f"{report.outcomes['success']} of {executions}",
            "effects lost or duplicated": str(sum("effect" in each for each in report.violations)),
            "violations in the logs": str(len(report.violations)),
            "events": f"{report.events:,}",
            "expired leases": f"{report.losses} (and {report.returns} returned, whose order was lost)",
            "time from the end of the last partition to the last end": f"{done.recovered:.1f} s",
        },
        violations=report.violations,
        missed=[f"{done.poisoned} executions failed: one of their runs lost three workers in a row"]
        if done.poisoned
        else [],
    )
