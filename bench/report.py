"""docs/benchmarks.md and its plot, from the figures of one run; nothing of them is typed by hand."""

from __future__ import annotations

import math
import os
import platform
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.figures import Figure
from bench.growth import CURVES, SIZES, metric
from bench.peers import Told
from bench.served import FORMS
from noetl import __version__

PACKAGES = ("msgspec", "aiohttp", "jinja2", "duckdb", "pyarrow")
GROWTH_COLOURS = ("#2563eb", "#059669", "#d97706", "#9333ea")
COLOURS = {"noetl": "#2563eb", "limit": "#9ca3af"}


def write(figures: list[Figure], folder: Path, *, quick: bool, told: Sequence[Told] = ()) -> None:
    """Write both files."""
    # Both are made before either is written: a file of ours that changed is no change of what was measured.
    made = {
        "benchmarks.svg": plot(figures),
        "growth.svg": growth_plot(figures),
        "benchmarks.md": page(figures, quick=quick, told=told),
    }
    for name, text in made.items():
        (folder / name).write_text(text)


def page(figures: list[Figure], *, quick: bool = False, told: Sequence[Told] = ()) -> str:
    """The whole page; `told` is what the peers did in the same run."""
    theirs = {said.peer.name for said in told}
    beside = figures
    figures = [each for each in figures if each.engine not in theirs]
    sections = [
        "# Benchmarks\n",
        "Written by `make bench`; do not edit. Every acknowledgement waits for the flush to disk "
        "(SQLite, WAL, `synchronous=FULL`). The bare limit is the same events written by a group-commit loop with no "
        "engine around it, measured in the same run, in turns. Warm work is done in a process set up as ours are that "
        "live long (libuv's loop, a rare collector), the bare limit, too. Higher is better for rates, lower for times; "
        "the last column says how far from the limit we are.\n",
        "\n".join(f"- {line}" for line in machine(quick)) + "\n",
        "![the workloads beside their bare limit](benchmarks.svg)\n",
        "## Workloads\n",
        _workloads(sorted((each for each in figures if each.workload.startswith("W")), key=_place)),
    ]
    if told:
        sections += ["## Beside the peers\n", _peers(beside, told)]
    growth = [each for each in figures if each.workload == "growth" and each.engine == "noetl"]
    if growth:
        sections += [
            "## How cost grows\n",
            _growth(growth),
            "![cost of one piece as its surroundings grow](growth.svg)\n",
        ]
    micro = [each for each in figures if not each.workload.startswith("W") and each.workload != "growth"]
    if micro:
        sections += ["## Parts\n", _plain(micro)]
    return "\n".join(sections)


