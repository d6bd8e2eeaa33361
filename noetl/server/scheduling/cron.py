"""When a cron expression ticks, in a time zone.

Five fields (minute hour day month weekday) or six (seconds first), with names, ranges, steps, `L` and `#`, or a
nickname. Where clocks jump, it is as with cron on Debian: a fixed time that an hour forward swallows ticks right after
the gap, one that an hour back repeats ticks once; patterns such as `*/30 * * * *` follow the real hours.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zoneinfo import ZoneInfo

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron:
    """An expression in its zone; RequestRefused says what is wrong with either."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        self.expression = " ".join(expression.split())
        self.tz = tz
        self._zone = _zone(tz)
        self._simulator, self._error = _cronsim()
        try:
            self.description = str(self._simulate(0.0).explain())
        except self._error as wrong:
            nicknames = ", ".join(NICKNAMES)
            raise RequestRefused(
                f"{expression!r} is no cron expression: {str(wrong).lower()}; "
                f"write minute hour day month weekday, such as '30 6 * * mon-fri', or one of {nicknames}"
            ) from None

    def after(self, at: float) -> Iterator[float]:
        """The ticks after an instant, which may be none at all (30 February)."""
        for tick in self._simulate(at):
            yield tick.timestamp()

    def next(self, at: float) -> float | None:
        """The first tick after an instant."""
        return next(self.after(at), None)

    def upcoming(self, at: float, count: int) -> list[float]:
        """The next ticks."""
        return list(islice(self.after(at), count))

    def shown(self, tick: float) -> str:
        """A tick on the clock of its zone, with the offset from UTC."""
        return datetime.fromtimestamp(tick, self._zone).isoformat()

    def _simulate(self, at: float) -> Any:
        expression = NICKNAMES.get(self.expression.lower(), self.expression)
        return self._simulator(expression, datetime.fromtimestamp(at, self._zone))


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise RequestRefused(f"there is no time zone {name!r}; they are called like Europe/Berlin or UTC") from None


def _cronsim() -> tuple[Any, type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise RequestRefused("schedules need a package that is not installed: pip install 'noetl[server]'") from None
    return CronSim, CronSimError
