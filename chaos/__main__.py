"""`python -m chaos [--quick] [PART ...]`: harm real processes, judge what is left, write docs/reliability.md.

`make chaos` runs the parts that kill and starve, `make load` those that overload. A run of some parts keeps the
figures of the others as they were.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from chaos import experiments
from chaos.findings import Finding, keep, page, stamp

DOCS = Path(__file__).parents[1] / "docs"
LONGEST = {"kills": 1200.0, "burst": 600.0}  # seconds an experiment may take on a machine that is not quiet
LONGEST_OTHERS = 420.0


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 when a promise was broken."""
    known = {**experiments.CHAOS, **experiments.LOAD}
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Harm, judge, and write docs/reliability.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"chaos, load, or of {' '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a look")
    parser.add_argument("--no-report", action="store_true", help="only print what was found")
    asked = parser.parse_args(arguments)
    groups = {"chaos": list(experiments.CHAOS), "load": list(experiments.LOAD)}
    parts = [part for word in asked.parts or ["chaos"] for part in groups.get(word, [word])]
    unknown = [part for part in parts if part not in known]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    found = []
    for part in parts:
        print(f"== {part}", flush=True)
        began = time.monotonic()
        try:
            with _limit(LONGEST.get(part, LONGEST_OTHERS)):
                each = known[part](quick=asked.quick)
        except Exception as problem:  # noqa: BLE001 - the others are still to be done, and this one is to be told
            traceback.print_exc()
            each = Finding(
                part, "", "", "", broken=[f"the experiment itself failed: {type(problem).__name__}: {problem}"]
            )
        each = msgspec.structs.replace(each, part=part, seconds=time.monotonic() - began, stamp=stamp(asked.quick))
        found.append(each)
        _show(each)
        if not asked.no_report:  # after each, so that a run that is broken off has told what it saw
            findings = keep(DOCS / "reliability.json", [each])
            (DOCS / "reliability.md").write_text(page(findings, list(known)))
    if not asked.no_report:
        print("wrote docs/reliability.md")
    return 1 if any(each.broken for each in found) else 0


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Nobody watches: what hangs is broken off, and what it started is stopped."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it had not ended after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _show(found: Finding) -> None:
    print(f"   {found.verdict.strip('*')}: {found.target}")
    for name, value in found.figures.items():
        print(f"   {name:48} {value}")
    for what in (*found.missed, *found.broken[:20]):
        print(f"   ! {what}")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    sys.exit(main())
