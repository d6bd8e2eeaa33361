"""`python -m tests.simulation`: many seeds of simulated faults, and the planted bugs.

Prints one line per violated promise with the seed that shows it, shrunk to as few faults as possible.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import Story, shrink, simulate
from tests.simulation.bugs import BUGS, catches


def main(arguments: list[str] | None = None) -> int:
    """Run them; 1 when a promise was broken or a bug was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--faults", type=int, default=50, help="faults in each story")
    parser.add_argument("--no-bugs", action="store_true", help="leave the planted bugs out")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    broken = events = struck = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seeds = range(given.first, given.first + given.seeds)
        for story in pool.map(_tell, seeds, [given.faults] * given.seeds, chunksize=20):
            events += story.events
            struck += len(story.struck)
            if story.violations:
                broken += 1
                print(_shrunk(story).tell(), flush=True)
        print(
            f"{given.seeds} seeds, {struck} faults, {events} events: {broken} broken promises "
            f"({time.monotonic() - started:.0f} s)"
        )
        if given.no_bugs:
            return 1 if broken else 0
        caught = 0
        for name, shown in zip(BUGS, pool.map(catches, BUGS), strict=True):
            caught += shown is not None
            print(f"  {'caught' if shown else 'MISSED'}: {name}" + (f" (seed {shown.seed})" if shown else ""))
    print(f"{caught} of {len(BUGS)} planted bugs caught")
    return 1 if broken or caught < len(BUGS) else 0


def _tell(seed: int, faults: int) -> Story:
    return simulate(seed, faults)


def _shrunk(story: Story) -> Story:
    return shrink(story, lambda only: simulate(story.seed, story.faults, only=only))


if __name__ == "__main__":
    sys.exit(main())
