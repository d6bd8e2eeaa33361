"""An HTTP body of 1 GB into each result store and back, in a process of its own: how fast, and in how much memory.

python -m bench.streaming [MEGABYTES]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.answering import BLOCK, answering
from bench.figures import Figure, figure, peak_mb
from noetl.testing import services

MEGABYTES = 1000


def stores(stack: ExitStack, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The kinds of result stores and their URLs, each on a server that ends with the stack."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-bench-"))
    for kind in kinds:
        if kind == "blob":
            yield kind, f"blob://{folder}/blob"
        elif kind == "sqlite":
            yield kind, f"sqlite://{folder}/results.db"
        elif kind == "postgres":
            server = stack.enter_context(services.Postgres(f"{folder}/pg"))
            yield kind, server.dsn()
        elif kind == "nats":
            bus = stack.enter_context(services.Nats(f"{folder}/nats"))
            yield kind, f"{bus.url}/results"
        elif kind == "s3":
            place = stack.enter_context(services.S3(f"{folder}/s3"))
            bucket = stack.enter_context(services.fresh_bucket(place.info))
            keys = "&".join(f"{name}={value}" for name, value in place.info.items())
            yield kind, f"s3://{bucket}/results?{keys}"


def through(url: str, body: str, megabytes: int) -> dict[str, Any]:
    """One body fetched by kind `http` into the store and read back; seconds each way, and memory before and after."""
    from noetl.core.model.reference import Reference
    from noetl.runtime.resources import close_loop_resources
    from noetl.storage.results import open_results
    from noetl.testing.tools import ToolHost, tool_call
    from noetl.tools.registry import load

    async def move() -> dict[str, Any]:
        results = open_results(url)

        class Host(ToolHost):
            """A worker with this store."""

            async def put_result(
                self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None, **_: Any
            ) -> Reference:
                return await results.put("1:body:1", chunks, content_type=content_type, rows=rows)

        host = Host()
        host.progress = lambda **counts: None  # type: ignore[method-assign]
        told: dict[str, Any] = {}
        for size, name in ((4, "small"), (megabytes, "large")):
            given: Mapping[str, Any] = {"url": f"{body}/body", "params": {"mb": size}}
            began = time.perf_counter()
            outcome = await load("http")(
                tool_call("http", given, host=host, spec={"stream": True, "max_bytes": 1 << 40})
            )
            told["put_s"] = time.perf_counter() - began
            assert outcome.status == "ok" and outcome.ref is not None, outcome.error
            assert outcome.ref.meta.bytes == size * BLOCK, outcome.ref
            began, count = time.perf_counter(), 0
            async for chunk in results.open(outcome.ref):
                count += len(chunk)
            assert count == size * BLOCK
            told["get_s"] = time.perf_counter() - began
            told[f"{name}_mb"] = peak_mb()
            await results.delete(outcome.ref)
        await results.close()
        await close_loop_resources()
        return told

    return asyncio.run(move())


def figures(megabytes: int, kinds: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each store took, every one in a process of its own."""
    with answering() as body:
        for kind in kinds:
            with ExitStack() as stack:
                ((_, url),) = stores(stack, (kind,))
                command = [sys.executable, "-m", "bench.streaming", "one", url, body, str(megabytes)]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
                )
                if done.returncode:
                    raise RuntimeError(f"{kind} failed:\n{done.stderr[-3000:]}")
                yield kind, json.loads(done.stdout.splitlines()[-1])


KINDS = ("blob", "sqlite", "postgres", "s3", "nats")


def measure(megabytes: int = MEGABYTES, kinds: tuple[str, ...] = KINDS) -> Iterator[Figure]:
    """Megabytes a second into each store and back, with the peak of memory."""
    for kind, told in figures(megabytes, kinds):
        peak = round(told["large_mb"], 1)
        yield figure("noetl", "streaming", f"http to {kind}", [megabytes / told["put_s"]], "MB/s", peak)
        yield figure("noetl", "streaming", f"{kind} back", [megabytes / told["get_s"]], "MB/s", peak)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(through(sys.argv[2], sys.argv[3], int(sys.argv[4]))), flush=True)
        os._exit(0)  # as our command leaves: threads of the object store's driver may abort a dying interpreter
    else:
        numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
        chosen = tuple(text for text in sys.argv[1:] if not text.isdigit()) or KINDS
        for each in measure(*numbers, kinds=chosen):
            print(f"{each.metric:20} {each.median:8,.0f} {each.unit} {each.rss_mb} MB", flush=True)