def machine(quick: bool) -> list[str]:
    """What the run ran on."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    day, size = time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "quick" if quick else "full"
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return [
        f"{day} UTC, revision {_revision()}, {size} run",
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; load average {load}",
        f"NoETL {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {packages}",
    ]


def _revision() -> str:
    # A tree with changes in it says so: its figures belong to no revision.
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=, with uncommitted changes"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


# ── tables ──────────────────────────────────────────────────────────────────────────────


def _workloads(figures: Iterable[Figure]) -> str:
    kept = list(figures)
    limits = {(each.workload, each.metric): each for each in kept if each.engine == "limit"}
    lines = [
        "| workload | | median | spread | n | peak RSS | bare limit | of the limit |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in kept:
        if each.engine == "limit":
            continue
        limit = limits.get((each.workload, each.metric))
        told = f"{number(limit.median)} {limit.unit}" if limit else ""
        ratio = f"{nearness(each, limit):.0%}" if limit else ""
        lines.append(
            f"| {each.workload} | {each.metric} | {number(each.median)} {each.unit} | {spread(each)} | {each.n} "
            f"| {_memory(each)} | {told} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def _place(each: Figure) -> tuple[int, str]:
    """The embedded engine first, then the forms with processes of their own; in each by workload."""
    titles = [title for title, *_ in FORMS.values()]
    return next((at for at, title in enumerate(titles, 1) if each.metric.startswith(title)), 0), each.workload


SERVED = FORMS["one"][0]
# Rows of ours beside the peers: our metric, theirs, and why they may stand in one row.
SAME_WORK = (
    ("W1", "1 noop step", "1 noop step", "one execution of one task, warm"),
    ("W1", "cold process", "cold process", "one execution, the whole process"),
    ("W2", "40 python steps", "40 python steps", "chain of 40 tasks, fib(10) each"),
    ("W3", "loop of 1,000 noop items", "loop of 1,000 noop items", "fan-out of 1,000"),
    ("W3", "loop of 1,000 python items", "loop of 1,000 noop items", "fan-out of 1,000, ours in python processes"),
    ("W4", "1,000 executions of 3 noop steps", "1,000 executions of 3 noop steps", "1,000 executions of 3 tasks"),
    ("W1", f"{SERVED}: 1 noop step", "1 noop step", "one task, our server and workers as processes on Postgres"),
    ("W3", f"{SERVED}: loop of 1,000 noop items", "loop of 1,000 noop items", "fan-out, server and workers"),
    ("W5", "postgres to duckdb", "postgres to duckdb", "1,000,000 rows, Postgres to DuckDB"),
    ("W5", "postgres to parquet", "postgres to parquet", "1,000,000 rows, Postgres to Parquet"),
    ("W5", "postgres to postgres", "postgres to postgres", "1,000,000 rows, Postgres to Postgres"),
)


def _peers(figures: Iterable[Figure], told: Sequence[Told]) -> str:
    """One row a workload: ours, each peer's, and how many times faster than the fastest of them we are."""
    known = {(each.engine, each.workload, each.metric): each for each in figures}
    names = [said.peer.name for said in told]
    lines = [
        f"| workload | NoETL | {' | '.join(names)} | faster than the best |",
        f"|---|--:|{'--:|' * len(names)}--:|",
    ]
    for workload, ours_name, theirs_name, what in SAME_WORK:
        ours = known.get(("noetl", workload, ours_name))
        theirs = [known.get((name, workload, theirs_name)) for name in names]
        if ours is None or not any(theirs):
            continue
        ratio = min(1 / nearness(each, ours) for each in theirs if each is not None)
        cells = [f"{number(each.median)} {each.unit}" if each is not None else "" for each in theirs]
        row = [f"{workload} {what}", f"{number(ours.median)} {ours.unit}", *cells, f"**{ratio:.1f}x**"]
        lines.append(f"| {' | '.join(row)} |")
    notes = [
        f"- {said.peer.name}: {said.peer.title}{f', {said.version}' if said.version else ''}"
        + (f"; **{said.problem}**" if said.problem else "")
        for said in told
    ]
    intro = (
        "The same work on the same machine in the same run, each engine in the form in which it is fastest while it "
        "keeps durable state; W1 and W2 in turns with the nearest. Their scripts are in `bench/peers/`. "
        "`make bench-peers` writes this.\n"
    )
    return "\n".join([intro, *lines, "", *notes]) + "\n"


def _plain(figures: Iterable[Figure]) -> str:
    lines = ["| part | | median | spread | n | peak RSS |", "|---|---|--:|--:|--:|--:|"]
    for each in figures:
        told = f"{number(each.median)} {each.unit}"
        lines.append(f"| {each.workload} | {each.metric} | {told} | {spread(each)} | {each.n} | {_memory(each)} |")
    return "\n".join(lines) + "\n"


def _growth(figures: Iterable[Figure]) -> str:
    """A row a curve: the cost of one piece at each size, and what the largest costs beside the cheapest."""
    known = {each.metric: each for each in figures}
    lines = ["| the cost of | at the sizes | | | | largest to cheapest |", "|---|--:|--:|--:|--:|--:|"]
    for curve, what in CURVES.items():
        points = [(size, known[metric(curve, size)]) for size in SIZES[curve] if metric(curve, size) in known]
        if points:
            cells = [f"{size:,}: {number(each.median)} {each.unit}" for size, each in points]
            cells += [""] * (4 - len(cells))
            lines.append(f"| {what} | {' | '.join(cells)} | {_steepness(points):.2f}x |")
    others = [each for each in known.values() if each.metric.startswith("a page")]
    lines += ["", *(f"- {each.metric}: {number(each.median)} {each.unit}" for each in others)]
    return "\n".join(lines) + "\n"


