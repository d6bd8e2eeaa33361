"""`python -m bench [--quick] [--peers] [PART ...]`: run the benchmarks and write docs/benchmarks.md.

Parts are w1 w2 w3 w4, and the other modules of this folder with a function `measure`: growth, engine, store, tools and
so on. Each part runs in its own process, so that memory and caches are not shared. A part replaces its own record in
`bench/results/`, and the page is written from all records. `python -m bench profile` measures the cost of an execution
by station (`bench.execution_cost`).
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench import execution_cost, peers, workloads
from bench.measurements import Measurement, measure_repeatedly, merge_turns
from bench.peers import PEERS, Peer, PeerResult, merge_results
from bench.report import Record, environment, save, saved, write
from bench.transfer import running_servers

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
WORKLOADS = ("w1", "w2", "w3", "w4")
TURNS = {"w1": 3, "w2": 3}  # turns with the nearest peer; elsewhere the difference is an order of magnitude
# These parts define their own rounds and take minutes; they are not part of a quick run.
SLOW = ("growth", "server_workloads", "idle_server", "streaming", "transfer", "connectors")


def micro_parts() -> dict[str, str]:
    """The other parts and their modules."""
    names = sorted(path.stem for path in HERE.glob("micro_*.py"))
    names += [name for name in SLOW if (HERE / f"{name}.py").exists()]
    return {name.removeprefix("micro_"): f"bench.{name}" for name in names}


def measure_part(part: str, quick: bool) -> Iterator[Measurement]:
    """The measurements of one part."""
    if part in WORKLOADS:
        yield from workloads.measure(part, quick=quick)
    else:
        module = importlib.import_module(micro_parts()[part])
        if part in SLOW:
            yield from module.measure()
        else:
            yield from measure_repeatedly(part, 1 if quick else 3, module.measure)


def _measure_in_process(part: str, quick: bool) -> list[Measurement]:
    """Run a part in its own process, which prints its measurements as JSON lines."""
    command = [sys.executable, "-m", "bench", "--lines", *(["--quick"] if quick else []), part]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    measurements = [msgspec.json.decode(line, type=Measurement) for line in done.stdout.splitlines()]
    for each in measurements:
        _show(each)
    if done.returncode:
        raise SystemExit(f"{part} exited with {done.returncode}; nothing was written")
    return measurements


def _show(each: Measurement) -> None:
    print(f"{each.engine:8} {each.workload:10} {each.metric:52} {each.median:14,.2f} {each.unit}", flush=True)


def measure_peer(peer: Peer, part: str) -> PeerResult:
    """The measurements of another engine for this part."""
    print(f"== {peer.title}", flush=True)
    if peer.needs_postgres:
        with running_servers() as servers:
            given = {"BENCH_SOURCE": servers.source, "BENCH_TARGET": servers.target, "BENCH_ROWS": str(servers.rows)}
            result = peers.measure(peer, "W5", given)
    else:
        result = peers.measure(peer, part.upper())
    for each in result.measurements:
        _show(each)
    if result.problem:
        print(f"{peer.name}: {result.problem}", flush=True)
    return result


def measure_with_peers(part: str, quick: bool) -> tuple[list[Measurement], list[PeerResult]]:
    """The measurements of NoETL and of the peers that do the work of this part.

    The speed of a machine varies over half an hour: in the workloads with a small difference, NoETL and the nearest
    peer alternate."""
    if part not in WORKLOADS:
        ours = _measure_in_process(part, quick)
        return ours, [measure_peer(peer, part) for peer in PEERS if peer.needs_postgres and part == "transfer"]
    nearest, *others = (peer for peer in PEERS if not peer.needs_postgres)
    measurements: list[Measurement] = []
    turns: list[PeerResult] = []
    for _ in range(TURNS.get(part, 1)):
        measurements += _measure_in_process(part, quick)
        turns.append(measure_peer(nearest, part))
    return merge_turns(measurements), [merge_results(turns), *(measure_peer(peer, part) for peer in others)]


def main(arguments: list[str] | None = None) -> None:
    """Run the selected parts; `profile` is another command with its own options."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["profile"]:
        execution_cost.main(given[1:])
        return
    known = [*WORKLOADS, *micro_parts()]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks, write docs/benchmarks.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {' '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes, no slow parts; only prints")
    parser.add_argument("--peers", action="store_true", help="also measure other engines")
    parser.add_argument("--lines", action="store_true", help="only print the measurements as JSON lines")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in known]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; the parts are {', '.join(known)}")
    parts = options.parts or [part for part in known if not (options.quick and part in SLOW)]
    if options.lines:
        for part in parts:
            for each in measure_part(part, options.quick):
                sys.stdout.buffer.write(msgspec.json.encode(each) + b"\n")
                sys.stdout.flush()
        return
    for part in parts:
        conditions = environment()
        if options.peers:
            measurements, results = measure_with_peers(part, options.quick)
        else:
            measurements, results = _measure_in_process(part, options.quick), []
        if not options.quick:
            save(Record(part, conditions, measurements, results), RESULTS)
            write(saved(RESULTS, known), DOCS)
            print(f"wrote bench/results/{part}.json, docs/benchmarks.md and its pictures", flush=True)


if __name__ == "__main__":
    main()
