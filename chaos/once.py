"""At most once: processes are killed, stopped, suspended and disconnected while tasks have effects that are counted.

Half of the tasks have `effect: at_most_once`: each may have one effect at most, whatever happens to its worker. The
others are repeated after a lost worker: each attempt number may have one effect at most. A task whose attempt ended as
`ok` must have had its effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chaos.cluster import Cluster as LocalCluster
from chaos.cluster import running_cluster, unfinished
from chaos.findings import Finding
from chaos.kills import POISON
from chaos.network import Proxy
from chaos.single_server import single_server
from noetl.client import Client
from noetl.core.model.events import Recorded, TaskDone, WorkerLost, WorkflowFinished
from noetl.errors import StoreUnavailable
from noetl.storage.factory import open_stores
from noetl.storage.ports.events import ExecutionFilter
from tests.server.http.serving import Cluster
from tests.simulation.log_oracles import check_log, run_of

STORE_CHECKS = ("write-ahead log", "store", "integrity", "checksums", "results")  # the first one only if it fails
TERM = 2.0  # seconds of a lease
ITEMS = 3
KINDS = ("sh", "py", "web")
TASKS = """
      - name: sh
        kind: shell
        command: 'sleep 0.3; printf "%s\\n" "$LINE" >> "$FILE"; sleep 0.3'
        env: {LINE: "{{ workload.number }} MODE.sh {{ iter.item }} {{ _attempt }}", FILE: "{{ workload.file }}"}
        spec: SPEC
      - name: py
        kind: python
        input:
          line: "{{ workload.number }} MODE.py {{ iter.item }} {{ _attempt }}"
          file: "{{ workload.file }}"
        code: |
          import os, time
          time.sleep(0.3)
          with open(file, "ab", buffering=0) as effects:
              effects.write(line.encode() + b"\\n")
          time.sleep(0.3)
          result = 1
        spec: SPEC
      - name: web
        kind: http
        method: POST
        url: "{{ workload.url }}"
        json: {line: "{{ workload.number }} MODE.web {{ iter.item }} {{ _attempt }}"}
        spec: SPEC
"""
ONCE = """{effect: at_most_once, policy: {rules: [
          {when: "{{ output.status == 'error' }}", then: {do: continue}}]}}"""
AGAIN = """{policy: {rules: [
          {when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 60, delay: 0.1}}]}}"""
LOOP = f"loop: {{in: {list(range(ITEMS))}, iterator: item, spec: {{mode: parallel, max_in_flight: {ITEMS}}}}}"
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: once, path: chaos/once}}
workload: {{file: '', url: '', number: 0}}
workflow:
  - step: start
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: once}}, {{step: again}}]}}
  - step: once
    {LOOP}
    tool:{TASKS.replace("MODE", "once").replace("SPEC", ONCE)}
  - step: again
    {LOOP}
    tool:{TASKS.replace("MODE", "again").replace("SPEC", AGAIN)}
"""


class Effects:
    """Where tasks have their effects: a file, and an HTTP server that writes to the same file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "effects.txt"
        self.file.touch()
        lock, file = threading.Lock(), self.file

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                time.sleep(0.3)
                with lock, file.open("a") as effects:
                    effects.write(body["line"] + "\n")
                time.sleep(0.3)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def workload(self, number: int) -> dict[str, object]:
        """The workload of one request."""
        return {"file": str(self.file), "url": self.url, "number": number}

    def close(self) -> None:
        """Stop the HTTP server."""
        self._server.shutdown()
        self._server.server_close()

    def counted(self) -> Counter[tuple[str, str, str, int]]:
        """The effects by request, task, item and attempt."""
        rows = [line.split() for line in self.file.read_text().splitlines()]
        return Counter((number, task, item, int(attempt)) for number, task, item, attempt in rows)


@contextmanager
def counting() -> Iterator[Effects]:
    """The effects of a block."""
    with tempfile.TemporaryDirectory(prefix="noetl-once-") as folder:
        effects = Effects(Path(folder))
        try:
            yield effects
        finally:
            effects.close()


# ── checks ──────────────────────────────────────────────────────────────────────────────


class Outcome:
    """What the logs and the effects of executions say."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.statuses: Counter[str] = Counter()
        self.ambiguous = 0
        self.poisoned = 0  # executions that failed because a run lost three workers in a row
        self.effects = 0
        self.attempts = 0  # of repeated tasks, beyond the first