def _steepness(points: Sequence[tuple[int, Figure]]) -> float:
    return points[-1][1].median / min(each.median for _, each in points)


def _memory(each: Figure) -> str:
    return f"{each.rss_mb:,.0f} MB" if each.rss_mb is not None else ""


def spread(each: Figure) -> str:
    """From the least to the most."""
    return f"{number(each.min)} to {number(each.max)}" if each.n > 1 else ""


def number(value: float) -> str:
    """Three digits that matter."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def nearness(ours: Figure, limit: Figure) -> float:
    """1 at the limit, less below it, whether the unit is a time or a rate."""
    if ours.unit.endswith("/s"):
        return ours.median / limit.median
    return limit.median / ours.median


# ── the plot ────────────────────────────────────────────────────────────────────────────


def plot(figures: list[Figure]) -> str:
    """Bars on a logarithmic axis: each workload beside its bare limit, in multiples of the limit's time."""
    ours = [each for each in figures if each.engine == "noetl" and each.workload.startswith("W")]
    limits = {(each.workload, each.metric): each for each in figures if each.engine == "limit"}
    pairs = [(each, limits[each.workload, each.metric]) for each in ours if (each.workload, each.metric) in limits]
    times = [(each, max(1.0, 1 / nearness(each, limit))) for each, limit in pairs]
    top = 10 ** math.ceil(math.log10(max([10.0, *(times_limit for _, times_limit in times)])))
    left, width, row = 320, 460, 22
    height = 50 + row * len(times)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="16">'
        "time in multiples of the bare limit (1 is the limit; logarithmic)</text>",
    ]
    for power in range(round(math.log10(top)) + 1):
        x = left + width * power / math.log10(top)
        parts.append(f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{height - 18}" stroke="{COLOURS["limit"]}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{10**power}</text>')
    for index, (each, times_limit) in enumerate(times):
        y = 28 + row * index
        length = max(2.0, width * math.log10(times_limit) / math.log10(top))
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{each.workload} {each.metric}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="16" fill="{COLOURS["noetl"]}"/>')
        parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 13}">{times_limit:.1f}x</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def growth_plot(figures: list[Figure]) -> str:
    """A line a curve: the cost of one piece in multiples of the curve's cheapest point, over the size."""
    known = {each.metric: each.median for each in figures if each.workload == "growth"}
    left, top, width, height, most = 60, 30, 560, 220, 3.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 330}" height="{top + height + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{left}" y="16">'
        "cost of one piece, in multiples of its cheapest (over the size, logarithmic)</text>",
    ]

    def place(size: int, times: float) -> tuple[float, float]:
        return left + width * math.log10(max(size, 1)) / 6, top + height * (1 - min(times, most) / most)

    for times in (0.0, 1.0, 1.5, 2.0, 3.0):
        y = place(1, times)[1]
        dash = ' stroke-dasharray="4 4"' if times == 1.5 else ""
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#d1d5db"{dash}/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{times:g}x</text>')
    for power in range(7):
        x = place(10**power, 0)[0]
        parts.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{10**power:,}</text>')
    for number_of, (curve, colour) in enumerate(zip(CURVES, GROWTH_COLOURS, strict=True)):
        points = [(size, known[metric(curve, size)]) for size in SIZES[curve] if metric(curve, size) in known]
        if not points:
            continue
        least = min(cost for _, cost in points)
        spots = [place(size, cost / least) for size, cost in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        y = top + 16 + 20 * number_of
        parts.append(f'<rect x="{left + width + 16}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{left + width + 32}" y="{y}">{CURVES[curve]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
