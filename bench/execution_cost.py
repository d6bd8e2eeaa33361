"""`python -m bench profile`: CPU time of an execution by station, in a deployment of processes, with a flame graph.

Executions of three noop steps run on a server with two workers and Postgres (`--deployment two`: two servers, four
workers, NATS) while every process samples its own stacks. The CPU time of each process, from the operating system, is
divided by its samples. Writes the table into docs/explanation/cost-of-an-execution.md and the picture beside it.
`--embedded w4` (or w1, w3) prints the table of a workload of the embedded engine instead.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import psutil
from msgspec import Struct

from bench import flame_graph
from bench.server_workloads import DEPLOYMENTS, SERVE, ApiClient, ServerProcesses
from bench.workloads import chain
from devcluster import services

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "cost-of-an-execution.md"
BEGIN, END = "<!-- measured by `python -m bench profile` -->", "<!-- end -->"

# Station by the beginning of a module; of a stack, the innermost frame that is listed counts.
STATIONS: tuple[tuple[str, str], ...] = (
    ("noetl/server/http/streams", "event stream"),
    ("noetl/storage/events/log_tail", "event stream"),
    ("noetl/server/http/routes/executions", "event stream"),
    ("noetl/core/model/events", "event stream and events"),
    ("noetl/server/http/routes/worker_protocol", "claims and reports"),
    ("noetl/server/dispatch", "claims and reports"),
    ("noetl/transport", "transport"),
    ("noetl/server/http", "HTTP: security, log, routes"),
    ("fastapi", "HTTP: framework"),
    ("starlette", "HTTP: framework"),
    ("uvicorn", "HTTP: protocol"),
    ("aiohttp", "HTTP: client"),
    ("noetl/connections/http", "HTTP: client"),
    ("nats", "NATS client"),
    ("noetl/core/engine", "engine"),
    ("noetl/core/pipeline", "pipeline"),
    ("noetl/core/templates", "templates"),
    ("noetl/core", "engine"),
    ("noetl/server/read_models", "summaries"),
    ("noetl/server", "orchestrator"),
    ("noetl/storage", "append and queue"),
    ("asyncpg", "append and queue"),
    ("noetl/worker", "worker"),
    ("noetl/tools", "tools"),
    ("noetl/observability", "metrics and logs"),
    ("logging", "metrics and logs"),
    ("asyncio", "event loop"),
    ("uvloop", "event loop"),
)
OTHER = "event loop and others"


class Profile(Struct, frozen=True):
    """CPU milliseconds for each execution by role and station, and the stacks."""

    deployment: str
    executions: int
    seconds: float
    cost: dict[tuple[str, str], float]
    stacks: dict[flame_graph.Stack, int]


class _SampledProcesses(ServerProcesses):
    def _start(self, code: str, **more: str) -> None:
        role = "server" if code == SERVE else "worker"
        file = self._log.parent / f"{role}-{len(self.processes)}.stacks"
        super()._start(f"from bench import sampling; sampling.start({str(file)!r}); {code}", **more)


EMBEDDED = """
import os, signal, sys
from pathlib import Path
from bench import sampling
sampling.start(sys.argv[2])
from bench.workloads import cases
from noetl.embedded import open_local
from noetl.runtime import event_loop
async def main():
    case = cases(sys.argv[1], True)[0]
    home = Path(sys.argv[2]).parent
    async with await open_local(home=home / "home", store=str(home / "engine.db")) as engine:
        await case.engine(engine)
        event_loop.freeze_gc()
        os.kill(os.getpid(), signal.SIGUSR1)
        before = os.times()
        for _ in range(int(sys.argv[3])):
            await case.engine(engine)
        after = os.times()
        print(after.user + after.system - before.user - before.system, case.count, case.what)
