"""The recorded source of `now()`, `uuid()` and `random()` inside one run."""

from __future__ import annotations

from typing import Any

from noetl.core.templates.budget import NondeterminismSource


class NondeterminismLog:
    """Passes values through from the shell's source and records them until they are reported."""

    __slots__ = ("_recorded", "_source")

    def __init__(self, source: NondeterminismSource) -> None:
        self._source = source
        self._recorded: list[tuple[str, Any]] = []

    def now(self) -> str:
        """The current time as text."""
        return self._record("now", self._source.now())

    def uuid(self) -> str:
        """A new random UUID."""
        return self._record("uuid", self._source.uuid())

    def random(self) -> float:
        """A number in [0, 1)."""
        value = self._source.random()
        self._recorded.append(("random", value))
        return value

    def mark(self) -> int:
        """The number of values recorded so far."""
        return len(self._recorded)

    def rewind(self, mark: int) -> None:
        """Drop the values recorded since `mark`: that evaluation is repeated."""
        del self._recorded[mark:]

    def take(self) -> dict[str, Any]:
        """Remove and return the values recorded since the last report, by function, in order."""
        if not self._recorded:
            return {}
        values: dict[str, Any] = {}
        for name, value in self._recorded:
            values.setdefault(name, []).append(value)
        self._recorded.clear()
        return values

    def _record(self, name: str, value: str) -> str:
        self._recorded.append((name, value))
        return value
