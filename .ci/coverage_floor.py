"""Print statement coverage by package and fail below the floor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coverage import Coverage

FLOORS = {"noetl/core": 90.0, "noetl/server": 90.0, "noetl/worker": 90.0, "noetl": 90.0}


def main() -> int:
    """Read .coverage, print a table, compare with the floors."""
    measured = Coverage()
    measured.load()
    report = Path(".coverage.json")
    measured.json_report(outfile=str(report), morfs=None, pretty_print=False)
    files = json.loads(report.read_text())["files"]
    report.unlink()
    failed = False
    packages = sorted({"/".join(name.split("/")[:2]) for name in files if name.count("/") > 1} | set(FLOORS))
    for package in packages:
        summaries = [entry["summary"] for name, entry in files.items() if name.startswith(f"{package}/")]
        statements = sum(entry["num_statements"] for entry in summaries)
        covered = sum(entry["covered_lines"] for entry in summaries)
        percent = 100.0 * covered / statements if statements else 100.0
        floor = FLOORS.get(package)
        below = floor is not None and percent < floor
        failed |= below
        note = f"  floor {floor:.0f} %" if floor is not None else ""
        print(f"{package:24} {covered:6} of {statements:6}  {percent:5.1f} %{note}{'  BELOW' if below else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