def check(store: str, effects: Effects, numbers: Mapping[str, int]) -> Outcome:
    """Compare the logs of executions, by the number of their request, with the effects."""
    found = Outcome()
    counted = effects.counted()
    found.effects = counted.total()
    for (number, task, item, attempt), count in counted.items():
        if count > 1:
            found.violations.append(f"request {number}: attempt {attempt} of {task} {item} had {count} effects")
    by_task = Counter[tuple[str, str, str]]()
    for (number, task, item, _), count in counted.items():
        if task.startswith("once."):
            by_task[number, task, item] += count
    found.violations += [
        f"request {each}: {count} effects of {each[1]}" for each, count in by_task.items() if count > 1
    ]
    for execution_id, (status, log) in asyncio.run(_logs(store)).items():
        if execution_id not in numbers:
            continue
        request = numbers[execution_id]
        found.statuses[status] += 1
        found.violations += [f"execution {execution_id}: {each}" for each in check_log(log)]
        if _is_poison(log):
            found.poisoned += 1
        elif status != "success":
            found.violations.append(f"execution {execution_id} (request {request}) ended as {status}")
        for each in log:
            if isinstance(each.body, TaskDone) and each.body.task in KINDS:
                _check_task(found, counted, request, each.body)
    missing = set(numbers) - set(asyncio.run(_logs(store)))
    found.violations += [f"execution {each} was acknowledged but does not exist" for each in missing]
    return found


def _is_poison(log: Sequence[Recorded]) -> bool:
    """Whether an execution failed because one of its runs lost three workers in a row, which rule 5 demands."""
    lost: Counter[str] = Counter()
    for each in log:
        body = each.body
        if isinstance(body, WorkerLost):
            lost[run_of(body)] += not body.returned
        elif isinstance(body, TaskDone):
            lost[run_of(body)] = 0
        elif isinstance(body, WorkflowFinished) and body.error is not None:
            return POISON in body.error.message and max(lost.values(), default=0) >= 3
    return False


def _check_task(found: Outcome, counted: Mapping[tuple[str, str, str, int], int], number: int, body: TaskDone) -> None:
    name, item = f"{body.step}.{body.task}", str(body.path[-1])
    error = body.outcome.error
    if error is not None and error.kind == "ambiguous":
        found.ambiguous += 1
    found.attempts += body.attempt > 1
    if body.outcome.status == "ok" and not counted.get((str(number), name, item, body.attempt)):
        found.violations.append(f"request {number}: attempt {body.attempt} of {name} {item} is ok without an effect")


async def _logs(store: str) -> dict[str, tuple[str, list[Recorded]]]:
    events, _ = open_stores(store)
    try:
        listed = await events.executions(ExecutionFilter(limit=100_000))
        return {each.execution_id: (each.status, await events.read(each.execution_id)) for each in listed}
    finally:
        await events.close()


def doctor(environ: Mapping[str, str]) -> list[str]:
    """The problems of the store that `noetl doctor --verify` reports."""
    command = [sys.executable, "-m", "noetl", "doctor", "--verify", "--json"]
    ran = subprocess.run(command, env=dict(environ), capture_output=True, timeout=300)
    found = {each["check"]: each for each in json.loads(ran.stdout) if each["check"] in STORE_CHECKS}
    missing = [f"doctor: no check {name}" for name in STORE_CHECKS[1:] if name not in found]
    return missing + [f"doctor: {each}" for each in found.values() if each["status"] == "failed"]


# ── faults ──────────────────────────────────────────────────────────────────────────────


