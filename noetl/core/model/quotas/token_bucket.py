"""Quotas: token buckets that limit how often runs start per time (`spec.policy.quotas`).

A bucket hands out instants: every demand gets the earliest instant at which it may start, so that at most `burst`
demands start at once and no more than `rate` per second afterwards (the generic cell rate algorithm). The bucket is a
value; the server stores it under its key and changes it with the functions of this module.

A demand that waits keeps its instant as a *turn*. A turn is void if the bucket was paused until after its instant, or
if it was used much later (a server was down, no worker had a free slot): else all late runs would start at once.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl.core.model.excerpt import written
from noetl.errors import RequestRefused

MAX_KEY = 300  # characters
MAX_BURST = 1_000_000
MAX_RATE = 1_000_000.0  # per second
LATE_SECONDS = 1.0  # that a turn may be late; doubled at every further turn of the same start
MAX_HALVINGS = 4.0  # of the rate, after responses that ask for a pause
RECOVERY_SECONDS = 60.0  # until the rate is doubled again
MAX_PAUSE = 3600.0  # seconds that one response may pause a bucket
MAX_RETURNED = 10_000  # returned instants of a bucket
SET_BACK_SECONDS = 5.0  # of the clock; smaller corrections are ignored
RATE_HINT = "write a number per second, minute, hour or day: 10/s, 600/m, 1000/h, 5000/d"

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|sec|second|m|min|minute|h|hour|d|day)\s*")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def rate_of(value: Any) -> float:
    """A rate (`10/s`, `600/m`, `1000/h`, `5000/d`) as a number per second."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    rate = 0.0 if found is None else float(found[1]) / _UNITS[found[2][0]]
    if not 0 < rate <= MAX_RATE:
        raise ValueError(f"{written(value)} is not a rate: {RATE_HINT}")
    return rate


def rate_text(rate: float) -> str:
    """A rate as text, per the shortest unit for which it is a whole number."""
    counts = {unit: round(rate * seconds, 6) for unit, seconds in _UNITS.items()}
    unit = next((unit for unit, count in counts.items() if count and count == int(count)), "d")
    return f"{counts[unit]:g}/{unit}"


