"""Throughput of tools: warm python calls, small http calls compared with plain aiohttp, masking.

The http calls are measured twice: by the tool alone, and by a parallel loop of a playbook on the embedded engine, with
the start and the outcome of every call in the log.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from bench.http_server import http_server
from bench.workloads import HEAD, run_one
from noetl.embedded import LocalEngine, open_local
from noetl.runtime import event_loop as loops
from noetl.runtime.masking import Masker
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load

CALLS = 10_000
IN_FLIGHT = 100  # as in W3


async def run_concurrently(count: int, work: Callable[[int], Awaitable[object]], in_flight: int = IN_FLIGHT) -> float:
    """Seconds for `count` calls with `in_flight` concurrent ones."""
    numbers = iter(range(count))

    async def run_sequentially() -> None:
        for number in numbers:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(run_sequentially() for _ in range(in_flight)))
    return time.perf_counter() - began


def measure() -> Iterator[tuple[str, float, str]]:
    """Samples as (name, value, unit)."""
    yield from asyncio.run(_python())
    with http_server() as url, tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        yield from loops.run(_http(f"{url}/small", Path(folder).resolve()))
    yield from _masking()


async def _python() -> list[tuple[str, float, str]]:
    run, host = load("python"), ToolHost()
    code = "def main(n):\n    return n + 1\n"

    async def one(number: int) -> None:
        outcome = await run(tool_call("python", {"code": code, "n": number}, host=host))
        assert outcome.data == number + 1

    began = time.perf_counter()
    await one(0)
    samples = [("tools.python.first_call", (time.perf_counter() - began) * 1e3, "ms")]
    await run_concurrently(500, one, 1)
    samples.append(("tools.python.warm_call", await run_concurrently(2_000, one, 1) / 2_000 * 1e6, "us"))
    await run_concurrently(500, one, 20)
    samples.append(("tools.python.calls_20_in_flight", 5_000 / await run_concurrently(5_000, one, 20), "1/s"))
    await close_loop_resources()
    return samples


def http_loop(url: str, calls: int) -> str:
    """A playbook that calls the address in a parallel loop."""
    return HEAD.format(name="http_loop") + (
        f"workload: {{n: {calls}}}\nworkflow:\n  - step: start\n"
        f'    loop: {{in: "{{{{ range(workload.n) | list }}}}", iterator: x, '
        f"spec: {{mode: parallel, max_in_flight: {IN_FLIGHT}}}}}\n    tool: {{kind: http, url: '{url}'}}\n"
    )


async def _http(url: str, folder: Path) -> list[tuple[str, float, str]]:
    async with await open_local(home=folder / "home", store=str(folder / "log.db")) as engine:
        return await _compare_with_aiohttp(url, engine)


async def _compare_with_aiohttp(url: str, engine: LocalEngine) -> list[tuple[str, float, str]]:
    import aiohttp

    run, host = load("http"), ToolHost()
    share = CALLS // 4
    playbook = http_loop(url, share)

    async def ours(_: int) -> None:
        outcome = await run(tool_call("http", {"url": url}, host=host))
        assert outcome.data["ok"]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as session:

        async def bare(_: int) -> None:
            async with session.get(url) as response:
                assert (await response.json())["ok"]

        async def looped(_: int) -> None:
            await run_one(engine, playbook)

        await run_concurrently(500, bare)
        await run_concurrently(500, ours)
        await run_concurrently(1, looped)
        loops.freeze_gc()  # as in servers and workers; both clients run in this process
        bare_seconds = our_seconds = loop_seconds = 0.0
        for _ in range(4):  # alternating, so that all run under the same conditions
            bare_seconds += await run_concurrently(share, bare)
            our_seconds += await run_concurrently(share, ours)
            loop_seconds += await run_concurrently(1, looped)
    return [
        ("tools.http.calls", CALLS / our_seconds, "1/s"),
        ("tools.http.bare_aiohttp", CALLS / bare_seconds, "1/s"),
        ("tools.http.of_bare_aiohttp", 100 * bare_seconds / our_seconds, "%"),
        ("tools.http.looped_calls", CALLS / loop_seconds, "1/s"),
        ("tools.http.loop_of_bare_aiohttp", 100 * bare_seconds / loop_seconds, "%"),
    ]


def _masking() -> Iterator[tuple[str, float, str]]:
    masker = Masker([f"{n:x}-secret-{n * 7919:x}" for n in range(1000, 1020)])
    line = "an ordinary line of a log, with some words in it and no secret at all"
    began = time.perf_counter()
    for _ in range(5_000):
        masker.mask(line)
    yield "tools.masking.line_20_secrets", (time.perf_counter() - began) / 5_000 * 1e6, "us"
    block = b'{"id": 12345, "name": "some name"}' * 300_000
    began = time.perf_counter()
    masker.mask_bytes(block)
    yield "tools.masking.stream_20_secrets", len(block) / (time.perf_counter() - began) / 1e6, "MB/s"


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:40} {value:12,.1f} {unit}")
