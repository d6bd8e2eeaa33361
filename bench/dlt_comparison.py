"""NoETL beside dlt in one run: speed and peak memory of the same transfers, written to docs/comparison/dlt.md.

Every measurement is taken in its own process; NoETL and dlt alternate. dlt uses its pyarrow back end.

    python -m bench.dlt_comparison [ROWS] [REPEATS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.measurements import Measurement
from bench.peers import PEERS, install
from bench.report import Environment, environment
from bench.transfer import PAIRS, REPEATS, ROWS, Servers, _once, running_servers

PAGE = Path(__file__).parent.parent / "docs" / "comparison" / "dlt.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
KINDS = ("duckdb", "parquet", "postgres")
Taken = tuple[float, float]  # rows per second, peak memory in MB


def _dlt(python: Path, servers: Servers, kind: str) -> Taken:
    given = {"BENCH_SOURCE": servers.source, "BENCH_TARGET": servers.target, "BENCH_ROWS": str(servers.rows)}
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / "peers" / "dlt_peer.py"), "W5"],
        env={**os.environ, **given, "BENCH_KINDS": kind, "PYTHONPATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"dlt to {kind} failed:\n{done.stderr[-3000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    found = msgspec.json.decode(line, type=Measurement)
    return found.median, found.rss_mb or 0.0


def measure(rows: int = ROWS, repeats: int = REPEATS) -> dict[str, dict[str, list[Taken]]]:
    """The samples by kind of target and engine."""
    python = install(next(peer for peer in PEERS if peer.name == "dlt"))
    samples: dict[str, dict[str, list[Taken]]] = {kind: {"noetl": [], "dlt": []} for kind in KINDS}
    with running_servers(rows) as servers:
        for kind in KINDS:
            for _ in range(repeats):
                seconds, peak = _once(servers, f"noetl_{kind}")
                samples[kind]["noetl"].append((rows / seconds, peak))
                samples[kind]["dlt"].append(_dlt(python, servers, kind))
    return samples


def table(samples: dict[str, dict[str, list[Taken]]], rows: int, repeats: int, began: Environment) -> str:
    """The section of the page; `began` are the conditions at the start."""
    lines = [
        f"{rows:,} rows of 10 mixed columns, median of {repeats}, measured by "
        f"`python -m bench.dlt_comparison {rows} {repeats}` on {began.time}, revision {began.revision}: "
        f"{began.machine}; load average {began.load}.",
        "",
        "| transfer | NoETL | dlt | ratio | NoETL, memory | dlt, memory |",
        "|---|---|---|---|---|---|",
    ]
    for kind, taken in samples.items():
        speed = {engine: statistics.median(rate for rate, _ in found) for engine, found in taken.items()}
        peak = {engine: max(memory for _, memory in found) for engine, found in taken.items()}
        lines.append(
            f"| {PAIRS[kind]} | {speed['noetl']:,.0f} rows/s | {speed['dlt']:,.0f} rows/s | "
            f"{speed['noetl'] / speed['dlt']:.1f}x | {peak['noetl']:.0f} MB | {peak['dlt']:.0f} MB |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sizes = [int(text) for text in sys.argv[1:]] or [ROWS, REPEATS]
    rows_, repeats_ = [*sizes, REPEATS][:2]
    conditions = environment()
    section = table(measure(rows_, repeats_), rows_, repeats_, conditions)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{section}\n{END}{rest.partition(END)[2]}")
    print(section)
