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
from bench.figures import Figure, collected, merged
from bench.peers import PEERS, Peer, Told, together
from bench.report import write
from bench.transfer import places

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.jsonl"
DOCS = HERE.parent / "docs"
WORKLOADS = ("w1", "w2", "w3", "w4")
TURNS = {"w1": 3, "w2": 3}  # with the nearest peer; in the others an order of magnitude is between us
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


def measure_peer(peer: Peer, parts: Sequence[str]) -> Told:
    """What another engine does of these parts."""
    print(f"== {peer.title}", flush=True)
    if peer.needs_postgres:
        with places() as place:
            given = {"BENCH_SOURCE": place.source, "BENCH_TARGET": place.target, "BENCH_ROWS": str(place.rows)}
            said = peers.measure(peer, ("W5",), given)
    else:
        said = peers.measure(peer, tuple(part.upper() for part in parts if part in WORKLOADS))
    for each in said.figures:
        _show(each)
    if said.problem:
        print(f"{peer.name}: {said.problem}", flush=True)
    return said


def measure_ours(parts: Sequence[str], quick: bool) -> list[Figure]:
    """Our own figures."""
    return [each for part in parts for each in _in_a_process(part, quick)]


def measure_beside(parts: Sequence[str], quick: bool) -> tuple[list[Figure], list[Told]]:
    """Our own figures and the peers'.

    A machine is not equally fast for half an hour: where few times are between us and the nearest peer, both take
    turns."""
    nearest, *others = PEERS
    figures: list[Figure] = []
    turns: list[Told] = []
    for part in parts:
        if part not in WORKLOADS:
            figures += _in_a_process(part, quick)
            continue
        for _ in range(TURNS.get(part, 1)):
            figures += _in_a_process(part, quick)
            turns.append(measure_peer(nearest, (part,)))
    asked = [peer for peer in others if (("transfer" in parts) if peer.needs_postgres else turns)]
    told = [together(turns)] if turns else []
    return merged(figures), told + [measure_peer(peer, parts) for peer in asked]


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
    figures, told = measure_beside(parts, asked.quick) if asked.peers else (measure_ours(parts, asked.quick), [])
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
