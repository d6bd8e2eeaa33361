"""One simulated story: some executions, many faults, then quiet; and what must be true in the end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from noetl.server.orchestrator.submissions import Submission
from tests.simulation.faults import Dice
from tests.simulation.oracles import expected_outcomes, judge
from tests.simulation.playbooks import TEXTS, chosen, limits_of
from tests.simulation.virtual import Stuck, VirtualClock, VirtualLoop
from tests.simulation.world import World

STORM_SECONDS = 120.0  # faults may strike for that long
CALM_SECONDS = 300.0  # and then everything must finish within this


class Story(Struct):
    """How one seed went."""

    seed: int
    faults: int
    violations: list[str] = field(default_factory=list)
    struck: list[tuple[int, str]] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0  # virtual

    def tell(self) -> str:
        """The story in words."""
        lines = [
            f"seed {self.seed}: {len(self.struck)} faults, {self.events} events, {self.seconds:.0f} virtual seconds"
        ]
        lines += [f"  fault {number}: {place}" for number, place in self.struck]
        lines += [f"  VIOLATED: {each}" for each in self.violations]
        return "\n".join(lines)


def simulate(
    seed: int,
    faults: int = 50,
    *,
    executions: int = 3,
    only: frozenset[int] | None = None,
    prepare: Callable[[World], None] | None = None,
) -> Story:
    """Tell the story of a seed; `only` lets just these faults of it strike."""
    random.seed(seed)  # pauses of workers are jittered from the module's own chance
    dice = Dice(seed, faults, only=only)
    story = Story(seed=seed, faults=faults)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with _silence():
            loop.run_until_complete(_play(story, dice, VirtualClock(loop), executions, prepare))
    except Stuck:
        story.violations.append("everybody waits for somebody else")
    finally:
        story.struck = dice.struck
        story.seconds = loop.time()
        _close(loop)
    return story


async def _play(
    story: Story, dice: Dice, clock: VirtualClock, executions: int, prepare: Callable[[World], None] | None
) -> None:
    paths = chosen(story.seed, executions)
    world = World(dice, clock, TEXTS, limits=limits_of(story.seed, paths))
    if prepare is not None:
        prepare(world)
    await world.begin()
    asked = [
        asyncio.ensure_future(world.submit(Submission(path=path, key=f"{story.seed}-{number}")))
        for number, path in enumerate(paths)
    ]
    ids = await asyncio.gather(*asked)
    ended = await _all_ended(world, STORM_SECONDS)
    dice.quiet = True
    if not ended and not await _all_ended(world, CALM_SECONDS):
        story.violations.append(
            f"not finished {CALM_SECONDS:.0f} s after the last fault: {await world.store.unfinished()}"
        )
    # Late messages of zombies and duplicates arrive after the end, too.
    await asyncio.sleep(60)
    story.events = sum([len(await world.store.read(execution_id)) for execution_id in ids])
    story.violations += await judge(world, dict(zip(ids, paths, strict=True)), expected_outcomes())


async def _all_ended(world: World, seconds: float) -> bool:
    deadline = world.clock.monotonic() + seconds
    while world.clock.monotonic() < deadline:
        if not await world.store.unfinished():
            return True
        await asyncio.sleep(0.5)
    return False


def shrink(story: Story, again: Callable[[frozenset[int]], Story]) -> Story:
    """The same violation with as few faults as can be found by leaving them out one by one."""
    kept = [number for number, _ in story.struck]
    best = story
    for number in list(kept):
        fewer = frozenset(kept) - {number}
        tried = again(fewer)
        if tried.violations:
            kept = [each for each, _ in tried.struck]
            best = tried
    return best


@contextmanager
def _silence() -> Iterator[None]:
    """A storm is not worth a log line each."""
    loggers = [logging.getLogger(name) for name in ("noetl.control", "noetl.work", "asyncio")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _close(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with _silence():
        for _ in range(20):  # handlers of cancelled tasks may start others; the dead ones of these wait for ever
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            loop.call_soon(loop.stop)
            loop.run_forever()
    asyncio.set_event_loop(None)
    loop.close()
