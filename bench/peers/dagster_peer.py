"""Dagster: jobs run in this process with an instance on SQLite, the fastest form (the default starts processes)."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, Definitions, DynamicOut, DynamicOutput, in_process_executor, job, op
from reporting import cold_seconds, fib, report, run_workloads, seconds, selected_workloads

ENGINE = "dagster"
SETTINGS = "telemetry:\n  enabled: false\npython_logs:\n  python_log_level: ERROR\n"


@op
def noop() -> int:
    return 1


@op
def item(number):  # no annotations, because Dagster type checks cost time
    return number


def _work(number: int) -> Any:
    if number == 0:

        @op(name="work_0")
        def first() -> int:
            return fib(10)

        return first

    @op(name=f"work_{number}")
    def later(before) -> int:
        return fib(10)

    return later


WORKS = [_work(number) for number in range(40)]


@op(out=DynamicOut())
def thousand():
    for number in range(1000):
        yield DynamicOutput(number, mapping_key=str(number))


@op
def second(number):
    return number


@op
def third(number):
    return number


@job(executor_def=in_process_executor)
def one():
    noop()


@job(executor_def=in_process_executor)
def chain():
    value = WORKS[0]()
    for each in WORKS[1:]:
        value = each(value)


@job(executor_def=in_process_executor)
def fan_out():
    thousand().map(item)


@job(executor_def=in_process_executor)
def three():
    third(second(noop()))


defs = Definitions(jobs=[one, chain, fan_out, three])  # loaded by the dagster command


def main() -> None:
    selected = selected_workloads()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        home = Path(folder).resolve()
        (home / "dagster.yaml").write_text(SETTINGS)
        os.environ.update(DAGSTER_HOME=str(home), DAGSTER_DISABLE_TELEMETRY="1")
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the dagster command loads this file as a module
        logging.disable(logging.WARNING)
        instance = DagsterInstance.get()

        def run(which: Any) -> None:
            assert which.execute_in_process(instance=instance).success

        run(one)

        def w1() -> None:
            report(ENGINE, "W1", "1 noop step", [taken * 1e3 for taken in seconds(lambda: run(one), 15)], "ms")
            program = str(Path(sys.executable).parent / "dagster")
            command = [program, "job", "execute", "-f", os.path.abspath(__file__), "-j", "one"]
            report(ENGINE, "W1", "cold process", [taken * 1e3 for taken in cold_seconds(command, 3)], "ms")

        def w2() -> None:
            report(ENGINE, "W2", "40 python steps", [taken * 1e3 for taken in seconds(lambda: run(chain), 3)], "ms")

        def w3() -> None:
            rates = [1000 / taken for taken in seconds(lambda: run(fan_out), 1)]
            report(ENGINE, "W3", "loop of 1,000 noop items", rates, "items/s")

        def w4() -> None:
            def many() -> None:  # 50 in sequence, because a process runs one job at a time
                for _ in range(50):
                    run(three)

            rates = [50 / taken for taken in seconds(many, 2)]
            report(ENGINE, "W4", "1,000 executions of 3 noop steps", rates, "executions/s")

        run_workloads(selected, {"W1": w1, "W2": w2, "W3": w3, "W4": w4})


if __name__ == "__main__":
    main()
