"""Derived ids: the same node of an execution always has the same id.

An execution id is decimal text, ordered by time, created once by the control plane. All ids inside an
execution are derived from it, so that a restart finds what was started:

    step run    4711:fetch:1            the first run of step fetch
    iteration   4711:fetch:1/7          its eighth iteration; nested loops: 4711:fetch:1/7.2
    task run    4711:fetch:1/7:page:2:1 task page, second visit, first attempt
                                        (a task of a called block: block_task/inner_task)
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

IterationPath = tuple[int, ...]

# An execution id is 41 bits of milliseconds, the number of the process that created it, and a counter.
PROCESS_BITS = 12
COUNTER_BITS = 10
EPOCH_MS = 1_700_000_000_000


MAX_NUMBER = 2**63 - 1


def number_at(at: float) -> int:
    """The smallest number of an id created at that instant; at most the largest one that databases can store."""
    return min(max(0, int(at * 1000) - EPOCH_MS) << (PROCESS_BITS + COUNTER_BITS), MAX_NUMBER)


def process_of(execution_id: str) -> int:
    """The number of the process that created an execution id."""
    return (int(execution_id) >> COUNTER_BITS) & ((1 << PROCESS_BITS) - 1)


def step_run_id(execution_id: str, step: str, number: int) -> str:
    """The id of the `number`-th run (from 1) of a step."""
    return f"{execution_id}:{step}:{number}"


@lru_cache(8192)  # the id of an iteration is needed repeatedly while it runs
def iteration_id(step_run: str, path: IterationPath) -> str:
    """The id of one iteration of a step run; the empty path is the step run itself."""
    if len(path) == 1:  # the common case
        return f"{step_run}/{path[0]}"
    return f"{step_run}/{'.'.join(map(str, path))}" if path else step_run


def task_run_id(run: str, task: str, visit: int, attempt: int) -> str:
    """The id of one execution of a task's tool."""
    return f"{run}:{task}:{visit}:{attempt}"


def split_run_id(run: str) -> tuple[str, str, int, IterationPath]:
    """Execution id, step, number and iteration path of a run's id."""
    head, _, path = run.partition("/")
    execution_id, step, number = head.split(":")
    return execution_id, step, int(number), tuple(int(part) for part in path.split(".")) if path else ()


def execution_of(run: str) -> str:
    """The execution id of a run's id."""
    return run.partition(":")[0]


def event_id(execution_id: str, seq: int) -> str:
    """The id of an event: its execution and its sequence number."""
    return f"{execution_id}-{seq}"


def idempotency_key(task_run: str) -> str:
    """A stable key for one *visit* of a task: attempts of the same visit share it."""
    visit = task_run.rpartition(":")[0]
    return hashlib.sha256(visit.encode()).hexdigest()[:32]
