"""`python -m tests.mutation` (`make mutate`): a sample of mutants of the engine, the pipeline and the server.

A mutant is one small change of the code. Each runs with the tests that execute its line; one that no test notices
survives. Controls are mutants without a change: a test that notices one fails for another reason, so the share would
be wrong. The result is written to `docs/development/mutants.md`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from tests.mutation.equivalent import EQUIVALENT, is_equivalent
from tests.mutation.mutants import Mutant, control, mutants_of
from tests.mutation.recording import ROOT, STORED, TESTS, Recorded, record
from tests.mutation.runner import Seconds, Verdict, run

PAGE = ROOT / "docs" / "development" / "mutants.md"
MARK = "<!-- below: written by `make mutate` -->\n"
# The other parts of the server (routes, read models, triggers, lineage) are tested through a server in another process,
# where a mutant does not exist.
AREAS = {
    "engine": ("noetl/core/engine/",),
    "pipeline": ("noetl/core/pipeline/",),
    "server": tuple(f"noetl/server/{part}/" for part in ("orchestrator", "dispatch", "concurrency", "lifecycle")),
}
CONTROLS = 2  # of each area


def main(arguments: list[str] | None = None) -> int:
    """Run a sample of mutants; returns 1 if fewer than the wanted share of an area were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=150, help="mutants of each area (0: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--area", choices=[*AREAS], action="append", help="only this area")
    parser.add_argument("--file", action="append", help="all mutants of this file instead of a sample")
    parser.add_argument("--minutes", type=float, default=0, help="start no mutant after this time (0: no limit)")
    parser.add_argument("--seconds", type=float, default=Seconds().first, help="of the first tests of a mutant")
    parser.add_argument(
        "--more", type=float, default=Seconds().more, help="seconds of the tests for a survivor (0: none)"
    )
    parser.add_argument("--wanted", type=float, default=0.9, help="the share that must be noticed in each area")
    parser.add_argument("--record", nargs="*", help="record which lines these tests execute (none named: all)")
    parser.add_argument("--again", type=Path, help="run only the survivors of an earlier run (its JSON file)")
    parser.add_argument("--json", type=Path, default=STORED / "verdicts.json", help="where the verdicts are written")
    parser.add_argument("--no-page", action="store_true", help="do not write the page")
    parser.add_argument(
        "--publish", type=Path, nargs="+", help="run nothing: write the page from these JSON files, named as their runs"
    )
    given = parser.parse_args(arguments)
    if given.publish:
        _write({file.stem: msgspec.json.decode(file.read_bytes(), type=list[Verdict]) for file in given.publish})
        return 0
    if given.record is not None or not list(STORED.glob("*.tests")):
        record(given.record or TESTS)
    if given.again:
        chosen = _survivors(given.again)
    elif given.file:
        chosen = [mutant for file in given.file for mutant in _mutants(ROOT / file)]
    else:
        chosen = _samples(given.area or [*AREAS], given.sample, given.seed)
    deadline = time.monotonic() + 60 * given.minutes if given.minutes else None
    started = time.monotonic()
    verdicts = run(chosen, Recorded(), given.jobs, deadline, Seconds(given.seconds, given.more))
    given.json.write_bytes(msgspec.json.encode(verdicts))
    failed = [each for each in verdicts if each.mutant.is_control and each.noticed]
    for each in failed:
        print(f"{each.by} fails without a change")
    enough = not failed
    for area in AREAS:
        ran = _of(area, verdicts)
        noticed = sum(each.noticed for each in ran)
        if ran:
            print(f"{area}: {noticed} of {len(ran)} noticed ({100 * noticed / len(ran):.1f} %)")
            enough = enough and noticed / len(ran) >= given.wanted
    print(f"{time.monotonic() - started:.0f} s")
    if not given.no_page and not given.again and not given.file:
        _write({f"`--sample {given.sample} --seed {given.seed}`": verdicts})
    return 0 if enough else 1


def _mutants(file: Path) -> Iterator[Mutant]:
    return (mutant for mutant in mutants_of(file, ROOT) if not is_equivalent(mutant, ROOT))


def _samples(areas: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants of the areas in turn, so that a run with a time limit has as many of each."""
    samples: list[list[Mutant]] = []
    for area in areas:
        files = [file for folder in AREAS[area] for file in sorted((ROOT / folder).rglob("*.py"))]
        every = [mutant for file in files for mutant in _mutants(file)]
        source = random.Random(f"{seed} {area}")
        controls = [control(mutant) for mutant in source.sample(every, CONTROLS)]
        samples.append([*controls, *(source.sample(every, min(count, len(every))) if count else every)])
    return [mutant for turn in zip_longest(*samples) for mutant in turn if mutant is not None]


def _survivors(file: Path) -> list[Mutant]:
    """The survivors of an earlier run; each is looked up again by its line and change."""
    stored = msgspec.json.decode(file.read_bytes(), type=list[Verdict])
    wanted = [str(each.mutant) for each in stored if not each.noticed and not each.mutant.is_control]
    files = sorted({each.partition(":")[0] for each in wanted})
    return [mutant for name in files for mutant in mutants_of(ROOT / name, ROOT) if str(mutant) in wanted]


def _of(area: str, verdicts: Sequence[Verdict]) -> list[Verdict]:
    here = [each for each in verdicts if each.mutant.file.startswith(AREAS[area])]
    return [each for each in here if not each.mutant.is_control]


def _write(runs: Mapping[str, Sequence[Verdict]]) -> None:
    lines = ["| run | area | mutants | noticed | share | standard error | controls | noticed |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    survivors: list[Verdict] = []
    for name, verdicts in runs.items():
        areas = {area: ran for area in AREAS if (ran := _of(area, verdicts))}
        lines += [f"| {name} | {area} | {_figures(ran)} | {_controls(area, verdicts)} |" for area, ran in areas.items()]
        survivors += [each for each in verdicts if not each.noticed and not each.mutant.is_control]
    lines += ["", "The standard error is that of a share of so many mutants.", "", "## Survivors", ""]
    lines += [f"- `{each.mutant}`" + ("" if each.tests else " (no test executes it)") for each in survivors]
    lines += ["", "## Left out one by one", "", "No behaviour that a user or a test can observe differs:", ""]
    lines += [f"- `{file}`, `{line}`: {change}. Reason: {why}." for (file, line, change), why in EQUIVALENT.items()]
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(before + MARK + "\n" + "\n".join(lines) + "\n")


def _figures(ran: Sequence[Verdict]) -> str:
    noticed = sum(each.noticed for each in ran)
    share = noticed / len(ran)
    error = (share * (1 - share) / len(ran)) ** 0.5
    return f"{len(ran)} | {noticed} | {100 * share:.1f} % | {100 * error:.1f} %"


def _controls(area: str, verdicts: Sequence[Verdict]) -> str:
    found = [each for each in verdicts if each.mutant.is_control and each.mutant.file.startswith(AREAS[area])]
    return f"{len(found)} | {sum(each.noticed for each in found)}"


if __name__ == "__main__":
    sys.exit(main())
