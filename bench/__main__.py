"""`python -m bench [--quick] [--peers] [PART ...]`: measure, keep every figure, and write docs/benchmarks.md.

Parts are w1 w2 w3 w4, and the other modules of this folder that have a `measure`: growth, engine, store, tools and
so on. Each part runs in a process of its own, so that its memory and its caches are its own.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench import peers, workloads
from bench.figures import Figure, collected
from bench.peers import PEERS, Told
from bench.report import write
from bench.transfer import places

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.jsonl"
DOCS = HERE.parent / "docs"
WORKLOADS = ("w1", "w2", "w3", "w4")
# These have rounds of their own, and take minutes: not in a quick run.
SLOW = ("growth", "served", "standing", "streaming", "transfer")


def micro_parts() -> dict[str, str]:
    """The other parts and their modules."""
    names = sorted(path.stem for path in HERE.glob("micro_*.py"))
    names += [name for name in SLOW if (HERE / f"{name}.py").exists()]
    return {name.removeprefix("micro_"): f"bench.{name}" for name in names}


def measure_part(part: str, quick: bool) -> Iterator[Figure]:
    """Every figure of one part."""
    if part in WORKLOADS:
        yield from workloads.measure(part, quick=quick)
    else:
        module = importlib.import_module(micro_parts()[part])
        if part in SLOW:
            yield from module.measure()
        else:
            yield from collected(part, 1 if quick else 3, module.measure)


def _in_a_process(part: str, quick: bool) -> list[Figure]:
    """The figures of a part, told line by line by a process of its own."""
    command = [sys.executable, "-m", "bench", "--lines", *(["--quick"] if quick else []), part]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    figures = [msgspec.json.decode(line, type=Figure) for line in done.stdout.splitlines()]
    for each in figures:
        _show(each)
    if done.returncode:
        raise SystemExit(f"{part} ended with {done.returncode}; nothing was written")
    return figures


def _show(each: Figure) -> None:
    print(f"{each.engine:8} {each.workload:10} {each.metric:52} {each.median:14,.2f} {each.unit}", flush=True)


def measure_peers(names: Sequence[str] = ()) -> list[Told]:
    """The same workloads done by the other engines, one after the other."""
    told = []
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        print(f"== {peer.title}", flush=True)
        if peer.needs_postgres:
            with places() as place:
                said = peers.measure(
                    peer,
                    ("W5",),
                    {"BENCH_SOURCE": place.source, "BENCH_TARGET": place.target, "BENCH_ROWS": str(place.rows)},
                )
        else:
            said = peers.measure(peer, ("W1", "W2", "W3", "W4"))
        for each in said.figures:
            _show(each)
        if said.problem:
            print(f"{peer.name}: {said.problem}", flush=True)
        told.append(said)
    return told


def main(arguments: list[str] | None = None) -> None:
    """Run what was asked for."""
    known = [*WORKLOADS, *micro_parts()]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, and write docs/benchmarks.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {' '.join(known)}; all of them without any")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes, no slow parts")
    parser.add_argument("--peers", action="store_true", help="let the other engines do the same work, too")
    parser.add_argument("--lines", action="store_true", help="only print the figures, as JSON lines")
    asked = parser.parse_args(arguments)
    unknown = [part for part in asked.parts if part not in known]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    parts = asked.parts or [part for part in known if not (asked.quick and part in SLOW)]
    if asked.lines:
        for part in parts:
            for each in measure_part(part, asked.quick):
                sys.stdout.buffer.write(msgspec.json.encode(each) + b"\n")
                sys.stdout.flush()
        return
    figures = [each for part in parts for each in _in_a_process(part, asked.quick)]
    told = measure_peers() if asked.peers else []
    figures += [each for said in told for each in said.figures]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in figures))
    print(f"\nwrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    if asked.parts:
        print("docs/benchmarks.md is written by a run of all parts")
        return
    write(figures, DOCS, quick=asked.quick, told=told)
    print("wrote docs/benchmarks.md and docs/benchmarks.svg")


if __name__ == "__main__":
    main()
