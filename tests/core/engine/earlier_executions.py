"""What a request reuses of an earlier execution: a rerun its results, tokens and iterations, a compensation its steps."""

from __future__ import annotations

import random
from typing import Any

from engine_harness import Harness

from noetl.core.engine.handlers.compensation import source_of
from noetl.core.model.compensation import CompensationSource
from noetl.core.model.events import IterationDone, KeptIteration, KeptLoop, KeptToken, LoopStarted, RerunSource
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.playbook import ctx_part


def rerun_of(earlier: Harness, chance: random.Random) -> RerunSource:
    """A random rerun of an execution."""
    state = earlier.state
    steps = list(state.playbook.steps_by_name)
    records = {name: record for name, record in state.steps.items() if record.outcome and chance.random() < 0.8}
    many = chance.random() < 0.4
    tokens = [KeptToken(chance.choice(steps), {"n": chance.randint(0, 2)}) for _ in range(chance.randint(1, 3))]
    return RerunSource(
        "5",
        from_step=None if many else chance.choice([None, *steps]),
        results={name: record.outcome for name, record in records.items() if record.outcome is not None},
        ctx=ctx_part(state.ctx),
        args=chance.choice([{}, {"ctx.n": 1}]),
        mode="failed" if many else "rerun",
        tokens=tuple(tokens) if many else (),
        task_results={name: record.results for name, record in records.items() if record.results},
        loops=_kept_loops(earlier, chance),
    )


def _kept_loops(earlier: Harness, chance: random.Random) -> dict[str, tuple[KeptLoop, ...]]:
    """Some iterations of each loop; some elements have changed since."""
    started: dict[tuple[str, Any], LoopStarted] = {(each.step, each.path): each for each in earlier.of(LoopStarted)}
    done: dict[tuple[str, Any], dict[int, KeptIteration]] = {}
    for each in earlier.of(IterationDone):
        if chance.random() < 0.8:
            writes = chance.choice([{}, {}, {"ctx.sum": 2, "sum": 3, "all": [1]}, {"sum": "text"}])
            kept = KeptIteration(each.path[-1], each.output, each.step_patch, each.skipped, writes)
            done.setdefault((each.step, each.path[:-1]), {})[kept.index] = kept
    loops: dict[str, tuple[KeptLoop, ...]] = {}
    for (step, path), iterations in done.items():
        loop = started[step, path]
        items = None if loop.items is None else tuple(chance.choice([each, each, each, "new"]) for each in loop.items)
        sha256 = None if loop.collection is None else chance.choice([loop.collection.meta.sha256, "other", None])
        loops[step] = (*loops.get(step, ()), KeptLoop(path, items, sha256, tuple(iterations.values())))
    return loops


def undo_of(earlier: Harness, chance: random.Random) -> CompensationSource:
    """The compensation of what an execution has completed."""
    return source_of(earlier.state, chance.choice([None, ErrorInfo("timeout", "too late"), ErrorInfo("python", "bad")]))
