"""`python -m tests.mutation` (`make mutate`): a sample of mutants of the engine, the pipeline and the server.

Each mutant runs in a process of its own with the tests of its area and some seeds of the simulation. A mutant that
nothing notices survives. The list of survivors is written to `docs/development/mutants.md`.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.one import NOT_LOADED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development" / "mutants.md"
CPU_SECONDS = 180  # a mutant that loops for ever is noticed by this, also on a machine with other work
SECONDS = 1200.0  # one that waits for ever


class Area(Struct, frozen=True):
    """A part of the code with the tests that must notice its mutants."""

    name: str
    folders: tuple[str, ...]
    tests: tuple[str, ...]
    seeds: int


AREAS = (
    Area(
        "engine",
        ("noetl/core/engine",),
        (
            "tests/core/engine",
            "tests/server/test_limits.py",
            "tests/e2e/test_loops.py",
            "tests/e2e/test_routing.py",
            "tests/security/test_worker_tokens.py",
        ),
        40,
    ),
    Area(
        "pipeline",
        ("noetl/core/pipeline",),
        ("tests/core/pipeline", "tests/worker/test_runner.py", "tests/e2e/test_tasks.py", "tests/e2e/test_reuse.py"),
        20,
    ),
    Area(
        "server",
        ("noetl/server/orchestrator", "noetl/server/dispatch", "noetl/server/concurrency", "noetl/server/lifecycle"),
        ("tests/server", "--ignore=tests/server/http"),
        40,
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Run a sample of mutants; returns 1 if fewer than the wanted share were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=100, help="mutants of each area (0: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--area", choices=[area.name for area in AREAS], help="only this area")
    parser.add_argument("--minutes", type=float, default=0, help="start no mutant after this time (0: no limit)")
    parser.add_argument("--wanted", type=float, default=0.9, help="the share that must be noticed")
    given = parser.parse_args(arguments)
    lines: list[str] = []
    noticed = total = 0
    areas = [each for each in AREAS if given.area in (None, each.name)]
    for area in areas:
        deadline = time.monotonic() + 60 * given.minutes / len(areas) if given.minutes else None
        chosen = _sample(area, given.sample, given.seed)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(_notices, [area] * len(chosen), chosen, [deadline] * len(chosen)))
        ran = [(mutant, result) for mutant, result in zip(chosen, results, strict=True) if result is not None]
        survivors = [mutant for mutant, result in ran if not result]
        noticed += len(ran) - len(survivors)
        total += len(ran)
        lines += [
            f"| {area.name} | {len(ran)} | {len(ran) - len(survivors)} | {_share(len(ran) - len(survivors), len(ran))} |"
        ]
        lines += [f"SURVIVOR {mutant}" for mutant in survivors]
        print(f"{area.name}: {len(ran) - len(survivors)} of {len(ran)} noticed", flush=True)
    _write(lines, given.seed)
    return 0 if total and noticed / total >= given.wanted else 1


def _sample(area: Area, count: int, seed: int) -> list[Mutant]:
    files = [file for folder in area.folders for file in sorted((ROOT / folder).rglob("*.py"))]
    every = [mutant for file in files for mutant in mutants_of(file, ROOT)]
    return random.Random(seed).sample(every, min(count, len(every))) if count else every


def _notices(area: Area, mutant: Mutant, deadline: float | None) -> bool | None:
    """Whether the tests of the area notice the mutant; None: not run any more."""
    if deadline is not None and time.monotonic() > deadline:
        return None
    words = [mutant.file, str(mutant.number), str(area.seeds), *area.tests]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.mutation.one", *words],
            cwd=ROOT,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode == NOT_LOADED:
        raise RuntimeError(f"{mutant}: the original was loaded instead of the mutant")
    if done.returncode == 0:
        print(f"  survived: {mutant}", flush=True)
    return done.returncode != 0


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _write(lines: list[str], seed: int) -> None:
    rows = [line for line in lines if line.startswith("|")]
    survivors = [line.removeprefix("SURVIVOR ") for line in lines if line.startswith("SURVIVOR")]
    text = (
        "# Mutants\n\n`make mutate` changes the engine, the pipeline and the server in one place at a time and runs the tests of that area and some\n"
        "seeds of the simulation. This page lists the mutants of the last run that no test noticed.\n\n"
        f"Sample of seed {seed}:\n\n| area | mutants | noticed | share |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\n## Survivors\n\n"
    )
    PAGE.write_text(text + ("\n".join(f"- `{each}`" for each in survivors) if survivors else "None.") + "\n")


if __name__ == "__main__":
    sys.exit(main())
