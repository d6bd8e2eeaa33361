"""Execution ids: decimal text, ordered by time, that fits a BIGINT.

41 bits of milliseconds, 12 bits of process number, 10 bits of counter. Within a process every id is larger
than the previous one, also when the clock is set back. Two processes that drew the same process number can
generate the same id in the same millisecond; the primary key of the store then rejects the second one and the
orchestrator generates a new id, so uniqueness does not depend on chance.
"""

from __future__ import annotations

import secrets

from noetl.core.model.ids import COUNTER_BITS, EPOCH_MS, PROCESS_BITS
from noetl.runtime.clock import Clock


class ExecutionIds:
    """Generates the ids of one process."""

    def __init__(self, clock: Clock, process: int | None = None) -> None:
        self._clock = clock
        self._process = (secrets.randbits(PROCESS_BITS) if process is None else process) << COUNTER_BITS
        self._ms = 0
        self._counter = 0

    def mint(self) -> str:
        """The next id."""
        now = int(self._clock.now() * 1000) - EPOCH_MS
        if now > self._ms:
            self._ms, self._counter = now, 0
        elif self._counter + 1 >> COUNTER_BITS:
            self._ms, self._counter = self._ms + 1, 0  # 1024 in a millisecond: borrow from the next
        else:
            self._counter += 1
        return str(self._ms << (PROCESS_BITS + COUNTER_BITS) | self._process | self._counter)
