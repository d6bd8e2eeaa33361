"""Cron expressions and their ticks in a time zone.

Five fields (minute hour day month weekday) or six (seconds first), with names, ranges, steps, `L` and `#`, or a
nickname. Changes of the clock, of any length, are handled as by cron on Debian: a fixed time inside a skipped hour
ticks right after the gap, one inside a repeated hour ticks once; patterns (a field of the time begins with `*`, such as
`*/30 * * * *`) follow elapsed time.
"""

from __future__ import annotations

from bisect import bisect
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from cronsim import CronSim, CronSimError

from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zoneinfo import ZoneInfo

MAX_EXPRESSION = 500  # characters; an expression is read again for each tick
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
        if len(expression) > MAX_EXPRESSION:
            raise RequestRefused(
                f"a cron expression has at most {MAX_EXPRESSION} characters, this one has {len(expression):,}"
            )
        self.expression = " ".join(expression.split())
        self.tz = tz
        self._zone = zone_of(tz)
        try:
            simulation = CronSim(
                NICKNAMES.get(self.expression.lower(), self.expression), datetime.fromtimestamp(0, UTC)
            )
            self.description = str(simulation.explain())
            self._fields = " ".join(simulation.parts)
            self._is_fixed = not any(field.startswith("*") for field in simulation.parts[:3])
        except CronSimError as wrong:
            nicknames = ", ".join(NICKNAMES)
            raise RequestRefused(
                f"{expression!r} is not a cron expression: {str(wrong).lower()}; "
                f"write minute hour day month weekday, such as '30 6 * * mon-fri', or one of {nicknames}"
            ) from None

    def after(self, at: float) -> Iterator[float]:
        """The ticks after an instant; there may be none (30 February)."""
        last = at
        for tick in self._simulate(at):
            if tick > last:  # not the first of the repeated hour, and once after a gap
                last = tick
                yield tick

    def next(self, at: float) -> float | None:
        """The first tick after an instant."""
        return next(self.after(at), None)

    def upcoming(self, at: float, count: int) -> list[float]:
        """The next ticks."""
        return list(islice(self.after(at), count))

    def interval(self, tick: float) -> tuple[float, float]:
        """The time from the previous tick to this one."""
        return next((each for each in self._simulate(tick, reverse=True) if each < tick), tick), tick

    def shown(self, tick: float) -> str:
        """A tick in ISO format in its time zone, with the offset from UTC."""
        return datetime.fromtimestamp(tick, self._zone).isoformat()

    def _simulate(self, at: float, *, reverse: bool = False) -> Iterator[float]:
        """The ticks from about an instant on, in order, forwards or backwards."""
        here = datetime.fromtimestamp(at, self._zone)
        repeated = max(_offset(here, 0) - _offset(here, 1), timedelta())  # how much of the time is repeated here
        start = here.replace(tzinfo=None, fold=0) + (repeated if reverse else -repeated)
        twice: list[float] = []  # instants of local times in the repeated hour
        for local in CronSim(self._fields, start, reverse):
            instants = self._instants(local)
            if len(instants) == 2:
                twice += instants
                continue
            yield from sorted(twice, reverse=reverse)
            twice.clear()
            yield from instants
        yield from sorted(twice, reverse=reverse)

    def _instants(self, local: datetime) -> list[float]:
        """The instants at which a local time ticks."""
        first, second = (local.replace(tzinfo=self._zone, fold=fold).timestamp() for fold in (0, 1))
        if first < second:
            return [first] if self._is_fixed else [first, second]
        if first == second:
            return [first]
        return [self._change(second, first)] if self._is_fixed else []  # a local time that does not exist

    def _change(self, before: float, after: float) -> float:
        """The instant of the only change of the clock between two instants."""
        old = datetime.fromtimestamp(before, self._zone).utcoffset()
        seconds = range(int(before), int(after) + 1)
        return float(
            seconds[bisect(seconds, False, key=lambda at: datetime.fromtimestamp(at, self._zone).utcoffset() != old)]
        )


def _offset(local: datetime, fold: int) -> timedelta:
    return local.replace(fold=fold).utcoffset() or timedelta()


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name; RequestRefused if there is none."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise RequestRefused(f"{name!r} is not a time zone; use a name such as Europe/Berlin or UTC") from None
