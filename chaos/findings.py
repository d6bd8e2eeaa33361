"""What an experiment found, and the page that is written from all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from noetl import __version__


class Finding(Struct, omit_defaults=True):
    """One experiment: what was promised, what was done, what was seen."""

    part: str
    guarantee: str
    target: str
    did: str
    figures: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # figures that are outside the target
    seconds: float = 0.0
    stamp: str = ""

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "**broken**" if self.broken else "missed" if self.missed else "kept"


def stamp(quick: bool) -> str:
    """When, on what, and how busy it was."""
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    load = os.getloadavg()[0]
    size = "quick" if quick else "full"
    return (
        f"{day} UTC, NoETL {__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, {_processor()}, "
        f"{os.cpu_count()} cores, load average {load:.1f}, {size} size"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def keep(file: Path, found: Sequence[Finding]) -> list[Finding]:
    """Lay new findings over those of earlier runs, part by part."""
    try:
        known = msgspec.json.decode(file.read_bytes(), type=list[Finding])
    except FileNotFoundError:
        known = []
    merged = {each.part: each for each in known}
    for each in found:
        before = merged.get(each.part)
        if not each.target and before is not None:  # it failed before it could say what it is about
            each = msgspec.structs.replace(each, guarantee=before.guarantee, target=before.target, did=before.did)
        merged[each.part] = each
    findings = list(merged.values())
    file.write_bytes(msgspec.json.format(msgspec.json.encode(findings), indent=1) + b"\n")
    return findings


def page(findings: Sequence[Finding], order: Sequence[str]) -> str:
    """docs/reliability.md."""
    ordered = sorted(findings, key=lambda each: order.index(each.part) if each.part in order else len(order))
    lines = [
        "# Reliability",
        "",
        "Written by `make chaos` and `make load`; do not edit. Real processes are killed, stopped, starved and "
        "overloaded; afterwards every log, every projection and a table of side effects are judged. What is promised "
        "stands in the second column, what was seen below. The same experiments run under a virtual clock with "
        "thousands of seeds in `make simulate`, and in small, fixed versions in `make test`.",
        "",
        "| experiment | promise | seen | |",
        "|---|---|---|---|",
    ]
    for each in ordered:
        first = "; ".join(f"{name}: {value}" for name, value in list(each.figures.items())[:3])
        lines.append(f"| [{each.part}](#{each.part}) ({each.guarantee}) | {each.target} | {first} | {each.verdict} |")
    for each in ordered:
        lines += ["", f"## {each.part}", "", f"**{each.guarantee}.** {each.target}. {each.did}", ""]
        lines += ["| figure | value |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in each.figures.items()]
        lines += [f"| outside the target | {what} |" for what in each.missed]
        lines += [f"| **broken** | {what} |" for what in each.broken[:20]]
        lines += ["", f"Measured {each.stamp}; the experiment took {each.seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(seconds: float) -> str:
    """A time for a table."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
