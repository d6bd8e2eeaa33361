"""What one call of `advance` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from noetl.core.engine.commands import Reply
from noetl.core.engine.effects import DataRequest, Effect
from noetl.core.model.events import Recorded


class Decision(Struct, frozen=True, eq=False, gc=False):
    """Events to append as one, commands to carry out after that, and a reply to each fact.

    With `needs` it is not finished: nothing may be appended yet. Answer all of them (`DataRequest.key`
    -> answer) and call `resume`, any number of times, until `needs` is empty. The state is ahead
    of the log meanwhile: when answering fails for good, drop the state and fold the log again,
    just as after an append that met a VersionConflict.
    """

    events: tuple[Recorded, ...] = ()
    commands: tuple[Effect, ...] = ()
    replies: tuple[Reply, ...] = ()
    needs: tuple[DataRequest, ...] = ()
    _resume: Callable[[Mapping[str, Any]], Decision] | None = None

    def resume(self, answers: Mapping[str, Any]) -> Decision:
        """Go on with these answers; the decision that comes back has all events from the beginning."""
        if self._resume is None:
            raise ValueError("this decision needs nothing")
        return self._resume(answers)
