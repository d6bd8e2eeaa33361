"""DBOS: engine, worker and client in one process, state in SQLite; the fastest form of each workload."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import Any

from dbos import DBOS
from reporting import cold_seconds, fib, report, run_workloads, seconds, selected_workloads

ENGINE = "dbos"


@DBOS.step()
def noop(number: int = 0) -> int:
    return number


@DBOS.step()
async def noop_async(number: int = 0) -> int:
    return number


@DBOS.step()
def work() -> int:
    return fib(10)


@DBOS.workflow()
def one() -> int:
    return noop()


@DBOS.workflow()
def chain(steps: int) -> None:
    for _ in range(steps):
        work()


@DBOS.workflow()
async def fan_out(items: int) -> int:
    # In chunks of 100: a gather over thousands exhausts the connection pool.
    done = 0
    for first in range(0, items, 100):
        done += len(await asyncio.gather(*(noop_async(n) for n in range(first, min(first + 100, items)))))
    return done


@DBOS.workflow()
async def three(number: int) -> int:
    for _ in range(3):
        await noop_async(number)
    return number


def launch(folder: str) -> None:
    url = f"sqlite:///{folder}/dbos.sqlite"
    config: Any = {"name": "bench", "system_database_url": url, "console_log_level": "ERROR", "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()


@DBOS.workflow()
def three_in_a_thread(number: int) -> int:
    for _ in range(3):
        noop(number)
    return number


def many(workflow: Any) -> None:
    for handle in [DBOS.start_workflow(workflow, number) for number in range(1000)]:
        handle.get_result()


def w1() -> None:
    report(ENGINE, "W1", "1 noop step", [taken * 1e3 for taken in seconds(one, 60)], "ms")
    command = [sys.executable, os.path.abspath(__file__), "one"]
    report(ENGINE, "W1", "cold process", [taken * 1e3 for taken in cold_seconds(command)], "ms")


def w2() -> None:
    report(ENGINE, "W2", "40 python steps", [taken * 1e3 for taken in seconds(lambda: chain(40), 7)], "ms")


def w3() -> None:
    rates = [1000 / taken for taken in seconds(lambda: DBOS.start_workflow(fan_out, 1000).get_result(), 3)]
    report(ENGINE, "W3", "loop of 1,000 noop items", rates, "items/s")


def w4() -> None:
    forms = [seconds(lambda form=form: many(form), 2) for form in (three, three_in_a_thread)]  # type: ignore[misc]
    best = min(forms, key=min)
    report(ENGINE, "W4", "1,000 executions of 3 noop steps", [1000 / taken for taken in best], "executions/s")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        cold = sys.argv[1:2] == ["one"]
        selected = () if cold else selected_workloads()
        launch(folder)
        assert one() == 0
        try:
            run_workloads(selected, {"W1": w1, "W2": w2, "W3": w3, "W4": w4})
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    main()
