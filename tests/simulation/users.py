"""The simulated user: pauses, resumes, signals and cancels executions, and remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from noetl.server.orchestrator.service import Orchestrator

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LATEST = 100.0  # seconds after the start: every script has ended when the faults stop


class Acknowledged(Struct):
    """What the servers acknowledged to the user about one execution."""

    cancelled: bool = False
    pauses: int = 0
    signals: list[int] = field(default_factory=list)


def scripts(seed: int, paths: list[str]) -> list[list[tuple[float, str]]]:
    """For each execution the commands that the user sends, with their times; most executions are left alone."""
    chance = random.Random(f"user {seed}")
    found = []
    for path in paths:
        script: list[tuple[float, str]] = []
        at = chance.uniform(0.0, 30.0)
        if path == "asks":
            script.append((chance.uniform(0.0, 60.0), "answer"))
        if path == "signalled" or chance.random() < 0.2:
            script.append((at, "signal"))
        if chance.random() < 0.25:
            script += [(at, "pause"), (at + chance.uniform(1.0, 40.0), "resume")]
        if chance.random() < 0.15:
            script.append((chance.uniform(0.0, LATEST), chance.choice(["cancel", "cancel", "undo"])))
        found.append(sorted(script))
    return found


async def _signal(execution_id: str, number: int, server: Orchestrator) -> None:
    await server.signal(execution_id, "go", {"sent": number}, id=f"go-{number}")


async def _answer(execution_id: str, server: Orchestrator) -> None:
    """The signal of a wait, with a key: before it waits, while it waits, or at the instant it times out."""
    await server.signal(execution_id, "answer", {"n": 7}, id="answer")


async def follow_script(cluster: Cluster, execution_id: str, script: list[tuple[float, str]]) -> Acknowledged:
    """Send the commands at their times, each until it is acknowledged or rejected."""
    told = Acknowledged()
    began = cluster.clock.monotonic()
    for number, (at, word) in enumerate(script):
        await asyncio.sleep(max(0.0, began + at - cluster.clock.monotonic()))
        if word == "pause":
            told.pauses += await cluster.control(lambda server: server.pause(execution_id))
        elif word == "resume":
            await cluster.control(lambda server: server.resume(execution_id))
        elif word == "cancel":
            told.cancelled = await cluster.control(lambda server: server.cancel(execution_id))
        elif word == "undo":
            told.cancelled = await cluster.control(lambda server: server.cancel(execution_id, compensate=True))
        elif word == "answer":
            await cluster.control(partial(_answer, execution_id))
        else:
            if await cluster.control(partial(_signal, execution_id, number)):
                told.signals.append(number)
    return told
