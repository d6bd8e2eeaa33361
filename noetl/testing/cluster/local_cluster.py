"""A whole cluster on this machine: Postgres, NATS, servers and workers, started in order and kept alive.

One process holds the others. What dies is started again, as a real cluster's supervisor would: so anything may be
killed, and everything still finishes. Data stays below `NOETL_HOME/cluster` from one start to the next.
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

from noetl.errors import Conflict, NoetlError, RequestRefused
from noetl.runtime.process_table import ProcessEntry, ProcessTable, wait_ready
from noetl.testing.cluster.servers import Nats, Postgres, Server, answers

PREFIX = "cluster-"
HOLDER = "cluster"  # the process that holds the others
LOOK_SECONDS = 0.1
LONGEST_PAUSE = 2.0  # between two starts of something that does not stay up
STOP_SECONDS = 60.0
WORKERS_SECONDS = 60.0  # that workers have to ask for work after the servers are ready

Say = Callable[[str], None]


class Part:
    """One process of the cluster: how it is started, and what became of it."""

    def __init__(self, name: str, address: str, log: Path, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self.name = PREFIX + name
        self.address = address
        self._log = log
        self._start = start
        self.process: subprocess.Popen[bytes] | None = None
        self._pause = 0.0
        self._not_before = 0.0

    def start(self, fleet: ProcessTable) -> None:
        """Start it, and write it down."""
        self.process = self._start()
        fleet.record(self.name, self.process.pid, str(self._log), self.address)

    def look(self, fleet: ProcessTable, say: Say) -> None:
        """Start it again when it has died; one that keeps dying is given more and more time."""
        if self.process is None or self.process.poll() is None or time.monotonic() < self._not_before:
            return
        code = self.process.returncode
        say(f"{self.name.removeprefix(PREFIX)} ended ({_ending(code)}); starting it again")
        try:
            self.start(fleet)
        except (RuntimeError, OSError) as problem:
            say(f"{self.name.removeprefix(PREFIX)} did not start: {str(problem).splitlines()[0]}")
        self._pause = min(max(0.1, 2 * self._pause), LONGEST_PAUSE)
        self._not_before = time.monotonic() + self._pause
        if self._pause == LONGEST_PAUSE and self.process.poll() is None:
            self._pause = 0.0

    def stop(self, signum: int, seconds: float) -> None:
        """Ask it to end, and see that it did."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signum)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LocalCluster:
    """Postgres, NATS, so many servers and workers of one `NOETL_HOME`."""

    def __init__(self, home: Path, *, host: str, port: int, servers: int, workers: int, say: Say) -> None:
        self._home = home
        self._fleet = ProcessTable(home)
        self._say: Say = lambda words: say(f"{time.strftime('%H:%M:%S')} {words}")
        folder = home / "cluster"
        known = _secrets(folder)
        self.postgres = Postgres(folder / "postgres", durable=True, password=known["postgres"], keep=True)
        self.nats = Nats(folder / "nats", token=known["nats"])
        self.urls = [f"http://{host}:{port + number}" for number in range(servers)]
        for url in self.urls:
            number = int(url.rpartition(":")[2])
            if answers(number):
                raise Conflict(f"port {number} is in use; --port chooses another one")
        self.environ = {
            "NOETL_HOME": str(home),
            "NOETL_STORE": self.postgres.dsn(),
            "NOETL_NATS_URL": self.nats.url,
            "NOETL_SERVER_HOST": host,
            "NOETL_DETACHED": "1",
        }
        self.parts = [
            *(
                Part(each.kind, f"127.0.0.1:{each.port}", each.folder / "server.log", partial(_started, each))
                for each in (self.postgres, self.nats)
            ),
            *(self._server(number, url) for number, url in enumerate(self.urls, start=1)),
            *(self._worker(number) for number in range(1, workers + 1)),
        ]

    def start(self) -> None:
        """Start everything in order; the servers are ready when this returns."""
        from noetl.server.http.access import Tokens

        Tokens.prepare(self._home)  # before two servers do it side by side
        for part in self.parts:
            part.start(self._fleet)
            if part.address.startswith("http"):
                process = part.process
                assert process is not None
                wait_ready(part.address, lambda process=process: process.poll() is None)  # type: ignore[misc]

    def _wait_for_workers(self, stopped: Callable[[], bool]) -> None:
        """Until every worker has asked a server for work; who does not come in time is told of and not waited for."""
        deadline = time.monotonic() + WORKERS_SECONDS
        while not stopped() and (missing := absent(self._home, members(self._fleet))):
            if time.monotonic() > deadline:
                names = ", ".join(each.name.removeprefix(PREFIX) for each in missing)
                self._say(f"{names} did not ask for work within {WORKERS_SECONDS:.0f} s; {missing[0].log} may say why")
                return
            time.sleep(0.05)

    def keep(self, stopped: Callable[[], bool], ready: Callable[[], None]) -> None:
        """Start again what dies, until told to stop; each part by itself, since some take their time to start.

        `ready` is called when the workers have come."""

        def keep(part: Part) -> None:
            while not stopped():
                part.look(self._fleet, self._say)
                time.sleep(LOOK_SECONDS)

        keeping = [threading.Thread(target=keep, args=[part]) for part in self.parts]
        for thread in keeping:
            thread.start()
        self._wait_for_workers(stopped)
        if not stopped():
            ready()
        for thread in keeping:
            thread.join()

    def stop(self) -> None:
        """Workers first, then servers, then what they need."""
        groups = [
            [part for part in self.parts if "-worker-" in part.name],
            [part for part in self.parts if "-server-" in part.name],
        ]
        for group in groups:
            for part in group:
                if part.process is not None and part.process.poll() is None:
                    part.process.send_signal(signal.SIGTERM)
            for part in group:
                part.stop(0, STOP_SECONDS)
        for part in (self.parts[1], self.parts[0]):
            part.stop(_signal_of(part.name), STOP_SECONDS)

    def _server(self, number: int, url: str) -> Part:
        port = url.rpartition(":")[2]
        name = f"server-{number}"
        start = partial(self._spawn, name, ["server", "start"], {"NOETL_SERVER_PORT": port})
        return Part(name, url, self._fleet.log_of(PREFIX + name), start)

    def _worker(self, number: int) -> Part:
        # Each begins with another server, so that they share the load when there is no NATS.
        at = number % len(self.urls)
        urls = ",".join(self.urls[at:] + self.urls[:at])
        name = f"worker-{number}"
        start = partial(self._spawn, name, ["worker", "start"], {"NOETL_SERVER_URL": urls})
        return Part(name, "", self._fleet.log_of(PREFIX + name), start)

    def _spawn(self, name: str, words: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        from noetl.server.http.access import admin_token

        command = [sys.executable, "-m", "noetl.clictl", *words]
        token = {"NOETL_TOKEN": admin_token(self._home) or ""}
        with self._fleet.log_of(PREFIX + name).open("ab") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **self.environ, **token, **environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )


