"""Rows that cannot be read are in a file until the quarantine takes them."""

from __future__ import annotations

import tracemalloc

from noetl.tools.transfer.bad_rows import MOST_HELD, BadRow, SourceRows


def test_unreadable_rows_are_not_held_in_memory() -> None:
    rows = SourceRows()
    place = rows.place("in.csv")
    tracemalloc.start()
    try:
        for number in range(1, 101):
            rows.reject(place + number, {"n": number, "text": "x" * 200_000}, "no number")
        assert tracemalloc.get_traced_memory()[0] < 2 * MOST_HELD
    finally:
        tracemalloc.stop()
    taken = list(rows.take())
    assert len(taken) > 10
    assert [row.position for part in taken for row in part] == list(range(1, 101))
    assert taken[0][0] == BadRow({"n": 1, "text": "x" * 200_000}, "no number", "in.csv", 1)
    assert list(rows.take()) == []
    assert rows.count == 100
