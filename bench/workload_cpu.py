"""`python -m bench.workload_cpu {w1|w3|w4} [--python] [--rounds N]`: CPU time of a workload of the embedded engine.

Prints the lowest and the median CPU time of an execution or item, for this process and for its children. Run it on two
commits in turns to compare them: on a shared machine the lowest of several rounds says more than the duration.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.workloads import cases
from noetl.embedded import open_local
from noetl.runtime import event_loop


def children_cpu() -> float:
    """CPU seconds of all children, exactly for the living ones (Linux)."""
    me = psutil.Process()
    ended = me.cpu_times()
    living = (time.clock_gettime((~child.pid << 3) | 2) for child in me.children(recursive=True))
    return float(ended.children_user + ended.children_system + sum(living))


async def measure(workload: str, python: bool, rounds: int, folder: Path) -> list[tuple[float, float]]:
    """Microseconds of CPU for each execution or item, here and in children, of every round."""
    case = cases(workload, True)[1 if python else 0]
    repeats = 100 if case.repeats > 1 else 1
    found = []
    async with await open_local(home=folder / "home", store=str(folder / "engine.db")) as engine:
        for _ in range(2):  # warm up
            await case.engine(engine)
        event_loop.freeze_gc()
        for _ in range(rounds):
            own, children = time.process_time(), children_cpu()
            for _ in range(repeats):
                await case.engine(engine)
            spent = time.process_time() - own, children_cpu() - children
            found.append((spent[0] * 1e6 / repeats / case.count, spent[1] * 1e6 / repeats / case.count))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.workload_cpu", description=__doc__)
    parser.add_argument("workload", choices=("w1", "w3", "w4"))
    parser.add_argument("--python", action="store_true", help="w1 and w3: python code instead of noop")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        work = measure(options.workload, options.python, options.rounds, Path(folder).resolve())
        found = event_loop.run(work)
    for name, values in (
        ("this process", [own for own, _ in found]),
        ("children", [children for _, children in found]),
        ("together", [own + children for own, children in found]),
    ):
        sys.stdout.write(f"{name}: lowest {min(values):.0f}, median {statistics.median(values):.0f} us\n")


if __name__ == "__main__":
    main()
