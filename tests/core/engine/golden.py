"""Golden logs: executions of a release, kept for ever and folded by every later version.

`python tests/core/engine/golden.py NAME` plays the engine's own tests and some random worlds, and writes their
logs to `logs/NAME.jsonl.gz` with what the state was half-way and at the end. A file that has been
written stays as it is; a new event version gets a new file beside it.
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
MODULES = ("steps", "admission", "loops", "leases", "control", "synthesis", "views")
WORLDS = 60


def picture(state: State) -> dict[str, Any]:
    """What a state means, in names that do not change when the state's insides do."""
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
    )


def plain(value: Any) -> bytes:
    """A picture as bytes."""
    return msgspec.json.encode(value, order="sorted")


def read(path: Path) -> list[dict[str, Any]]:
    """The executions of one file."""
    return [msgspec.json.decode(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def events_of(kept: dict[str, Any]) -> list[Recorded]:
    """An execution's log, decoded as from a store."""
    return [
        Recorded(kept["execution_id"], seq, at, decode_body(name, version, msgspec.json.encode(body)))
        for seq, at, name, version, body in kept["events"]
    ]


def playbook_of(kept: dict[str, Any]) -> Playbook:
    """The playbook an execution ran."""
    return msgspec.convert(kept["playbook"], Playbook)


def _plays() -> list[tuple[str, Any]]:
    """Play every test of the engine that takes no argument, and keep what it played."""
    import engine_play
    from test_engine_random import World

    found: list[tuple[str, Any]] = []
    name = ""
    make = engine_play.Play.__init__

    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append((name, self))

    engine_play.Play.__init__ = remember
    for module in MODULES:
        for test, function in inspect.getmembers(importlib.import_module(f"test_engine_{module}"), inspect.isfunction):
            if test.startswith("test_") and not inspect.signature(function).parameters:
                name = test
                function()
    for seed in range(10_000, 10_000 + WORLDS):
        name = f"world {seed}"
        World(seed).run()
    return found


def write(path: Path) -> int:
    """Keep the executions; how many."""
    lines = []
    for name, play in _plays():
        if not play.log or len(play.log) > 2_000:
            continue
        half = len(play.log) // 2
        lines.append(
            plain(
                {
                    "name": name,
                    "execution_id": play.state.execution_id,
                    "playbook": msgspec.to_builtins(play.playbook),
                    "events": [
                        [each.seq, each.at, each.body.NAME, each.body.VERSION, msgspec.Raw(encode_body(each.body))]
                        for each in play.log
                    ],
                    "half": picture(fold(play.playbook, play.log[:half])) if half else None,
                    "end": picture(fold(play.playbook, play.log)),
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
    print(write(target), "executions,", target.stat().st_size, "bytes")
