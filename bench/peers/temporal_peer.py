"""Temporal: the dev server on an SQLite file; workflows and activities of the Python SDK run in this process."""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from reporting import CAP_SECONDS, ServerProcess, fib, report, selected_workloads

ENGINE = "temporal"
LIMIT = timedelta(seconds=300)


@activity.defn
async def noop(number: int) -> int:
    return number


@activity.defn
def work() -> int:
    return fib(10)


@workflow.defn
class One:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(noop, 1, start_to_close_timeout=LIMIT)


@workflow.defn
class Chain:
    @workflow.run
    async def run(self, steps: int) -> int:
        for _ in range(steps):
            await workflow.execute_activity(work, start_to_close_timeout=LIMIT)
        return steps


@workflow.defn
class Three:
    @workflow.run
    async def run(self, number: int) -> int:
        for _ in range(3):
            await workflow.execute_activity(noop, number, start_to_close_timeout=LIMIT)
        return number


@workflow.defn
class FanOut:
    @workflow.run
    async def run(self, items: int) -> int:
        started = (workflow.execute_activity(noop, n, start_to_close_timeout=LIMIT) for n in range(items))
        return len(await asyncio.gather(*started))


async def _connect(address: str) -> Client:
    for attempt in range(240):
        try:
            return await Client.connect(address)
        except RuntimeError:
            if attempt == 239:
                raise
            await asyncio.sleep(0.25)
    raise AssertionError


async def _seconds(work: Any, most: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < most and sum(taken) < CAP_SECONDS:
        began = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - began)
    return taken


async def measure(address: str, selected: tuple[str, ...]) -> None:
    client = await _connect(address)

    async def run(which: Any, *given: Any) -> Any:
        return await client.execute_workflow(which.run, *given, id=str(uuid.uuid4()), task_queue="bench")

    async with Worker(
        client,
        task_queue="bench",
        workflows=[One, Chain, Three, FanOut],
        activities=[noop, work],
        activity_executor=ThreadPoolExecutor(200),
        max_concurrent_activities=200,
        max_concurrent_workflow_tasks=200,
    ):
        await run(One)

        async def many() -> None:  # 300, because 1,000 concurrent executions exceed the time limits of the dev server
            await asyncio.gather(*(run(Three, number) for number in range(300)))

        workloads: dict[str, tuple[str, Any, int, float, str]] = {
            "W1": ("1 noop step", lambda: run(One), 30, 0, "ms"),
            "W2": ("40 python steps", lambda: run(Chain, 40), 3, 0, "ms"),
            "W3": ("loop of 1,000 noop items", lambda: run(FanOut, 1000), 3, 1000, "items/s"),
            "W4": ("1,000 executions of 3 noop steps", many, 2, 300, "executions/s"),
        }
        failed = []
        for workload, (metric, run_once, most, count, unit) in workloads.items():
            if workload in selected:
                try:
                    samples = await _seconds(run_once, most)
                except Exception as problem:  # noqa: BLE001 - any error of an engine is a result
                    failed.append(f"{workload}: {type(problem).__name__}: {problem}")
                    continue
                report(ENGINE, workload, metric, [count / taken if count else taken * 1e3 for taken in samples], unit)
    if failed:
        raise SystemExit("; ".join(failed))


def main() -> None:
    selected = selected_workloads()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        program = str(Path(sys.executable).parent / "temporal")
        options = ["--ip", "127.0.0.1", "--port", str(port), "--db-filename", f"{folder}/temporal.db"]
        with ServerProcess([program, "server", "start-dev", "--headless", *options, "--log-level", "error"]):
            asyncio.run(measure(f"127.0.0.1:{port}", selected))


if __name__ == "__main__":
    main()
