"""What compensation adds to W4: `python -m bench.feature_cost [ROUNDS]`.

1,000 concurrent executions of three noop steps, with and without a compensation on every step, measured alternately in
one process. Prints the CPU time of a round of each (median) and the ratio; the target is less than 3 %.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.workloads import chain, run_many
from noetl.embedded import open_local
from noetl.runtime import event_loop as loops

EXECUTIONS = 1_000
UNDO = "    spec: {policy: {compensation: {tool: [{name: undo, kind: noop}]}}}\n"


def with_compensation(text: str) -> str:
    """The playbook with a compensation on every step."""
    return text.replace("    tool:", UNDO + "    tool:").replace("chain_noop", "undone_noop")


async def _measure(rounds: int) -> dict[str, list[float]]:
    plain = chain(3, "noop")
    texts = {"plain": plain, "with compensation": with_compensation(plain)}
    found: dict[str, list[float]] = {name: [] for name in texts}
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as name:
        folder = Path(name)
        async with await open_local(home=folder, store=str(folder / "engine.db")) as engine:
            for text in texts.values():
                await run_many(engine, text, EXECUTIONS // 4)  # warm up
            loops.freeze_gc()
            for number in range(rounds):
                for each in list(texts) if number % 2 == 0 else reversed(texts):
                    began = time.process_time()
                    await run_many(engine, texts[each], EXECUTIONS)
                    found[each].append(time.process_time() - began)
    return found


def main() -> None:
    """Measure and print."""
    found = asyncio.run(_measure(int(sys.argv[1]) if len(sys.argv) > 1 else 12))
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, seconds in medians.items():
        print(f"{name}: {seconds * 1000:.0f} ms of CPU time for {EXECUTIONS:,} executions")
    print(f"compensation adds {(medians['with compensation'] / medians['plain'] - 1) * 100:+.1f} %")


if __name__ == "__main__":
    main()
