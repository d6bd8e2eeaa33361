"""`python -m bench.capacity`: what an installation needs for some rates of executions, from the measured model.

CPU time is that of docs/explanation/cost-of-an-execution.md (`python -m bench profile`), by process. Writes the table
of docs/explanation/capacity.md; `--print` only prints it.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs" / "explanation"
PAGE, COSTS = DOCS / "capacity.md", DOCS / "cost-of-an-execution.md"
BEGIN, END = "<!-- made by `python -m bench.capacity` -->", "<!-- end -->"
RATES = (10, 1_000, 10_000)
BUSY = 0.6  # share of a core that is planned
STEPS, APPENDS, EVENTS = 3, 4, 23  # of the execution of the cost table: 5 events of the request, 6 of each step
BYTES_OF_EVENT = 191  # on disk, with indexes: python -m bench.database_retention (19.09 GB, 100 million events)


def cpu(page: str) -> dict[str, float]:
    """Milliseconds of CPU for one execution, by process."""
    found: dict[str, float] = {}
    for process, milliseconds in re.findall(r"^\| (Postgres|server|worker) \| [^|]+ \| ([\d.]+) \|", page, re.M):
        found[process] = found.get(process, 0.0) + float(milliseconds)
    if set(found) != {"Postgres", "server", "worker"}:
        raise SystemExit(f"{COSTS.name} has no cost table")
    return found


def _cores(rate: int, milliseconds: float) -> float:
    return rate * milliseconds / 1000 / BUSY


def table(costs: dict[str, float]) -> str:
    """The table, in Markdown."""
    rows: dict[str, list[str]] = {}
    for rate in RATES:
        day = rate * 86_400 * EVENTS * BYTES_OF_EVENT / 1e9
        for name, value in {
            "appends/s": f"{rate * APPENDS:,}",
            "server processes (one core each)": f"{max(2, math.ceil(_cores(rate, costs['server']))):,}",
            "cores for workers, without the tools": f"{max(1, math.ceil(_cores(rate, costs['worker']))):,}",
            "cores for Postgres": f"{max(1, math.ceil(_cores(rate, costs['Postgres']))):,}",
            "log per day": f"{day:,.0f} GB" if day < 1000 else f"{day / 1000:,.1f} TB",
        }.items():
            rows.setdefault(name, []).append(value)
    head = ", ".join(f"{process} {value:.2f} ms" for process, value in costs.items())
    lines = [f"CPU time of an execution of {STEPS} steps: {head}. A core is planned to be {BUSY:.0%} busy.", ""]
    lines += ["| executions/s | " + " | ".join(f"{rate:,}" for rate in RATES) + " |", "|---|" + "---:|" * len(RATES)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(values) + " |" for name, values in rows.items())])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("--print", action="store_true", help="write no file")
    only_print = parser.parse_args().print
    made = table(cpu(COSTS.read_text()))
    print(made)
    if not only_print:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
