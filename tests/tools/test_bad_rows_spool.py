"""Rows that cannot be read are in a file until the quarantine takes them, and the others in few batches."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from noetl.data.arrow_tables import rows_of
from noetl.tools.transfer.quarantine.bad_rows import MOST_HELD, POSITION, BadRow, NumberedRows, RowError, SourceRows
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder, declared_types
from noetl.tools.transfer.sources.file_source import with_types


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


TYPES = {"n": "bigint", "day": "date"}


def one_by_one(rows: list[dict[str, Any]], build: Any) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    good, bad = [], []
    for number, row in enumerate(rows, 1):
        try:
            good += rows_of(build([row]))
        except RowError as wrong:
            bad.append((number, str(wrong)))
    return good, bad


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("source", ["plain", "text"])
def test_good_rows_beside_bad_ones_stay_in_one_batch(source: str, share: float) -> None:
    chosen = random.Random(share)
    count = 300

    def value(good: str, bad: str) -> str:
        return bad if chosen.random() < share else good

    rows = [{"id": number, "n": value("7", "x"), "day": value("2024-05-06", "soon")} for number in range(count)]
    calls = 0
    if source == "plain":  # an inferred column is wrong too
        rows = [{**row, "v": number if chosen.random() >= share else "text"} for number, row in enumerate(rows)]
        builder = BatchBuilder(TYPES, "the source")
        builder.learn([{"id": 1, "n": 1, "day": None, "v": 1}])
        convert, expected = builder.batch, one_by_one(rows, builder.batch)
    else:
        types = declared_types(TYPES)
        convert = lambda batch: with_types(batch, types)  # noqa: E731
        expected = one_by_one(rows, lambda part: convert(pa.RecordBatch.from_pylist(part)))

    def counted(part: Any) -> Any:
        nonlocal calls
        calls += 1
        return convert(part)

    found = SourceRows()
    numbered = NumberedRows(found, "in.csv")
    if source == "plain":
        batches = numbered.built(counted, rows)
    else:
        batches = numbered.converted(counted, pa.RecordBatch.from_pylist(rows))
    good, bad = expected
    assert len(batches) == (1 if good else 0)
    assert calls <= 1 + 3  # one more for each column with wrong values
    assert [row for batch in batches for row in rows_of(batch.drop_columns([POSITION]))] == good
    positions = [position for batch in batches for position in batch.column(POSITION).to_pylist()]
    taken = [row for part in found.take() for row in part]
    assert [(row.position, row.reason) for row in taken] == bad
    assert [row.row for row in taken] == [rows[number - 1] for number, _ in bad]
    assert sorted([*positions, *(number for number, _ in bad)]) == list(range(1, count + 1))
