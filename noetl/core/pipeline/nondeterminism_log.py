"""The recorded source of `now()`, `uuid()` and `random()` inside one run."""

from __future__ import annotations

from typing import Any

from noetl.core.templates.budget import NondeterminismSource


class NondeterminismLog:
    """Passes draws through from the shell's source and remembers them until they are reported."""

    __slots__ = ("_source", "_taken")

    def __init__(self, source: NondeterminismSource) -> None:
        self._source = source
        self._taken: list[tuple[str, Any]] = []

    def now(self) -> str:
        """The present instant, as text."""
        return self._keep("now", self._source.now())

    def uuid(self) -> str:
        """A fresh random UUID."""
        return self._keep("uuid", self._source.uuid())

    def random(self) -> float:
        """A number in [0, 1)."""
        drawn = self._source.random()
        self._taken.append(("random", drawn))
        return drawn

    def mark(self) -> int:
        """How many were drawn so far."""
        return len(self._taken)

    def rewind(self, mark: int) -> None:
        """Forget what was drawn since `mark`: that evaluation is going to be repeated."""
        del self._taken[mark:]

    def take(self) -> dict[str, Any]:
        """What was drawn since the last report, by function, in order."""
        if not self._taken:
            return {}
        drawn: dict[str, Any] = {}
        for name, value in self._taken:
            drawn.setdefault(name, []).append(value)
        self._taken.clear()
        return drawn

    def _keep(self, name: str, drawn: str) -> str:
        self._taken.append((name, drawn))
        return drawn