def burst_of(value: Any) -> int:
    """A burst: how many runs may start at once."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BURST:
        raise ValueError(f"{written(value)} is not a burst: write a whole number of at least 1")
    return value


class Demand(Struct, frozen=True, omit_defaults=True):
    """A run that needs one token of a bucket; `rate` is per second."""

    key: str
    rate: float
    burst: int = 1


class Turn(Struct, frozen=True, omit_defaults=True):
    """The instant that a waiting demand has been given.

    `of_step`: the demand is that of the whole step run, not of one task. `number` counts the turns of one start."""

    at: float
    of_step: bool = False
    number: int = 1


class Bucket(Struct, frozen=True, omit_defaults=True):
    """The state of a token bucket; all instants are seconds since the epoch by the clock of its store.

    `full_at`: when all tokens are there again if nothing more is taken. `paused_until`: nothing starts before.
    `halvings` of the rate at the instant `halved_at`. `returned`: instants of turns that were not used. `changed_at`:
    the last change; a change much before it shows that the clock was set back."""

    full_at: float = 0.0
    paused_until: float = 0.0
    halvings: float = 0.0
    halved_at: float = 0.0
    returned: tuple[float, ...] = ()
    changed_at: float = 0.0

    @property
    def idle_at(self) -> float:
        """When the bucket is like a new one."""
        recovered = self.halved_at + self.halvings * RECOVERY_SECONDS
        return max(self.full_at, self.paused_until, recovered, self.returned[-1] if self.returned else 0.0)


class QuotaCall(Struct, frozen=True, omit_defaults=True):
    """A change of a bucket: take a token (with the turn that the run has waited for), pause it, or return a turn."""

    demand: Demand
    turn: Turn | None = None
    pause_s: float | None = None
    unused: tuple[float, ...] = ()


def checked_call(call: QuotaCall) -> QuotaCall:
    """A call from outside, within the limits of a demand."""
    demand = call.demand
    wrong = not 0 < len(demand.key) <= MAX_KEY or not 0 < demand.rate <= MAX_RATE or not 1 <= demand.burst <= MAX_BURST
    if wrong or (call.pause_s is not None and not 0 <= call.pause_s <= MAX_PAUSE):
        raise RequestRefused("the call of a quota is out of range")
    return call


class QuotaReply(Struct, frozen=True):
    """When the demand may start (`at`), as seen by the clock of the store (`now`)."""

    at: float
    now: float

    @property
    def seconds(self) -> float:
        """How long the run has to wait."""
        return max(0.0, self.at - self.now)


def apply(bucket: Bucket, call: QuotaCall, now: float) -> tuple[Bucket, QuotaReply]:
    """Change a bucket as a call says."""
    bucket = _at(bucket, now)
    if call.pause_s is not None:
        bucket = _paused(bucket, call.demand, call.pause_s, now)
        return bucket, QuotaReply(bucket.paused_until, now)
    if call.unused:
        return _with_returned(bucket, call.unused, now), QuotaReply(now, now)
    if call.turn is not None and _is_valid(bucket, call.turn, now):
        return bucket, QuotaReply(call.turn.at, now)
    bucket, at = _take(bucket, call.demand, now)
    return bucket, QuotaReply(at, now)


def _at(bucket: Bucket, now: float) -> Bucket:
    """The bucket at an instant: if the clock was set back, all its instants are."""
    back = bucket.changed_at - now
    if back <= SET_BACK_SECONDS:
        return structs.replace(bucket, changed_at=max(bucket.changed_at, now))
    returned = tuple(at - back for at in bucket.returned)
    return Bucket(
        bucket.full_at - back, bucket.paused_until - back, bucket.halvings, bucket.halved_at - back, returned, now
    )


def _is_valid(bucket: Bucket, turn: Turn, now: float) -> bool:
    late = LATE_SECONDS * 2 ** min(turn.number - 1, 30)
    return turn.at >= bucket.paused_until and now - turn.at <= late


def _take(bucket: Bucket, demand: Demand, now: float) -> tuple[Bucket, float]:
    interval = _interval(bucket, demand, now)
    start = max(now, bucket.paused_until)
    full_at = max(bucket.full_at, start)
    at = max(start, full_at - (demand.burst - 1) * interval)
    returned = bucket.returned
    if returned:
        returned = returned[bisect_left(returned, start) :]
        if returned and returned[0] <= at:
            return structs.replace(bucket, returned=returned[1:]), returned[0]
    return structs.replace(bucket, full_at=full_at + interval, returned=returned), at


def _interval(bucket: Bucket, demand: Demand, now: float) -> float:
    """Seconds between two starts, with the lowered rate."""
    if not bucket.halvings:
        return 1 / demand.rate
    left = bucket.halvings - max(0.0, now - bucket.halved_at) // RECOVERY_SECONDS
    return float(2 ** max(0.0, left) / demand.rate)


def _paused(bucket: Bucket, demand: Demand, seconds: float, now: float) -> Bucket:
    """No start for some seconds, and half the rate afterwards. Further responses during a pause only extend it."""
    until = max(bucket.paused_until, now + max(0.0, seconds))
    if bucket.paused_until > now:
        return structs.replace(bucket, paused_until=until)
    left = max(0.0, bucket.halvings - max(0.0, now - bucket.halved_at) // RECOVERY_SECONDS)
    halvings = min(MAX_HALVINGS, left + 1)
    empty = until + (demand.burst - 1) * 2**halvings / demand.rate
    return structs.replace(
        bucket, paused_until=until, halvings=halvings, halved_at=until, full_at=max(bucket.full_at, empty)
    )


def _with_returned(bucket: Bucket, instants: tuple[float, ...], now: float) -> Bucket:
    kept = [at for at in bucket.returned if at >= now]
    for at in instants:
        if at >= now and len(kept) < MAX_RETURNED:
            insort(kept, at)
    return structs.replace(bucket, returned=tuple(kept))


encode_bucket = msgspec.json.Encoder().encode
decode_bucket = msgspec.json.Decoder(Bucket).decode
