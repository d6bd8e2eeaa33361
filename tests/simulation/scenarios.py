"""Scenarios: some executions, many faults, then a phase without faults, and a check of all invariants."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from msgspec import Struct, field

from noetl.server.orchestrator import execution_actor
from noetl.server.orchestrator.submissions import Submission
from tests.simulation.cluster import Cluster
from tests.simulation.faults import FaultInjector
from tests.simulation.generated import generate
from tests.simulation.oracles import Submitted, all_logs, check
from tests.simulation.playbooks import (
    COUNTER,
    COUNTER_TEXT,
    GENERATED,
    TEXTS,
    TIMED,
    choose_playbooks,
    counters_of,
    limits_of,
)
from tests.simulation.schedules import overlap_of
from tests.simulation.stories import stories_of
from tests.simulation.users import follow_script, scripts
from tests.simulation.virtual_time import MAX_TURNS, Deadlock, Livelock, VirtualClock, VirtualLoop

FAULT_SECONDS = 120.0  # faults are injected for this long
_LOGGERS = ("noetl.control", "noetl.work", "noetl.schedules", "noetl.triggers", "asyncio")
RECOVERY_SECONDS = 900.0  # then everything must finish within this time, also on a single slot


class ScenarioResult(Struct):
    """The result of one seed."""

    seed: int
    faults: int
    violations: list[str] = field(default_factory=list)
    injected: list[tuple[int, str]] = field(default_factory=list)
    stories: set[str] = field(default_factory=set)
    events: int = 0
    seconds: float = 0.0  # virtual

    def describe(self) -> str:
        """The result as text."""
        lines = [
            f"seed {self.seed}: {len(self.injected)} faults, {self.events} events, {self.seconds:.0f} virtual seconds"
        ]
        lines += [f"  fault {number}: {point}" for number, point in self.injected]
        lines += [f"  VIOLATED: {each}" for each in self.violations]
        return "\n".join(lines)


def simulate(
    seed: int,
    faults: int = 50,
    *,
    executions: int = 4,
    only: frozenset[int] | None = None,
    prepare: Callable[[Cluster], None] | None = None,
) -> ScenarioResult:
    """Run the scenario of a seed; `only` injects just these of its faults."""
    random.seed(seed)  # workers use the global random source for jitter
    injector = FaultInjector(seed, faults, only=only)
    result = ScenarioResult(seed=seed, faults=faults)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with logging_disabled(), _frequent_snapshots(seed):
            loop.run_until_complete(_run(result, injector, VirtualClock(loop), executions, prepare))
    except Deadlock:
        result.violations.append("deadlock: no task is ready and no timer is set")
    except Livelock:
        result.violations.append(
            f"livelock: {MAX_TURNS:,} turns of the event loop in {loop.time():.0f} virtual seconds"
        )
    except Exception as problem:  # an error that a server does not handle
        result.violations.append(f"raised {problem!r}")
    finally:
        result.injected = injector.injected
        result.seconds = loop.time()
        close(loop)
    return result


async def _run(
    result: ScenarioResult,
    injector: FaultInjector,
    clock: VirtualClock,
    executions: int,
    prepare: Callable[[Cluster], None] | None,
) -> None:
    seed = result.seed
    paths = [*choose_playbooks(seed, executions), *counters_of(seed)]
    texts = {**TEXTS, COUNTER: COUNTER_TEXT}
    texts[GENERATED], outcome = generate(seed)
    cluster = Cluster(
        injector,
        clock,
        texts,
        workers=1 + (seed % 3 > 0),  # with one worker its late reports arrive before another claims the run
        limits=limits_of(seed, paths),
        servers=1 + seed % 2,
        clock_jump=5.0 if TIMED & {*paths} or overlap_of(seed) else 3600.0,
        overlap=overlap_of(seed),
    )
    if prepare is not None:
        prepare(cluster)
    await cluster.start()
    submitted = [
        asyncio.ensure_future(cluster.submit(Submission(path=path, key=f"{result.seed}-{number}")))
        for number, path in enumerate(paths)
    ]
    ids = await asyncio.gather(*submitted)
    steps = scripts(seed, paths)
    users = [asyncio.ensure_future(follow_script(cluster, *each)) for each in zip(ids, steps, strict=True)]
    ended = await all_ended(cluster, FAULT_SECONDS)
    injector.stopped = True
    if not ended and not await all_ended(cluster, RECOVERY_SECONDS):
        result.violations.append(
            f"not finished {RECOVERY_SECONDS:.0f} s after the last fault: {await cluster.store.unfinished()}"
        )
    # Late messages of frozen workers and duplicates arrive after the end, too.
    await asyncio.sleep(60)
    result.events = sum([len(await cluster.store.read(execution_id)) for execution_id in ids])
    acknowledged = await asyncio.gather(*users)
    known = {
        execution_id: Submitted(path, outcome if path == GENERATED else None, [word for _, word in script], told)
        for execution_id, path, script, told in zip(ids, paths, steps, acknowledged, strict=True)
    }
    result.violations += await check(cluster, known)
    result.stories = stories_of(cluster, await all_logs(cluster))


async def all_ended(cluster: Cluster, seconds: float) -> bool:
    """Wait until no execution is unfinished, for some virtual seconds at most."""
    deadline = cluster.clock.monotonic() + seconds
    while cluster.clock.monotonic() < deadline:
        if not await cluster.store.unfinished():
            return True
        await asyncio.sleep(0.5)
    return False


def shrink(result: ScenarioResult, again: Callable[[frozenset[int]], ScenarioResult]) -> ScenarioResult:
    """Remove faults one by one as long as a violation remains."""
    remaining = [number for number, _ in result.injected]
    best = result
    for number in list(remaining):
        fewer = frozenset(remaining) - {number}
        tried = again(fewer)
        if tried.violations:
            remaining = [each for each, _ in tried.injected]
            best = tried
    return best


@contextmanager
def _frequent_snapshots(seed: int) -> Iterator[None]:
    """Save a snapshot every few events in half of the seeds, so that restarts fold from snapshots."""
    with patch.object(execution_actor, "SNAPSHOT_EVENTS", 4 if seed % 4 < 2 else execution_actor.SNAPSHOT_EVENTS):
        yield


@contextmanager
def logging_disabled() -> Iterator[None]:
    """Disable the loggers that would report every injected fault."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def close(loop: VirtualLoop) -> None:
    """Cancel all tasks of a loop and close it."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with logging_disabled():
        for _ in range(20):  # handlers of cancelled tasks may start others
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.call_soon(loop.stop)
            loop.run_forever()
    asyncio.set_event_loop(None)
    loop.close()
