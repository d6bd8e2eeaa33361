"""Tasks that end all workers at once, beside innocent ones: only the former fail.

The runs of all workers are lost together, so each of them is a suspect. Servers may be replaced meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from noetl.server.orchestrator.submissions import Submission
from tests.simulation.cluster import Cluster
from tests.simulation.faults import FaultInjector
from tests.simulation.oracles import outcome_of
from tests.simulation.scenarios import all_ended, close, logging_disabled
from tests.simulation.virtual_time import VirtualClock, VirtualLoop

_HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: {name}}}\n"
TEXTS = {
    "innocent": _HEAD.format(name="innocent") + "workflow: [{step: start, tool: {kind: effect, value: 1, takes: 4}}]\n",
    "killer": _HEAD.format(name="killer")
    + "workflow: [{step: start, tool: {kind: effect, value: 1, kills: all, takes: 1}}]\n",
}
SECONDS = 3600.0


def outcomes(seed: int, *, innocent: int = 8, killers: int = 1, workers: int = 3, servers: int = 1) -> Counter[str]:
    """How often each playbook ended with each status; the first server is replaced at a random time."""
    random.seed(seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        with logging_disabled():
            return loop.run_until_complete(_run(seed, loop, innocent, killers, workers, servers))
    finally:
        close(loop)


async def _run(seed: int, loop: VirtualLoop, innocent: int, killers: int, workers: int, servers: int) -> Counter[str]:
    cluster = Cluster(FaultInjector(seed, 0), VirtualClock(loop), TEXTS, workers=workers, servers=servers)
    await cluster.start()
    paths = ["innocent"] * innocent + ["killer"] * killers
    random.Random(seed).shuffle(paths)
    ids = {await cluster.submit(Submission(path=path, key=str(number))): path for number, path in enumerate(paths)}
    loop.call_later(random.Random(seed).uniform(1.0, 120.0), lambda: cluster.crash_server(cluster.servers[0]))
    assert await all_ended(cluster, SECONDS)
    return Counter([f"{path} {outcome_of(await cluster.store.read(each))[0]}" for each, path in ids.items()])
