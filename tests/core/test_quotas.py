"""Token buckets: what they hand out, pauses, turns that were not used, and turns that are late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.core.model.quotas.token_bucket import (
    MAX_RETURNED,
    RECOVERY_SECONDS,
    Bucket,
    Demand,
    QuotaCall,
    Turn,
    apply,
    burst_of,
    decode_bucket,
    encode_bucket,
    rate_of,
    rate_text,
)


class Taker:
    """A bucket with its demand."""

    def __init__(self, rate: float = 10.0, burst: int = 1) -> None:
        self.bucket = Bucket()
        self.demand = Demand("api", rate, burst)

    def take(self, now: float, turn: Turn | None = None) -> float:
        self.bucket, reply = apply(self.bucket, QuotaCall(self.demand, turn), now)
        self.bucket = decode_bucket(encode_bucket(self.bucket))
        return reply.at

    def pause(self, now: float, seconds: float) -> None:
        self.bucket, _ = apply(self.bucket, QuotaCall(self.demand, pause_s=seconds), now)

    def give_back(self, now: float, *instants: float) -> None:
        self.bucket, _ = apply(self.bucket, QuotaCall(self.demand, unused=instants), now)


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [("10/s", 10, "10/s"), ("600/m", 10, "10/s"), (" 30 / minute ", 0.5, "30/m"), ("1000/h", 1000 / 3600, "1000/h"),
     ("5/d", 5 / 86400, "5/d"), ("0.5/s", 0.5, "30/m")],
)  # fmt: skip
def test_rates(text, rate, shown):
    assert rate_of(text) == pytest.approx(rate)
    assert rate_text(rate_of(text)) == shown


@pytest.mark.parametrize("text", ["", "10", 10, "ten/s", "-1/s", "0/s", "10/x", "1e9/s", None, True, "99999999/s"])
def test_wrong_rates(text):
    with pytest.raises(ValueError, match="is not a rate"):
        rate_of(text)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", None, 10**9])
def test_wrong_bursts(value):
    with pytest.raises(ValueError, match="is not a burst"):
        burst_of(value)


def test_a_burst_starts_at_once_and_the_rest_at_the_rate():
    taker = Taker(10, burst=3)
    assert [round(taker.take(100.0) - 100, 3) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]
    # After a second without a demand the bucket is full again, and not more than full.
    assert [round(taker.take(102.0) - 102, 3) for _ in range(4)] == [0, 0, 0, 0.1]


@given(
    st.lists(st.floats(0, 2), min_size=1, max_size=60),
    st.integers(1, 5),
    st.sampled_from([0.5, 3.0, 20.0]),
)
def test_no_window_has_more_than_its_rate_and_the_burst(gaps, burst, rate):
    taker, now, given_at = Taker(rate, burst), 1000.0, []
    for gap in gaps:
        now += gap
        at = taker.take(now)
        assert at >= now
        given_at.append(at)
    given_at.sort()
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            window = given_at[last] - given_at[first]
            assert last - first + 1 <= burst + rate * window + 1e-6


def test_a_pause_delays_everything_and_halves_the_rate_once():
    taker = Taker(10)
    taker.pause(100.0, 5)
    taker.pause(100.1, 5)  # a second response of the same overload
    assert [round(taker.take(101.0), 3) for _ in range(3)] == [105.1, 105.3, 105.5]


def test_the_rate_recovers():
    taker = Taker(10)
    taker.pause(100.0, 1)
    later = 101 + RECOVERY_SECONDS + 10
    assert [round(taker.take(later) - later, 3) for _ in range(3)] == [0, 0.1, 0.2]


def test_repeated_pauses_halve_the_rate_again_up_to_a_sixteenth():
    taker, now = Taker(16), 100.0
    for _ in range(9):
        taker.pause(now, 1)
        now += 2
    first = taker.take(now)
    assert taker.take(now) - first == pytest.approx(1.0)


def test_after_a_pause_there_is_no_burst():
    taker = Taker(10, burst=5)
    taker.pause(100.0, 1)
    assert [round(taker.take(100.5), 3) for _ in range(3)] == [101.0, 101.2, 101.4]


def test_returned_turns_are_used_by_the_next_demands():
    taker = Taker(1)
    turns = [taker.take(100.0) for _ in range(10)]
    taker.give_back(100.0, *turns[2:9])
    assert [taker.take(100.5) for _ in range(8)] == [*turns[2:9], 110.0]


def test_returned_turns_in_the_past_are_not_used():
    taker = Taker(1)
    turns = [taker.take(100.0) for _ in range(5)]
    taker.give_back(103.5, *turns[1:])
    assert taker.take(103.5) == turns[4]


def test_returned_turns_are_bounded():
    taker = Taker(1)
    taker.give_back(0.0, *(float(number) for number in range(1, MAX_RETURNED + 50)))
    assert len(taker.bucket.returned) == MAX_RETURNED


def test_a_turn_in_time_needs_no_further_token():
    taker = Taker(1)
    taker.take(100.0)
    at = taker.take(100.0)
    assert taker.take(at + 0.3, Turn(at)) == at
    assert taker.take(at - 0.2, Turn(at)) == at  # a clock ahead of that of the store
    assert taker.take(100.0) == 102.0


def test_late_turns_are_spaced_again():
    taker = Taker(10)
    turns = [Turn(taker.take(100.0)) for _ in range(20)]
    starts = [taker.take(500.0, turn) for turn in turns]  # the server was stopped meanwhile
    assert [round(at - 500, 3) for at in starts[:3]] == [0, 0.1, 0.2]


def test_a_turn_may_be_later_every_time_so_that_it_is_used_at_some_time():
    taker, now, turn = Taker(10), 100.0, Turn(100.0)
    for number in range(1, 10):
        now += 20  # every turn is used twenty seconds late
        at = taker.take(now, turn)
        if at == turn.at:
            break
        turn = Turn(at, number=number + 1)
    assert number < 8


def test_a_pause_makes_earlier_turns_void():
    taker = Taker(10)
    early, late = Turn(taker.take(100.0)), Turn(130.0)
    taker.pause(100.0, 10)
    assert taker.take(100.0, early) >= 110
    assert taker.take(129.9, late) == 130.0


def test_an_unused_bucket_is_idle():
    assert Bucket().idle_at == 0.0
    taker = Taker(1)
    taker.take(100.0)
    assert taker.bucket.idle_at == 101.0
    taker.pause(100.0, 10)
    assert taker.bucket.idle_at == 110 + RECOVERY_SECONDS


@pytest.mark.parametrize("wrong", [3600.0, 365 * 86400.0])
def test_a_clock_that_is_set_back_delays_no_start(wrong):
    taker = Taker(rate=1.0)
    assert [taker.take(wrong + 1000) for _ in range(3)] == [wrong + 1000, wrong + 1001, wrong + 1002]
    taker.give_back(wrong + 1000, wrong + 1001)
    assert [taker.take(1000) for _ in range(2)] == [1001, 1003]  # the returned turn, then the next one
    taker.pause(wrong + 1010, 60)
    assert taker.take(1010.5) == 1070.5


def test_a_small_correction_of_the_clock_changes_no_instant():
    taker = Taker(rate=1.0)
    assert [taker.take(1000), taker.take(999.5), taker.take(1000.1)] == [1000, 1001, 1002]
