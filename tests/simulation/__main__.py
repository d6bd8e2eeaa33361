"""`python -m tests.simulation`: many seeds of simulated faults, and the planted bugs.

Prints every violated invariant with its seed, shrunk to as few faults as possible.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import ScenarioResult, shrink, simulate
from tests.simulation.planted_bugs import PLANTED_BUGS, first_violation
from tests.simulation.stories import STORIES

ENOUGH = 400  # seeds in which every story must happen


def main(arguments: list[str] | None = None) -> int:
    """Run the simulation; return 1 if an invariant was violated, a story never happened, or a bug was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--faults", type=int, default=50, help="faults per seed")
    parser.add_argument("--no-bugs", action="store_true", help="skip the planted bugs")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    violated = events = injected = 0
    stories: Counter[str] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = range(given.first, given.first + given.seeds)
        for result in pool.map(_run_seed, seeds, [given.faults] * given.seeds, chunksize=20):
            events += result.events
            injected += len(result.injected)
            stories.update(result.stories)
            if result.violations:
                violated += 1
                print(_shrunk(result).describe(), flush=True)
        print(
            f"{given.seeds} seeds, {injected} faults, {events} events: {violated} seeds with violations "
            f"({time.monotonic() - started:.0f} s)"
        )
        for story in STORIES:
            print(f"  {stories[story]:6} seeds: {story}")
        missing = given.seeds >= ENOUGH and any(not stories[story] for story in STORIES)
        if given.no_bugs:
            return 1 if violated or missing else 0
        caught = 0
        for name, caught_by in zip(PLANTED_BUGS, pool.map(first_violation, PLANTED_BUGS), strict=True):
            caught += caught_by is not None
            print(
                f"  {'caught' if caught_by else 'MISSED'}: {name}" + (f" (seed {caught_by.seed})" if caught_by else "")
            )
    print(f"{caught} of {len(PLANTED_BUGS)} planted bugs caught")
    return 1 if violated or missing or caught < len(PLANTED_BUGS) else 0


def _run_seed(seed: int, faults: int) -> ScenarioResult:
    return simulate(seed, faults)


def _shrunk(result: ScenarioResult) -> ScenarioResult:
    return shrink(result, lambda only: simulate(result.seed, result.faults, only=only))


if __name__ == "__main__":
    sys.exit(main())
