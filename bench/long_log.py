"""`python -m bench.long_log`: commands over one execution with a long log, and a server with many ended executions.

    python -m bench.long_log --events 5000000 --ended 72000 --folder /var/tmp/long

The folder is used again if it exists, so that a second run only measures. Targets: `status` and `why` within 1 s and
150 MB, the first line of `events --after` within 0.2 s (beyond the start of the process), a server ready within 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from bench.growth import _finished, _loops_then_chain
from noetl.embedded import open_local
from noetl.server.orchestrator.submissions import Submission

READY_SECONDS = 120.0


class Taken(NamedTuple):
    """What a command took."""

    first: float  # seconds until its first line
    wall: float
    cpu: float
    megabytes: float
    size: int  # bytes of output


def main(arguments: list[str] | None = None) -> int:
    """Fill the stores and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_log", description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--ended", type=int, default=72_000)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args(arguments)
    home = given.folder / "long"
    events = asyncio.run(_long(home, given.events))
    print(f"one execution of {events:,} events\n")
    print(f"{'command':34} {'first line':>10} {'wall':>8} {'CPU':>8} {'memory':>9} {'output':>12}")
    started = _run(home, "--version")
    after = str(events * 3 // 5)
    for words in (
        ("--version",), ("status", "last"), ("why", "last"), ("replay", "last"), ("replay", "last", "--at", after),
        ("events", "last", "--after", after), ("events", "last", "--after", str(events - 10)),
    ):  # fmt: skip
        taken = _run(home, *words)
        print(
            f"{' '.join(words)[:34]:34} {taken.first - started.first:9.2f}s {taken.wall:7.2f}s {taken.cpu:7.2f}s "
            f"{taken.megabytes:6.0f} MB {taken.size:12,}",
            flush=True,
        )
    many = given.folder / "many"
    asyncio.run(_many(many, given.ended))
    print(f"\nserver with {given.ended:,} ended executions: ready after {_ready(many):.2f} s")
    print(f"server with an empty store: ready after {_ready(given.folder / 'empty'):.2f} s")
    return 0


async def _long(home: Path, events: int) -> int:
    """One execution with a log of about this many events; the number of its events."""
    async with await open_local(home=home, store=str(home / "noetl.db")) as engine:
        from noetl.storage.ports.events import ExecutionFilter

        orchestrator = engine.orchestrator
        known = await orchestrator.store.executions(ExecutionFilter(limit=1))
        if not known:
            execution_id = await orchestrator.submit(Submission(text=_loops_then_chain(events // 3)))
            return (await orchestrator.wait(execution_id)).seq
        return (await orchestrator.summary(known[0].id)).seq


async def _many(home: Path, count: int) -> None:
    async with await open_local(home=home, store=str(home / "noetl.db"), work=False) as engine:
        from noetl.storage.ports.events import ExecutionFilter

        if await engine.orchestrator.store.executions(ExecutionFilter(limit=1)):
            return
        for first in range(0, count, 1_000):
            await asyncio.gather(*(_finished(engine, first + n) for n in range(min(1_000, count - first))))


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "NOETL_HOME": str(home), "NOETL_STORE": str(home / "noetl.db")}


def _run(home: Path, *words: str) -> Taken:
    """Run a command and read its output; the memory is that of the process alone."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "noetl.clictl", *words], env=_environment(home), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    size = len(process.stdout.readline())
    first = time.perf_counter() - began
    while chunk := process.stdout.read(1 << 20):
        size += len(chunk)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"noetl {' '.join(words)} failed")
    wall = time.perf_counter() - began
    return Taken(first, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, size)


def _ready(home: Path) -> float:
    """Seconds until a server answers /readyz."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", "noetl.clictl", "server", "start", "--port", str(port)]
    process = subprocess.Popen(command, env=_environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while time.perf_counter() - began < READY_SECONDS:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began
            except (urllib.error.URLError, OSError):
                time.sleep(0.01)
        raise SystemExit("the server was not ready")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
