"""The limits of the engine, small enough for a short execution to reach them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from unittest.mock import patch

from msgspec.structs import replace

from noetl.core.engine import advance, identity
from noetl.core.engine.evolve import execution
from noetl.core.engine.evolve import loops as iterations
from noetl.core.engine.handlers import assignments, loops, runaway, signals, synthesis
from noetl.core.engine.views import waiting
from noetl.core.model.playbook import Playbook

LIMITS = (
    (advance, "MAX_EVENTS", 1, 12),
    (identity, "MAX_SEEN", 1, 4),
    (execution, "MAX_KEYS", 1, 2),
    (iterations, "MAX_FAILURES", 0, 3),
    (iterations, "MAX_ANSWERS", 0, 3),
    (iterations, "CHUNK", 2, 30),
    (loops, "MAX_CHUNKS", 1, 3),
    (loops, "MAX_CTX_VALUE", 2, 60),
    (assignments, "MAX_CTX_VALUE", 2, 60),
    (runaway, "BURST", 3, 9),
    (runaway, "ENDLESS_BURST", 1, 6),
    (runaway, "DEFAULT_MAX_STEP_RUNS", 3, 20),
    (signals, "MAX_KEPT", 0, 2),
    (signals, "MAX_BYTES", 8, 20),
    (synthesis, "MAX_SYNTHESIZED", 1, 3),
    (waiting, "_MAX_LISTED", 0, 2),
)


@contextlib.contextmanager
def small_limits(chance: random.Random) -> Iterator[None]:
    """Half of the limits are small."""
    with contextlib.ExitStack() as stack:
        for module, name, least, most in LIMITS:
            if chance.random() < 0.5:
                stack.enter_context(patch.object(module, name, chance.randint(least, most)))
        yield


def with_small_limits(playbook: Playbook, chance: random.Random) -> Playbook:
    """The playbook with limits of its own that it reaches."""
    limits = replace(
        playbook.executor.limits,
        max_payload_bytes=chance.randint(5, 60),
        max_iterations=chance.choice([2, 3, 5, 100]),
        max_in_flight=chance.randint(1, 3),
        max_call_depth=chance.randint(1, 3),
        max_state_bytes=chance.randint(20, 200),
    )
    return replace(playbook, executor=replace(playbook.executor, limits=limits))
