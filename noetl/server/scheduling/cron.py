"""Cron expressions and their ticks in a time zone.

Five fields (minute hour day month weekday) or six (seconds first), with names, ranges, steps, `L` and `#`, or a
nickname. Changes of the clock are handled as by cron on Debian: a fixed time inside a skipped hour ticks right after
the gap, one inside a repeated hour ticks once; patterns such as `*/30 * * * *` follow elapsed time.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from cronsim import CronSim, CronSimError

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
    """A cron expression in a time zone; RequestRefused when one of them is not valid."""

    def __init__(self, expression: str, tz: str = "UTC") -> None:
        self.expression = " ".join(expression.split())
        self.tz = tz
        self._zone = zone_of(tz)
        try:
            self.description = str(self._simulate(0.0).explain())
        except CronSimError as wrong:
            nicknames = ", ".join(NICKNAMES)
            raise RequestRefused(
                f"{expression!r} is not a cron expression: {str(wrong).lower()}; "
                f"write minute hour day month weekday, such as '30 6 * * mon-fri', or one of {nicknames}"
            ) from None

    def after(self, at: float) -> Iterator[float]:
        """The ticks after an instant; there may be none (30 February)."""
        for tick in self._simulate(at):
            yield tick.timestamp()

    def next(self, at: float) -> float | None:
        """The first tick after an instant."""
        return next(self.after(at), None)

    def upcoming(self, at: float, count: int) -> list[float]:
        """The next ticks."""
        return list(islice(self.after(at), count))

    def interval(self, tick: float) -> tuple[float, float]:
        """The time from the previous tick to this one."""
        return next((each.timestamp() for each in self._simulate(tick, reverse=True)), tick), tick

    def shown(self, tick: float) -> str:
        """A tick in ISO format in its time zone, with the offset from UTC."""
        return datetime.fromtimestamp(tick, self._zone).isoformat()

    def _simulate(self, at: float, *, reverse: bool = False) -> Any:
        expression = NICKNAMES.get(self.expression.lower(), self.expression)
        return CronSim(expression, datetime.fromtimestamp(at, self._zone), reverse)


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name; RequestRefused if there is none."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise RequestRefused(f"{name!r} is not a time zone; use a name such as Europe/Berlin or UTC") from None
