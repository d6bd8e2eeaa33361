"""A cluster on this machine: Postgres, NATS, servers and workers, started in order and restarted when they end.

One supervisor process runs the others. It restarts a process that ends, as the supervisor of a real cluster does, so
any of them may be killed and all executions still finish. Data is stored in `NOETL_HOME/cluster` and survives a
restart. `python -m devcluster` is the command for it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from devcluster.servers import Nats, Postgres, Server, accepts_connections, environment
from noetl.errors import Conflict, NoetlError, RequestRefused, StoreUnavailable
from noetl.runtime.process_table import ProcessEntry, ProcessTable, Readiness, readiness, wait_ready

if TYPE_CHECKING:
    from noetl.settings import Settings

PREFIX = "cluster-"
SUPERVISOR = "cluster"  # the name of the process that runs the others
CHECK_SECONDS = 0.1
MAX_RESTART_DELAY = 2.0
START_SECONDS = 120.0
STOP_SECONDS = 60.0
WORKERS_SECONDS = 60.0  # for workers to request work after the servers are ready

Report = Callable[[str], None]


class ClusterProcess:
    """One process of the cluster: how it is started, and whether it has to be restarted."""

    def __init__(self, name: str, address: str, log: Path, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.name = PREFIX + name
        self.address = address
        self._log = log
        self._start = start
        self.process: subprocess.Popen[bytes] | None = None
        self._delay = 0.0
        self._not_before = 0.0

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def start(self, table: ProcessTable) -> None:
        """Start it and record it in the process table."""
        self.process = self._start()
        table.record(self.name, self.process.pid, str(self._log), self.address)

    def restart_if_ended(self, table: ProcessTable, report: Report) -> None:
        """Restart it when it has ended; the delay grows while it keeps ending."""
        if self.process is None or self.is_running or time.monotonic() < self._not_before:
            return
        name = self.name.removeprefix(PREFIX)
        report(f"{name} ended ({_ending(self.process.returncode)}); restarting it")
        try:
            self.start(table)
        except (RuntimeError, OSError) as problem:
            report(f"{name} did not start: {str(problem).splitlines()[0]}")
        self._delay = min(max(0.1, 2 * self._delay), MAX_RESTART_DELAY)
        self._not_before = time.monotonic() + self._delay
        if self._delay == MAX_RESTART_DELAY and self.is_running:
            self._delay = 0.0

    def stop(self, signum: int, seconds: float) -> None:
        """Send it a signal and wait for its end; kill it after `seconds`."""
        if self.process is None or not self.is_running:
            return
        self.process.send_signal(signum)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LocalCluster:
    """Postgres, NATS, servers and workers of one `NOETL_HOME`."""

    def __init__(self, settings: Settings, *, servers: int, workers: int, report: Report) -> None:
        self._home = home = settings.home
        self._table = ProcessTable(home)
        self._report: Report = lambda message: report(f"{time.strftime('%H:%M:%S')} {message}")
        folder = home / "cluster"
        passwords = _passwords(folder)
        self.postgres = Postgres(folder / "postgres", durable=True, password=passwords["postgres"], keep=True)
        self.nats = Nats(folder / "nats", token=passwords["nats"])
        host, ports = settings.server_host, range(settings.server_port, settings.server_port + servers)
        self.urls = [f"http://{host}:{port}" for port in ports]
        for port in filter(accepts_connections, ports):
            raise Conflict(f"port {port} is in use; --port chooses another one")
        self.environ = {
            "NOETL_HOME": str(home),
            "NOETL_STORE": self.postgres.dsn(),
            "NOETL_NATS_URL": self.nats.url,
            "NOETL_SERVER_HOST": host,
            "NOETL_DETACHED": "1",
        }
        self.processes = [
            *(
                ClusterProcess(each.kind, f"127.0.0.1:{each.port}", each.folder / "server.log", partial(_start, each))
                for each in (self.postgres, self.nats)
            ),
            *(self._server(number, url) for number, url in enumerate(self.urls, start=1)),
            *(self._worker(number) for number in range(1, workers + 1)),
        ]

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run the cluster until SIGINT or SIGTERM; `on_ready` is called when every worker has requested work."""
        signals: list[int] = []

        def stop(signum: int, _: object) -> None:
            signals.append(signum)
            if len(signals) > 2:
                raise KeyboardInterrupt

        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, stop)
        try:
            self._table.record(SUPERVISOR, os.getpid())
            self.start()
            self.supervise(lambda: bool(signals), on_ready)
        except RuntimeError as problem:
            raise RequestRefused(str(problem)) from None
        finally:
            self.stop()

    def start(self) -> None:
        """Start all processes in order; the servers are ready when this returns."""
        from noetl.server.http.access import Tokens

        Tokens.prepare(self._home)  # once, before several servers do it at the same time
        for each in self.processes:
            each.start(self._table)
            if each.address.startswith("http"):
                wait_ready(each.address, lambda each=each: each.is_running)  # type: ignore[misc]

    def supervise(self, is_stopped: Callable[[], bool], on_ready: Callable[[], None]) -> None:
        """Restart processes that end until `is_stopped`; one thread per process, because some start slowly."""

        def check(process: ClusterProcess) -> None:
            while not is_stopped():
                process.restart_if_ended(self._table, self._report)
                time.sleep(CHECK_SECONDS)

        threads = [threading.Thread(target=check, args=[each]) for each in self.processes]
        for thread in threads:
            thread.start()
        self._wait_for_workers(is_stopped)
        if not is_stopped():
            on_ready()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Stop the workers, then the servers, then NATS and Postgres."""
        for kind in ("-worker-", "-server-"):
            group = [each for each in self.processes if kind in each.name]
            for each in group:
                if each.process is not None and each.is_running:
                    each.process.send_signal(signal.SIGTERM)
            for each in group:
                each.stop(0, STOP_SECONDS)
        for each in (self.processes[1], self.processes[0]):
            each.stop(_stop_signal(each.name), STOP_SECONDS)

    def _wait_for_workers(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until every worker has requested work; one that does not in time is reported."""
        deadline = time.monotonic() + WORKERS_SECONDS
        while not is_stopped() and (missing := workers_without_request(self._home, members(self._table))):
            if time.monotonic() > deadline:
                names = ", ".join(each.name.removeprefix(PREFIX) for each in missing)
                self._report(f"{names} did not request work within {WORKERS_SECONDS:.0f} s; see {missing[0].log}")
                return
            time.sleep(0.05)

    def _server(self, number: int, url: str) -> ClusterProcess:
        port = url.rpartition(":")[2]
        name = f"server-{number}"
        start = partial(self._spawn, name, ["server", "start"], {"NOETL_SERVER_PORT": port})
        return ClusterProcess(name, url, self._table.log_of(PREFIX + name), start)

    def _worker(self, number: int) -> ClusterProcess:
        # Each starts with another server, so that the load is shared when there is no NATS.
        first = number % len(self.urls)
        urls = ",".join(self.urls[first:] + self.urls[:first])
        name = f"worker-{number}"
        start = partial(self._spawn, name, ["worker", "start"], {"NOETL_SERVER_URL": urls}, is_worker=True)
        return ClusterProcess(name, "", self._table.log_of(PREFIX + name), start)

    def _spawn(
        self, name: str, arguments: list[str], environ: dict[str, str], *, is_worker: bool = False
    ) -> subprocess.Popen[bytes]:
        from noetl.server.http.access import local_worker_token

        command = [sys.executable, "-m", "noetl.clictl", *arguments]
        own = dict(self.environ)
        if is_worker:  # tasks run as its user: it gets neither the database nor an admin's token
            own |= {"NOETL_TOKEN": local_worker_token(self._home)}
            del own["NOETL_STORE"]
        with self._table.log_of(PREFIX + name).open("ab") as log:
            return subprocess.Popen(
                command,
                env={**environment(), **own, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )


class MemberStatus(NamedTuple):
    """A running process of the cluster and its readiness."""

    name: str
    entry: ProcessEntry
    readiness: Readiness


def is_running(home: Path) -> bool:
    """Whether a supervisor runs."""
    return ProcessTable(home).find(SUPERVISOR) is not None


def members(table: ProcessTable) -> list[ProcessEntry]:
    """The running processes of a cluster, in the order in which they are started."""
    order = ("postgres", "nats", "server", "worker")
    return sorted(table.members(PREFIX), key=lambda member: order.index(member.name.split("-")[1]))


def status(home: Path) -> list[MemberStatus]:
    """The running processes and whether each of them is ready."""
    found = members(ProcessTable(home))
    waiting = workers_without_request(home, found)

    def ready(member: ProcessEntry) -> Readiness:
        if member in waiting:
            return Readiness(False, ["has not requested work"], [])
        return readiness(member.url) if member.url.startswith("http") else Readiness(True, [], [])

    return [MemberStatus(member.name.removeprefix(PREFIX), member, ready(member)) for member in found]


def workers_without_request(home: Path, found: Sequence[ProcessEntry]) -> list[ProcessEntry]:
    """The workers among these processes from which no server has received a request for work."""
    from noetl.client import Client
    from noetl.server.http.access import admin_token

    workers = [each for each in found if each.name.startswith(f"{PREFIX}worker-")]
    known: list[str] = []
    for url in [each.url for each in found if each.url.startswith("http")] if workers else ():
        with suppress(NoetlError), Client(url, admin_token(home), timeout=5) as client:
            known += [each["worker"] for each in client.workers()]
    host = socket.gethostname()
    return [each for each in workers if not any(name.startswith(f"{host}-{each.pid}-") for name in known)]


def start_in_background(settings: Settings, *, servers: int, workers: int) -> None:
    """Start a supervisor in the background and return when all processes are ready."""
    table = ProcessTable(settings.home)
    log = table.log_of(SUPERVISOR)
    command = [sys.executable, "-m", "devcluster", "start", "--port", str(settings.server_port)]
    command += ["--servers", str(servers), "--workers", str(workers)]
    environ = {**environment(), "NOETL_DETACHED": "1"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    supervisor = table.record(SUPERVISOR, process.pid, str(log))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and table.is_alive(supervisor):
        found = status(settings.home)
        if len(found) == servers + workers + 2 and all(each.readiness.ready for each in found):
            return
        time.sleep(CHECK_SECONDS)
    last_lines = table.last_lines(supervisor, 15)
    if table.is_alive(supervisor):
        table.stop(supervisor)
    raise StoreUnavailable(f"the cluster did not start; its log {supervisor.log} ends with:\n{last_lines}")


def stop_supervisor(home: Path) -> bool:
    """Stop the supervisor and with it the cluster; False when it had to be killed."""
    table = ProcessTable(home)
    supervisor = table.find(SUPERVISOR)
    return supervisor is None or table.stop(supervisor, 2 * STOP_SECONDS)


def stop_orphans(table: ProcessTable) -> int:
    """Stop processes that a killed supervisor has left; return how many."""
    orphans = members(table)[::-1]
    for member in orphans:
        table.stop(member, signum=_stop_signal(member.name))
    return len(orphans)


def delete_data(home: Path) -> None:
    """Delete the data of Postgres and NATS."""
    folder = home / "cluster"
    if folder.exists():
        shutil.rmtree(Postgres(folder / "postgres", keep=True).home, ignore_errors=True)
        shutil.rmtree(folder)


def _start(server: Server) -> subprocess.Popen[bytes]:
    server.start()
    assert server.process is not None
    return server.process


def _stop_signal(name: str) -> signal.Signals:
    """The signal that stops a process cleanly: at SIGTERM Postgres waits for its clients, at SIGINT it does not."""
    return signal.SIGINT if name == f"{PREFIX}postgres" else signal.SIGTERM


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _passwords(folder: Path) -> dict[str, str]:
    """The passwords of Postgres and NATS, generated at the first start, readable by the owner only."""
    file = folder / "secrets.json"
    try:
        known: dict[str, str] = json.loads(file.read_text())
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        known = {"postgres": secrets.token_urlsafe(24), "nats": secrets.token_urlsafe(24)}
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(known, stream)
    except ValueError as problem:
        raise RequestRefused(f"{file} is corrupt ({problem}); delete {folder} to start an empty cluster") from None
    return known
