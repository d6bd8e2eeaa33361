"""`python -m bench.loop_counts`: event-loop work and queries of an execution, counted in the processes of a deployment.

One-step executions run one after the other (`--concurrent`: executions of three steps, 100 at once). Counted are
callbacks, tasks, timers and futures by the function that creates them, and queries outside of the appends. Counts do
not depend on the load of the machine; the share of periodic work is larger where executions take longer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from bench.server_workloads import DEPLOYMENTS, ApiClient, ServerProcesses
from bench.workloads import chain
from devcluster import services

SHOWN = 0.1  # per execution


def start(file: str) -> None:
    """Count in this process from now on; SIGUSR1 sets all counts to zero, SIGUSR2 writes them."""
    import uvloop

    from noetl.storage.postgres.database import PostgresDatabase

    counts: Counter[str] = Counter()

    def caller(depth: int = 2) -> str:
        return sys._getframe(depth).f_code.co_qualname

    class CountingLoop(uvloop.Loop):
        def create_task(self, coro: Any, **options: Any) -> Any:
            counts[f"task {coro.__qualname__}"] += 1
            return super().create_task(coro, **options)

        def call_later(self, delay: float, callback: Any, *args: Any, **options: Any) -> Any:
            counts[f"timer {caller()} < {caller(3)}"] += 1
            return super().call_later(delay, callback, *args, **options)

        def call_soon(self, callback: Any, *args: Any, **options: Any) -> Any:
            counts[f"callback {caller()}"] += 1
            return super().call_soon(callback, *args, **options)

        def create_future(self) -> Any:
            counts[f"future {caller()}"] += 1
            return super().create_future()

    def counted(method: Any) -> Any:
        def call(self: PostgresDatabase, query: str, *values: Any) -> Any:
            counts[f"query {' '.join(query.split())[:60]} < {caller()}"] += 1
            return method(self, query, *values)

        return call

    uvloop.new_event_loop = CountingLoop
    for name in ("fetch", "row", "execute"):
        setattr(PostgresDatabase, name, counted(getattr(PostgresDatabase, name)))

    def write(*_: object) -> None:
        temporary = Path(f"{file}.{os.getpid()}")
        temporary.write_text("\n".join(f"{number} {what}" for what, number in counts.most_common()))
        temporary.replace(file)

    signal.signal(signal.SIGUSR1, lambda *_: counts.clear())
    signal.signal(signal.SIGUSR2, write)
    write()


class CountedProcesses(ServerProcesses):
    """The processes of a deployment, which count their work."""

    def file(self, number: int) -> Path:
        """The counts of a process."""
        return self._log.parent / f"{number}.counts"

    def _start(self, code: str, **more: str) -> None:
        file = str(self.file(len(self.processes)))
        super()._start(f"from bench import loop_counts; loop_counts.start({file!r}); {code}", **more)

    async def begin(self) -> None:
        """Set all counts to zero; the signal would end a process that does not count yet."""
        for number, each in enumerate(self.processes):
            await self._written(number)
            each.send_signal(signal.SIGUSR1)

    async def counts(self) -> list[list[tuple[int, str]]]:
        """What each process has counted since."""
        found = []
        for number, each in enumerate(self.processes):
            self.file(number).unlink(missing_ok=True)
            each.send_signal(signal.SIGUSR2)
            await self._written(number)
            lines = (line.partition(" ") for line in self.file(number).read_text().splitlines())
            found.append([(int(count), what) for count, _, what in lines])
        return found

    async def _written(self, number: int) -> None:
        while not self.file(number).exists():
            if self.processes[number].poll() is not None:
                raise RuntimeError(f"process {number} exited with {self.processes[number].returncode}")
            await asyncio.sleep(0.05)


def totals(rows: Iterable[tuple[int, str]]) -> Counter[str]:
    """Callbacks, tasks, timers, futures and queries."""
    found: Counter[str] = Counter()
    for count, what in rows:
        found[what.partition(" ")[0]] += count
    return found


async def measure(deployment: str, workers: int | None, executions: int, folder: Path, *, concurrent: bool) -> None:
    """Run executions and print the counts of each process."""
    _, servers, usual, with_nats = DEPLOYMENTS[deployment]
    workers = workers or usual
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        nats = stack.enter_context(services.Nats(str(folder / "nats"))).url if with_nats else None
        processes = stack.enter_context(CountedProcesses(folder, servers, workers, postgres.dsn(), nats))
        headers = {"Authorization": f"Bearer {processes.token}"}
        session = await stack.enter_async_context(
            aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        )
        client = ApiClient(session, processes.url)
        text, in_flight = (chain(3, "noop"), 100) if concurrent else (chain(1, "noop"), 1)
        await client.many(text, 20, in_flight)
        await processes.begin()
        await client.many(text, executions, in_flight)
        for number, rows in enumerate(await processes.counts()):
            _print(number, rows, executions)


def _print(number: int, rows: list[tuple[int, str]], executions: int) -> None:
    summary = ", ".join(f"{count / executions:.1f} {what}" for what, count in totals(rows).most_common())
    sys.stdout.write(f"process {number}: {summary}\n")
    for count, what in rows:
        if count / executions >= SHOWN:
            sys.stdout.write(f"  {count / executions:6.2f} {what}\n")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.loop_counts", description=__doc__)
    parser.add_argument("--deployment", choices=sorted(DEPLOYMENTS), default="one")
    parser.add_argument("--workers", type=int, help="number of workers, if not that of the deployment")
    parser.add_argument("--executions", type=int, default=200)
    parser.add_argument("--concurrent", action="store_true", help="executions of three steps, 100 at once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        where = Path(folder).resolve()
        asyncio.run(
            measure(options.deployment, options.workers, options.executions, where, concurrent=options.concurrent)
        )


if __name__ == "__main__":
    main()
