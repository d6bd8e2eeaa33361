"""`python -m chaos [--quick] [PART ...]`: run the experiments and write docs/reliability.md.

`make chaos` runs the fault experiments, `make load` the load experiments. A run of some experiments does not change
the stored findings of the others.
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
from chaos.findings import Finding, describe_environment, merge_findings, render_page

DOCS = Path(__file__).parents[1] / "docs"
TIME_LIMITS = {
    "kills": 1200.0,
    "sagas": 1200.0,
    "nodes": 1200.0,
    "once": 2400.0,
    "once-cluster": 2400.0,
    "once-run": 2400.0,
    "burst": 600.0,
    "soak": 3600.0,
    **{part: 3600.0 for part in experiments.CHAOS if part.startswith("transfers-")},
}  # seconds, generous enough for a busy machine
DEFAULT_TIME_LIMIT = 420.0


def main(arguments: list[str] | None = None) -> int:
    """Run the selected experiments; 1 if a guarantee was violated."""
    known = {**experiments.CHAOS, **experiments.LOAD}
    groups = {
        "chaos": list(experiments.CHAOS),
        "load": list(experiments.LOAD),
        "transfers": [part for part in experiments.CHAOS if part.startswith("transfers-")],
    }
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Run experiments, write docs/reliability.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(groups)}, or of {' '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--no-report", action="store_true", help="print the findings, write no file")
    options = parser.parse_args(arguments)
    parts = [part for name in options.parts or ["chaos"] for part in groups.get(name, [name])]
    unknown = [part for part in parts if part not in known]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; the parts are {', '.join(known)}")
    found = []
    for part in parts:
        print(f"== {part}", flush=True)
        began = time.monotonic()
        try:
            with _time_limit(TIME_LIMITS.get(part, DEFAULT_TIME_LIMIT)):
                finding = known[part](quick=options.quick)
        except Exception as problem:  # noqa: BLE001 - the failure is a finding, and the other experiments still run
            traceback.print_exc()
            finding = Finding(
                part, "", "", "", violations=[f"the experiment itself failed: {type(problem).__name__}: {problem}"]
            )
        environment = describe_environment(options.quick)
        finding = msgspec.structs.replace(finding, part=part, seconds=time.monotonic() - began, environment=environment)
        found.append(finding)
        _show(finding)
        if not options.no_report:  # after each experiment, so that an aborted run keeps its findings
            findings = merge_findings(DOCS / "reliability.json", [finding])
            (DOCS / "reliability.md").write_text(render_page(findings, list(known)))
    if not options.no_report:
        print("wrote docs/reliability.md")
    return 1 if any(finding.violations for finding in found) else 0


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Abort an experiment that hangs; the processes it started are stopped."""

    def abort(*_: object) -> None:
        raise TimeoutError(f"not finished after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, abort)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _show(finding: Finding) -> None:
    print(f"   {finding.verdict.strip('*')}: {finding.target}")
    for name, value in finding.figures.items():
        print(f"   {name:48} {value}")
    for what in (*finding.missed, *finding.violations[:20]):
        print(f"   ! {what}")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started processes are stopped
    sys.exit(main())
