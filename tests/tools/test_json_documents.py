"""The rows of a JSON document as lines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from noetl.tools.transfer.sources import json_documents, large_pages
from noetl.tools.transfer.sources.arrow_rows import BatchBuilder

KEYS = ("rows", "data")
TEXT = 'a"\\\n{}[]:, é\u2028'


def lines(folder: Path, text: str, steps: tuple[str, ...] = ()) -> list[Any] | None:
    (folder / "document.json").write_text(text, encoding="utf-8")
    found = json_documents.write_lines(str(folder / "document.json"), steps, KEYS, folder / "copy")
    return None if found is None else [json.loads(line) for line in found.path.read_bytes().splitlines()]


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 6)
    if kind < 6:
        return [1, -2.5e10, None, True, TEXT, ""][kind]
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(["a", "rows", "data", TEXT]): value(chance, depth + 1) for _ in range(chance.randrange(4))}


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1 << 20])
def test_the_rows_of_a_document_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(json_documents, "BLOCK", block)
    chance = random.Random(block)
    for _ in range(100):
        rows = [{f"k{n}": value(chance) for n in range(chance.randrange(4))} for _ in range(chance.randrange(1, 4))]
        other = value(chance)
        documents: list[tuple[Any, tuple[str, ...]]] = [
            (rows, ()),
            ({"before": other, "data": rows, "after": other}, ()),
            ({"data": [{"x": 1}], "rows": rows}, ()),
            ({"a": {"q": other, "b": rows, "c": other}, "b": [1]}, ("a", "b")),
        ]
        for document, steps in documents:
            text = json.dumps(document, indent=chance.choice([None, 2]), ensure_ascii=chance.random() < 0.5)
            assert lines(tmp_path, text, steps) == rows, text


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[]", "[1, 2]", "[[]]", '{"a": 1}', '{"rows": {"a": 1}}', '[{"a": 1}', '[{"a": 1}}', '[{"a": 1}] x',
        '[{"a": 1} {"b": 2}]', '[{"a": 1},]', '[,{"a": 1}]', '{"rows": [{"a": 1}, 3]}', '[{"a": "x\ny"}]',
        '{"rows": [{"a": 1}]} {"rows": []}', '[{"a": "x]', '{"rows": [], "data": [{"a": 1}]}', '{"rows": [[{"a": 1}]]}',
        '{"rows": [{"a": 1}], "rows": [{"b": 1}]}', '{"rows": [{"a": 1}], "rows": 1}', 'x [{"a": 1}]',
        '{"rows" [{"a": 1}]}', '{"rows": [{"a": 1}], "x": nope}', '{"rows": [{"a": 1}] "x": 1}',
    ],
)  # fmt: skip
def test_a_document_that_is_no_list_of_objects_is_left_alone(tmp_path: Path, text: str) -> None:
    assert lines(tmp_path, text) is None


def test_the_rows_of_a_large_page_have_the_same_values_and_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_pages, "PIECE_BYTES", 60)
    chance, streamed = random.Random(5), 0
    for number in range(300):
        rows = [{name: value(chance) for name in chance.sample("abc", 2)} for _ in range(chance.randrange(1, 8))]
        page = chance.choice([rows, {"rows": rows, "next": 3}, {"x": {"data": 1}, "data": rows}, {"a": rows[0]}])
        text = json.dumps(page, ensure_ascii=chance.random() < 0.5)
        if chance.random() < 0.1:
            text = text.replace("null", "nul")
        path = tmp_path / f"{number}.body"
        path.write_text(text, encoding="utf-8")
        found = large_pages.read_rows(path, None, lambda _: False)
        if found is None:  # decoded as a whole
            continue
        streamed += 1
        assert found.size == len(rows)
        assert found.around == ([] if page is rows else {**page, "rows" if "rows" in page else "data": []})
        whole, pieces = (BatchBuilder(None, "the source") for _ in range(2))
        pieces.learn(found.seen)
        batches = [pieces.fitted(piece) for piece in found.pieces()]
        assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([whole.batch(rows)]), check_metadata=True)
    assert streamed > 150
