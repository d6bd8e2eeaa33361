"""An HTTP body of 1 GB written to each result store and read back, in its own process: throughput and peak memory.

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

from bench.http_server import BLOCK, http_server
from bench.measurements import Measurement, peak_mb, summarize
from devcluster import services

MEGABYTES = 1000


def stores(stack: ExitStack, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The kinds of result stores and their URLs; their servers are stopped with the stack."""
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


def measure_one(url: str, body: str, megabytes: int) -> dict[str, Any]:
    """Fetch one body by kind `http` into the store and read it back; returns seconds and memory."""
    from noetl.core.model.reference import Reference
    from noetl.runtime.resources import close_loop_resources
    from noetl.storage.results import open_results
    from noetl.testing.tools import ToolHost, tool_call
    from noetl.tools.registry import load

    async def move() -> dict[str, Any]:
        results = open_results(url)

        class Host(ToolHost):
            """A host with this store."""

            async def put_result(
                self, chunks: AsyncIterator[bytes], *, content_type: str, rows: int | None = None, **_: Any
            ) -> Reference:
                return await results.put("1:body:1", chunks, content_type=content_type, rows=rows)

        host = Host()
        host.progress = lambda **counts: None  # type: ignore[method-assign]
        result: dict[str, Any] = {}
        for size, name in ((4, "small"), (megabytes, "large")):
            given: Mapping[str, Any] = {"url": f"{body}/body", "params": {"mb": size}}
            began = time.perf_counter()
            outcome = await load("http")(
                tool_call("http", given, host=host, spec={"stream": True, "max_bytes": 1 << 40})
            )
            result["put_s"] = time.perf_counter() - began
            assert outcome.status == "ok" and outcome.ref is not None, outcome.error
            assert outcome.ref.meta.bytes == size * BLOCK, outcome.ref
            began, count = time.perf_counter(), 0
            async for chunk in results.open(outcome.ref):
                count += len(chunk)
            assert count == size * BLOCK
            result["get_s"] = time.perf_counter() - began
            result[f"{name}_mb"] = peak_mb()
            await results.delete(outcome.ref)
        await results.close()
        await close_loop_resources()
        return result

    return asyncio.run(move())


def measure_stores(megabytes: int, kinds: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of each store, each in its own process."""
    with http_server() as body:
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


def measure(megabytes: int = MEGABYTES, kinds: tuple[str, ...] = KINDS) -> Iterator[Measurement]:
    """Write and read throughput of each store, with the peak memory."""
    for kind, result in measure_stores(megabytes, kinds):
        peak = round(result["large_mb"], 1)
        yield summarize("noetl", "streaming", f"http to {kind}", [megabytes / result["put_s"]], "MB/s", peak)
        yield summarize("noetl", "streaming", f"{kind} read", [megabytes / result["get_s"]], "MB/s", peak)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(measure_one(sys.argv[2], sys.argv[3], int(sys.argv[4]))), flush=True)
        os._exit(0)  # like the noetl command: threads of the object store driver can abort an exiting interpreter
    else:
        numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
        chosen = tuple(text for text in sys.argv[1:] if not text.isdigit()) or KINDS
        for each in measure(*numbers, kinds=chosen):
            print(f"{each.metric:20} {each.median:8,.0f} {each.unit} {each.rss_mb} MB", flush=True)
