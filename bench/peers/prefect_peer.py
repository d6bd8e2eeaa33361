"""Prefect: the server on SQLite, flows in the client process; logging and caching are off, the fastest form."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from reporting import ServerProcess, cold_seconds, fib, report, run_workloads, seconds, selected_workloads, wait_for

ENGINE = "prefect"
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_CLI_PROMPT": "false",
}


def flows() -> Any:
    """Import Prefect after the environment is set, because the import reads the settings."""
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    class Flows:
        @staticmethod
        @task(cache_policy=NO_CACHE)
        def noop(number: int = 0) -> int:
            return number

        @staticmethod
        @task(cache_policy=NO_CACHE)
        async def noop_async(number: int = 0) -> int:
            return number

        @staticmethod
        @task(cache_policy=NO_CACHE)
        def work() -> int:
            return fib(10)

        @staticmethod
        @flow
        def one() -> int:
            return Flows.noop()

        @staticmethod
        @flow
        def chain(steps: int) -> None:
            for _ in range(steps):
                Flows.work()

        @staticmethod
        @flow
        def fan_out(items: int) -> int:
            return sum(1 for future in Flows.noop.map(range(items)) if future.result() is not None)

        @staticmethod
        @flow
        async def three(number: int) -> None:
            for _ in range(3):
                await Flows.noop_async(number)

    return Flows


def measure(selected: tuple[str, ...]) -> None:
    defined = flows()
    defined.one()

    def w1() -> None:
        report(ENGINE, "W1", "1 noop step", [taken * 1e3 for taken in seconds(defined.one, 20)], "ms")
        command = [sys.executable, os.path.abspath(__file__), "one"]
        report(ENGINE, "W1", "cold process", [taken * 1e3 for taken in cold_seconds(command, 3)], "ms")

    def w2() -> None:
        report(ENGINE, "W2", "40 python steps", [taken * 1e3 for taken in seconds(lambda: defined.chain(40), 3)], "ms")

    def w3() -> None:
        rates = [1000 / taken for taken in seconds(lambda: defined.fan_out(1000), 2)]
        report(ENGINE, "W3", "loop of 1,000 noop items", rates, "items/s")

    def w4() -> None:
        async def many() -> None:  # 100, because 1,000 concurrent executions time out in the server
            await asyncio.gather(*(defined.three(number) for number in range(100)))

        rates = [100 / taken for taken in seconds(lambda: asyncio.run(many()), 2)]
        report(ENGINE, "W4", "1,000 executions of 3 noop steps", rates, "executions/s")

    run_workloads(selected, {"W1": w1, "W2": w2, "W3": w3, "W4": w4})


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        assert flows().one() == 0
        return
    selected = selected_workloads()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        os.environ.update(QUIET, PREFECT_HOME=str(Path(folder).resolve()))
        program = str(Path(sys.executable).parent / "prefect")
        with ServerProcess([program, "server", "start", "--host", "127.0.0.1", "--port", str(port)]):
            wait_for(f"http://127.0.0.1:{port}/api/health")
            os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
            measure(selected)


if __name__ == "__main__":
    main()