def _suspend(pid: int, seconds: float) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class SingleServer:
    """One server on SQLite; each worker has its own proxy."""

    def __init__(self, cluster: Cluster, workers: int, draw: random.Random) -> None:
        self.cluster, self._draw = cluster, draw
        self._direct = cluster.url
        self.proxies = [Proxy(cluster.port, delay=0.0, cut=0.0, seed=number) for number in range(workers)]
        self.workers: list[subprocess.Popen[bytes]] = []
        for proxy in self.proxies:
            proxy.start()
            self.workers.append(self._start(proxy))

    def _start(self, proxy: Proxy) -> subprocess.Popen[bytes]:
        self.cluster.environ["NOETL_SERVER_URL"] = f"http://127.0.0.1:{proxy.port}"
        return self.cluster.start_worker()

    def _restart(self, number: int) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.workers[number].wait(20)
        self.workers[number] = self._start(self.proxies[number])

    def fault(self) -> str:
        """Inject one fault, and start again what has ended; returns its name."""
        name = self._draw.choices(
            ("worker SIGKILL", "worker SIGTERM", "worker suspended", "worker disconnected", "server SIGKILL",
             "server SIGTERM", "server suspended"), (6, 4, 5, 5, 2, 1, 1)
        )[0]  # fmt: skip
        number, seconds = self._draw.randrange(len(self.workers)), self._draw.uniform(0.5, 1.8) * TERM
        server = self.cluster.server
        assert server is not None
        worker = self.workers[number]
        if name == "worker SIGKILL":
            worker.kill()
            self._restart(number)
        elif name == "worker SIGTERM":
            worker.terminate()
            self._restart(number)
        elif name == "worker suspended":
            _suspend(worker.pid, seconds)
        elif name == "worker disconnected":
            self.proxies[number].disconnect()
            time.sleep(seconds)
            self.proxies[number].reconnect()
        elif name == "server suspended":
            _suspend(server.pid, seconds)
        else:
            (server.kill if name == "server SIGKILL" else server.terminate)()
            server.wait()
            self.cluster.start_server()
        return name

    def close(self) -> None:
        """Stop the workers and proxies."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(30)
        for proxy in self.proxies:
            proxy.stop()


class TwoServers:
    """Two servers, workers, Postgres and NATS."""

    def __init__(self, cluster: LocalCluster, draw: random.Random) -> None:
        self.cluster, self._draw = cluster, draw

    def fault(self) -> str:
        """Inject one fault; the cluster starts again what has ended. Returns its name."""
        kind = self._draw.choices(("worker", "server", "nats"), (7, 3, 1))[0]
        names = [name for name in self.cluster.pids() if name.startswith(kind)]
        how = self._draw.choices(("SIGKILL", "SIGTERM", "suspended"), (4, 3, 4))[0]
        if not names or len(self.cluster.ready_components()) < self.cluster.count - 2:
            time.sleep(0.3)
            return ""
        name = self._draw.choice(names)
        if how == "suspended":
            pid = self.cluster.pids().get(name)
            if pid is not None:
                _suspend(pid, self._draw.uniform(0.5, 1.8) * TERM)
        else:
            self.cluster.send(name, signal.Signals[how])
        return f"{kind} {how}"


def inject(
    fault: Callable[[], str], submit: Callable[[int], str], faults: int, executions: int, draw: random.Random
) -> tuple[Counter[str], dict[str, int]]:
    """Inject faults one after the other, while executions are requested; the faults, and the requests by execution."""
    numbers: dict[str, int] = {}
    done: Counter[str] = Counter()
    stopping = threading.Event()

    def request() -> None:
        for number in range(executions):
            while len(numbers) > 6 + done.total() * executions / max(1, faults) and not stopping.is_set():
                time.sleep(0.05)
            if failed.is_set():
                return
            numbers[submit(number)] = number

    failed = threading.Event()
    thread = threading.Thread(target=request)
    thread.start()
    deadline = time.monotonic() + 20 * faults
    try:
        while done.total() < faults and time.monotonic() < deadline:
            name = fault()
            if name:
                done[name] += 1
            time.sleep(draw.uniform(0.05, 0.6))
    except BaseException:
        failed.set()
        raise
    finally:
        stopping.set()
        thread.join()
    return done, numbers


def _submitter(urls: Callable[[], Sequence[str]], token: Callable[[], str], effects: Effects) -> Callable[[int], str]:
    def submit(number: int) -> str:
        deadline = time.monotonic() + 120
        while True:
            try:
                with Client(",".join(urls()), token(), timeout=10) as client:
                    return client.submit(content=PLAYBOOK, payload=effects.workload(number), key=f"once-{number}")
            except (StoreUnavailable, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    return submit


# ── experiments ─────────────────────────────────────────────────────────────────────────


def experiment(*, quick: bool, seed: int = 1) -> Finding:
    """One server on SQLite, workers behind proxies."""
    faults, executions = (12, 20) if quick else (200, 200)
    draw = random.Random(seed)
    with counting() as effects, single_server(
        workers=0, NOETL_SLOTS="4", NOETL_SERVER_LEASE_SECONDS=f"{TERM:g}"
    ) as cluster:  # fmt: skip
        single = SingleServer(cluster, 4, draw)
        try:
            submit = _submitter(lambda: [cluster.url], lambda: cluster.token, effects)
            done, numbers = inject(single.fault, submit, faults, executions, draw)
            for each in numbers:
                cluster.finished(each, 240)
        finally:
            single.close()
        cluster.stop()
        found = check(str(cluster.home / "noetl.db"), effects, numbers)
        found.violations += doctor({**cluster.environ, "NOETL_SERVER_URL": ""})
    return _finding(
        "once", "One server on SQLite, 4 workers over HTTP, each behind a proxy", done, found, executions, seed
    )


def cluster(*, quick: bool, seed: int = 1) -> Finding:
    """Two servers on Postgres with NATS."""
    faults, executions = (10, 15) if quick else (200, 200)
    draw = random.Random(seed)
    settings = {"NOETL_SLOTS": "4", "NOETL_SERVER_LEASE_SECONDS": f"{TERM:g}"}
    with counting() as effects, running_cluster(workers=4, **settings) as local:
        two = TwoServers(local, draw)
        submit = _submitter(lambda: local.urls, lambda: local.token, effects)
        done, numbers = inject(two.fault, submit, faults, executions, draw)
        left = local.unfinished(list(numbers), 300)
        found = check(local.dsn, effects, numbers)
        found.violations += [f"execution {each} did not end" for each in left]
        found.violations += doctor({**local.environ, "NOETL_STORE": local.dsn, "NOETL_SERVER_URL": ""})
    setup = "`python -m devcluster start` (2 servers, 4 workers, Postgres, NATS)"
    return _finding("once-cluster", setup, done, found, executions, seed)


def embedded(*, quick: bool, seed: int = 1) -> Finding:
    """`noetl run` that is killed, stopped or suspended, and `noetl resume`."""
    runs = 4 if quick else 60
    draw = random.Random(seed)
    done: Counter[str] = Counter()
    with counting() as effects, tempfile.TemporaryDirectory(prefix="noetl-run-") as folder:
        home = Path(folder)
        store = f"sqlite://{home / 'noetl.db'}"
        (home / "once.yaml").write_text(PLAYBOOK)
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NOETL_")},
            "NOETL_HOME": folder,
            "NOETL_PRIVATE_NETWORKS": "127.0.0.0/8",
        }

        def start(*words: str) -> subprocess.Popen[bytes]:
            quiet = subprocess.DEVNULL
            return subprocess.Popen([sys.executable, "-m", "noetl", *words], env=environ, stdout=quiet, stderr=quiet)

        for number in range(runs):
            sets = [f"--set={name}={value}" for name, value in effects.workload(number).items()]
            _interrupt(start("run", str(home / "once.yaml"), *sets), effects, draw, done)
            for _ in range(draw.randrange(5)):
                for each in unfinished(store)[-1:]:
                    _interrupt(start("resume", each), effects, draw, done)
        for each in unfinished(store):
            start("resume", each).wait(300)
        numbers = asyncio.run(_numbers(store))
        found = check(store, effects, numbers)
        found.violations += doctor(environ)
    # A process that gets SIGTERM cancels its execution.
    found.violations = [each for each in found.violations if not each.endswith("ended as cancelled")]
    return _finding("once-run", "`noetl run`, interrupted, then `noetl resume`", done, found, len(numbers), seed)


def _interrupt(process: subprocess.Popen[bytes], effects: Effects, draw: random.Random, done: Counter[str]) -> None:
    """Interrupt a process after some effects, or early."""
    name = draw.choices(("SIGKILL", "SIGTERM", "suspended"), (8, 1, 2))[0]
    wanted = draw.randrange(7)
    if wanted:
        until, deadline = effects.counted().total() + wanted, time.monotonic() + 60
        while process.poll() is None and effects.counted().total() < until and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(draw.uniform(0.0, 0.4))
    else:
        time.sleep(draw.uniform(0.4, 3.0))
    if process.poll() is None:
        done[f"noetl {name}"] += 1
        if name == "suspended":
            _suspend(process.pid, draw.uniform(0.5, 3))
        else:
            process.send_signal(signal.Signals[name])
    process.wait(120)


async def _numbers(store: str) -> dict[str, int]:
    """The request of each execution, from its log."""
    return {each: log[0].body.payload["number"] for each, (_, log) in (await _logs(store)).items()}  # type: ignore[attr-defined]


def _finding(part: str, setup: str, done: Counter[str], found: Outcome, executions: int, seed: int) -> Finding:
    return Finding(
        part=part,
        guarantee="rules 5, 6",
        target="Random faults: a task with `at_most_once` has one effect at most, an attempt number one effect at most",
        setup=f"{setup}, leases of {TERM:g} s, seed {seed}; {executions} executions with {2 * ITEMS * len(KINDS)} "
        "effects of shell, python and http tasks, half of them with `at_most_once`; then `noetl doctor --verify`.",
        figures={
            "faults": f"{done.total()} ({', '.join(f'{count} {name}' for name, count in sorted(done.items()))})",
            "executions": ", ".join(f"{count} {name}" for name, count in sorted(found.statuses.items())),
            "effects": f"{found.effects:,}",
            "tasks that ended as `ambiguous`": str(found.ambiguous),
            "repeated attempts": str(found.attempts),
            "executions that failed after three lost workers in a row (rule 5)": str(found.poisoned),
            "violations": str(len(found.violations)),
        },
        violations=found.violations,
    )
