"""The result of one call of `advance`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from noetl.core.engine.commands import Reply
from noetl.core.engine.effects import DataRequest, Effect
from noetl.core.model.events import Recorded


class Decision(Struct, frozen=True, eq=False, gc=False):
    """Events to append together, effects to perform after the append, and a reply to each command.

    A decision with `requests` is not complete: nothing may be appended yet. Answer all of them
    (`DataRequest.key` -> answer) and call `resume` until `requests` is empty. Meanwhile the state is
    ahead of the log: if a request cannot be answered, drop the state and fold the log again, as
    after an append that raised VersionConflict.
    """

    events: tuple[Recorded, ...] = ()
    effects: tuple[Effect, ...] = ()
    replies: tuple[Reply, ...] = ()
    requests: tuple[DataRequest, ...] = ()
    operations: int = 0  # of its templates
    _resume: Callable[[Mapping[str, Any]], Decision] | None = None

    def resume(self, answers: Mapping[str, Any]) -> Decision:
        """Continue with these answers; the returned decision has all events from the start."""
        if self._resume is None:
            raise ValueError("this decision has no data requests")
        return self._resume(answers)
