"""Golden logs: executions of a release, stored permanently and folded by every later version.

`python tests/core/engine/golden.py NAME [MODULE...]` runs the engine's own tests and some random executions (or only the
tests of some modules), and writes their logs to `logs/NAME.jsonl.gz` with the state at the middle and at the end. A file
is never rewritten; a new event version gets a new file.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import msgspec

from noetl.core.engine.advance import fold
from noetl.core.engine.state import State
from noetl.core.model.events import Recorded, decode_body, encode_body
from noetl.core.model.playbook import Playbook

LOGS = Path(__file__).parent / "logs"
MODULES = (
    "steps", "admission", "loops", "leases", "control", "synthesis", "views", "waits", "reruns", "compensation",
    "arc_keys", "custom_events", "state", "waiting_children",
)  # fmt: skip
RANDOM_EXECUTIONS = 60


def summary_of(state: State) -> dict[str, Any]:
    """The meaning of a state, in names that are independent of its representation."""
    return msgspec.to_builtins(
        {
            "seq": state.seq,
            "status": state.status,
            "workload": state.workload,
            "ctx": state.ctx,
            "output": state.output,
            "error": state.error,
            "result_step": state.result_step,
            "tokens": {
                name: [[token.id, token.args, token.reason] for token in state.waiting[name]]
                for name in sorted(state.waiting)
            },
            "steps": {
                name: [record.number, record.open, record.running, record.outcome, record.finished_at]
                for name, record in sorted(state.steps.items())
            },
            "runs": {
                run.id: [run.phase, run.args, run.input, run.outcome, run.started_at, run.due, sorted(run.loops)]
                for run in state.runs.values()
            },
            "loops": {
                f"{run.id}{list(path)}": [
                    loop.count,
                    loop.finished,
                    loop.succeeded,
                    loop.failed,
                    loop.issued,
                    loop.target,
                ]
                for run in state.runs.values()
                for path, loop in run.loops.items()
            },
            "leases": {
                run.id: [run.status, run.epoch, run.worker, run.position, run.resume, run.lost]
                for run in state.open.values()
            },
            "children": {child.key: [child.run_id, child.child] for child in state.children.values()},
            "due": state.due,
        }
        | (
            {"versions": state.versions, "uncommitted": list(state.uncommitted)}
            if state.versions or state.uncommitted
            else {}
        )
        | (
            {"waits": {wait.key: [wait.run_id, wait.at, wait.due] for wait in state.waits.values()}}
            if state.waits
            else {}
        )
        | ({"signals": {str(seq): kept.signal for seq, kept in state.signals.items()}} if state.signals else {})
    )


def plain(value: Any) -> bytes:
    """A summary as bytes."""
    return msgspec.json.encode(value, order="sorted")


def read(path: Path) -> list[dict[str, Any]]:
    """The executions of one file."""
    return [msgspec.json.decode(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def events_of(stored: dict[str, Any]) -> list[Recorded]:
    """An execution's log, decoded as from a store."""
    return [
        Recorded(stored["execution_id"], seq, at, decode_body(name, version, msgspec.json.encode(body)))
        for seq, at, name, version, body in stored["events"]
    ]


def playbook_of(stored: dict[str, Any]) -> Playbook:
    """The playbook of an execution."""
    return msgspec.convert(stored["playbook"], Playbook)


def _harnesses(modules: list[str]) -> list[tuple[str, Any]]:
    """Run every test of the engine that takes no argument, and collect its harnesses."""
    import engine_harness
    from test_engine_random import RandomExecution

    found: list[tuple[str, Any]] = []
    name = ""
    initialize = engine_harness.Harness.__init__

    def collect(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        found.append((name, self))

    engine_harness.Harness.__init__ = collect
    for module in modules or MODULES:
        for test, function in inspect.getmembers(importlib.import_module(f"test_engine_{module}"), inspect.isfunction):
            if test.startswith("test_") and not inspect.signature(function).parameters:
                name = test
                function()
    for seed in () if modules else range(10_000, 10_000 + RANDOM_EXECUTIONS):
        name = f"random {seed}"
        RandomExecution(seed).run()
    return found


def write(path: Path, modules: list[str]) -> int:
    """Write the executions; return their number."""
    lines = []
    for name, harness in _harnesses(modules):
        if not harness.log or len(harness.log) > 2_000:
            continue
        half = len(harness.log) // 2
        lines.append(
            plain(
                {
                    "name": name,
                    "execution_id": harness.state.execution_id,
                    "playbook": msgspec.to_builtins(harness.playbook),
                    "events": [
                        [each.seq, each.at, each.body.NAME, each.body.VERSION, msgspec.Raw(encode_body(each.body))]
                        for each in harness.log
                    ],
                    "half": summary_of(fold(harness.playbook, harness.log[:half])) if half else None,
                    "end": summary_of(fold(harness.playbook, harness.log)),
                }
            )
        )
    path.write_bytes(gzip.compress(b"\n".join(lines), mtime=0))
    return len(lines)


if __name__ == "__main__":
    target = LOGS / f"{sys.argv[1]}.jsonl.gz"
    if target.exists():
        sys.exit(f"{target} exists: golden logs are never rewritten")
    LOGS.mkdir(exist_ok=True)
    print(write(target, sys.argv[2:]), "executions,", target.stat().st_size, "bytes")