def members(fleet: ProcessTable) -> list[ProcessEntry]:
    """The living processes of a cluster, in the order in which they are started."""
    order = ("postgres", "nats", "server", "worker")
    return sorted(fleet.members(PREFIX), key=lambda member: order.index(member.name.split("-")[1]))


def absent(home: Path, parts: Sequence[ProcessEntry]) -> list[ProcessEntry]:
    """The workers among these parts that no server of theirs has been asked for work by."""
    from noetl.client import Client
    from noetl.server.http.access import admin_token

    workers = [each for each in parts if each.name.startswith(f"{PREFIX}worker-")]
    asked: list[str] = []
    for url in [each.url for each in parts if each.url.startswith("http")] if workers else ():
        with suppress(NoetlError), Client(url, admin_token(home), timeout=5) as client:
            asked += [each["worker"] for each in client.workers()]
    host = socket.gethostname()
    return [each for each in workers if not any(name.startswith(f"{host}-{each.pid}-") for name in asked)]


def stop_left_over(fleet: ProcessTable) -> int:
    """Stop what a holder that died has left; how many."""
    left = members(fleet)[::-1]
    for member in left:
        fleet.stop(member, signum=_signal_of(member.name))
    return len(left)


def forget(home: Path) -> None:
    """Delete what Postgres and NATS have kept; the next start begins with an empty cluster."""
    folder = home / "cluster"
    if folder.exists():
        shutil.rmtree(Postgres(folder / "postgres", keep=True).home, ignore_errors=True)
        shutil.rmtree(folder)


def _started(server: Server) -> subprocess.Popen[bytes]:
    """A service, started and answering."""
    server.start()
    assert server.process is not None
    return server.process


def _signal_of(name: str) -> signal.Signals:
    """What ends a process in good order: Postgres waits for its clients at SIGTERM, at SIGINT it does not."""
    return signal.SIGINT if name == f"{PREFIX}postgres" else signal.SIGTERM


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _secrets(folder: Path) -> dict[str, str]:
    """The passwords of this cluster's services, made at its first start and kept for its owner alone."""
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
        raise RequestRefused(f"{file} is damaged ({problem}); remove {folder} to begin with an empty cluster") from None
    return known
