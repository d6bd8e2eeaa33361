"""W1 to W4 on the embedded engine with its SQLite log: every acknowledgement flushed.

W1  one execution of one noop step, warm
W2  a chain of 40 python tasks (fib 10)
W3  a parallel loop of 1,000 items, noop and python
W4  1,000 executions of three steps at once
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable

from noetl.control.requests import Submission
from noetl.local import LocalEngine, open_local

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}}}\n"
FIB = "def fib(n):\\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\\nresult = fib(10)"


def one(kind: str = "noop") -> str:
    """A playbook of one step."""
    return HEAD.format(name=f"one_{kind}") + f"workflow:\n  - step: start\n    tool: {_tool(kind)}\n"


def chain(steps: int, kind: str = "python") -> str:
    """A playbook of steps in a row."""
    text = HEAD.format(name=f"chain_{kind}_{steps}") + "workflow:\n"
    for n in range(steps):
        text += f"  - step: s{n}\n    tool: {_tool(kind)}\n"
        if n < steps - 1:
            text += f"    next: {{arcs: [{{step: s{n + 1}}}]}}\n"
    return text


def fan_out(items: int, kind: str = "noop", in_flight: int = 100) -> str:
    """A parallel loop."""
    return HEAD.format(name=f"fan_{kind}_{items}") + (
        f"workload: {{n: {items}}}\nworkflow:\n  - step: start\n"
        f'    loop: {{in: "{{{{ range(workload.n) | list }}}}", iterator: x, '
        f"spec: {{mode: parallel, max_in_flight: {in_flight}}}}}\n    tool: {_tool(kind)}\n"
    )


def _tool(kind: str) -> str:
    return "{kind: noop}" if kind == "noop" else f'{{kind: python, code: "{FIB}"}}'


async def measure(name: str, rounds: int, work: Callable[[], Awaitable[None]]) -> tuple[str, float, float]:
    """Median seconds of wall time, and seconds of CPU of this process, for one round."""
    await work()
    walls, cpu = [], time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        await work()
        walls.append(time.perf_counter() - began)
    return name, statistics.median(walls), (time.process_time() - cpu) / rounds


async def run_one(engine: LocalEngine, text: str, payload: dict[str, int] | None = None) -> None:
    """Start an execution and wait for its end."""
    execution_id = await engine.orchestrator.submit(Submission(text=text, payload=payload or {}))
    summary = await engine.orchestrator.wait(execution_id)
    assert summary.status == "success", summary


async def run_many(engine: LocalEngine, text: str, count: int) -> None:
    """Start that many at once and wait for all."""
    await asyncio.gather(*(run_one(engine, text) for _ in range(count)))


async def main(chosen: set[str], store: str | None = None) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with await open_local(home=folder, store=store) as engine:
            cases = {
                "W1": ("W1 noop, ms", 200, lambda: run_one(engine, one()), 1000.0),
                "W1p": ("W1 python, ms", 100, lambda: run_one(engine, one("python")), 1000.0),
                "W2": ("W2 40 python steps, ms", 10, lambda: run_one(engine, chain(40)), 1000.0),
                "W2n": ("W2 40 noop steps, ms", 10, lambda: run_one(engine, chain(40, "noop")), 1000.0),
                "W3": ("W3 1,000 noop items, us each", 5, lambda: run_one(engine, fan_out(1000)), 1000.0),
                "W3p": ("W3 1,000 python items, us each", 3, lambda: run_one(engine, fan_out(1000, "python")), 1000.0),
                "W4": ("W4 1,000 x 3 noop steps, us each", 2, lambda: run_many(engine, chain(3, "noop"), 1000), 1000.0),
            }
            for key, (name, rounds, work, scale) in cases.items():
                if chosen and key not in chosen:
                    continue
                label, wall, cpu = await measure(name, rounds, work)
                print(f"{label:36} wall {wall * scale:9.2f}   cpu {cpu * scale:9.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(set(sys.argv[1:])))