event_loop.run(main())
"""


def profile_embedded(workload: str, rounds: int, folder: Path) -> str:
    """The cost table of a workload of the embedded engine."""
    file = folder / "embedded.stacks"
    command = [sys.executable, "-c", EMBEDDED, workload, str(file), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    spent, count, what = done.stdout.split(maxsplit=2)
    found = read_stacks(file.read_text())
    shares: Counter[str] = Counter()
    for stack, samples in found.items():
        shares[station_of(stack)] += samples
    each, total = float(spent) * 1e6 / rounds / int(count), sum(shares.values())
    lines = [
        f"{what.strip()}: {each:.0f} us of CPU each, {total:,} samples.",
        "",
        "| station | us | share |",
        "|---|--:|--:|",
    ]
    for station, samples in shares.most_common():
        lines.append(f"| {station} | {each * samples / total:.1f} | {100 * samples / total:.1f} % |")
    return "\n".join(lines)


def station_of(stack: flame_graph.Stack) -> str:
    """The station of a stack."""
    for frame in reversed(stack):
        for beginning, station in STATIONS:
            if frame.startswith(beginning):
                return station
    return OTHER


async def profile(deployment: str, executions: int, folder: Path) -> Profile:
    """Run executions in a deployment and profile its processes."""
    _, servers, workers, with_nats = DEPLOYMENTS[deployment]
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        nats = stack.enter_context(services.Nats(str(folder / "nats"))).url if with_nats else None
        with _SampledProcesses(folder, servers, workers, postgres.dsn(), nats) as processes:
            headers = {"Authorization": f"Bearer {processes.token}"}
            async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
                client = ApiClient(session, processes.url)
                await client.many(chain(3, "noop"), max(20, executions // 10))  # warm up
                for each in processes.processes:
                    each.send_signal(signal.SIGUSR1)
                before, database = [_cpu(each.pid) for each in processes.processes], _tree_cpu(postgres)
                began = time.perf_counter()
                await client.many(chain(3, "noop"), executions)
                seconds = time.perf_counter() - began
                after = [_cpu(each.pid) for each in processes.processes]
                spent_database = _tree_cpu(postgres) - database
        return _profile(
            deployment, executions, seconds, folder, [b - a for a, b in zip(before, after, strict=True)], spent_database
        )


def _profile(
    deployment: str, executions: int, seconds: float, folder: Path, spent: list[float], database: float
) -> Profile:
    cost: Counter[tuple[str, str]] = Counter()
    stacks: Counter[flame_graph.Stack] = Counter()
    for number, seconds_spent in enumerate(spent):
        (file,) = folder.glob(f"*-{number}.stacks")
        role = file.stem.partition("-")[0]
        found = read_stacks(file.read_text())
        per_sample = seconds_spent * 1e3 / executions / max(1, sum(found.values()))
        for stack, count in found.items():
            cost[role, station_of(stack)] += count * per_sample
            stacks[(role, *stack)] += count
    cost["Postgres", "all backends"] = database * 1e3 / executions
    return Profile(deployment, executions, seconds, dict(cost), dict(stacks))


def read_stacks(text: str) -> dict[flame_graph.Stack, int]:
    """Stacks and their counts, without the frames that start a process."""
    found: Counter[flame_graph.Stack] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        if frames:
            found[tuple(frames.split(";")[1:])] += int(count)
    return dict(found)


def table(result: Profile) -> str:
    """The cost table as Markdown."""
    title = DEPLOYMENTS[result.deployment][0]
    rate, each = result.executions / result.seconds, sum(result.cost.values())
    lines = [
        f"{result.executions:,} executions of three noop steps, {title}, Postgres with flushed commits, client with "
        f"100 in flight: {rate:,.0f} executions/s, {each:.2f} ms of CPU each.",
        "",
        "| process | station | ms of CPU per execution | share |",
        "|---|---|---:|---:|",
    ]
    total = each or 1.0
    for (role, station), cost in sorted(result.cost.items(), key=lambda each: (each[0][0], -each[1])):
        if cost / total >= 0.005:
            lines.append(f"| {role} | {station} | {cost:.3f} | {100 * cost / total:.1f} % |")
    return "\n".join(lines)


def write(result: Profile, page: Path = PAGE) -> None:
    """Write the table into the page, and the flame graph beside it."""
    picture = page.with_suffix(".svg")
    picture.write_text(flame_graph.svg(f"CPU time of executions: {DEPLOYMENTS[result.deployment][0]}", result.stacks))
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table(result)}\n\n![Flame graph]({picture.name})\n\n{END}{after}")


def _cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _tree_cpu(postgres: services.Postgres) -> float:
    top = psutil.Process(postgres.pid)
    ended = top.cpu_times()
    live = sum(_cpu(each.pid) for each in (top, *top.children(recursive=True)))
    return float(live + ended.children_user + ended.children_system)


def main(arguments: list[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench profile", description=__doc__)
    parser.add_argument("--deployment", choices=sorted(DEPLOYMENTS), default="one")
    parser.add_argument("--executions", type=int, default=2_000)
    parser.add_argument("--embedded", choices=("w1", "w3", "w4"), help="profile a workload of the embedded engine")
    parser.add_argument("--rounds", type=int, default=10, help="of the embedded workload")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing the page")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        if options.embedded:
            sys.stdout.write(profile_embedded(options.embedded, options.rounds, Path(folder).resolve()) + "\n")
            return
        result = asyncio.run(profile(options.deployment, options.executions, Path(folder).resolve()))
    if options.print:
        sys.stdout.write(table(result) + "\n")
    else:
        write(result)
        sys.stdout.write(f"wrote {PAGE}\n")
