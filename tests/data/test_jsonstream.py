from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.data import json_stream as jsonstream
from noetl.data.json_stream import JsonStream

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def read(data: bytes, path: tuple[str, ...], size: int = 7, skip: int = 0) -> Any:
    async def deed() -> Any:
        document = JsonStream(pieces(data, size))
        opening = await document.go_to(path)
        if opening is None:
            return "nothing"
        if opening == "[":
            return [msgspec.json.decode(element) async for element in document.elements(skip=skip)]
        return msgspec.json.decode(await document.whole())

    return asyncio.run(deed())


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "_LEAST", 0)


@given(value=VALUES, size=st.integers(1, 50), indent=st.sampled_from([None, 2]), plain=st.booleans())
def test_a_document_is_read_as_it_was_written(value: Any, size: int, indent: int | None, plain: bool) -> None:
    text = json.dumps({"before": [{"x": "]}"}], "here": value, "after": 1}, indent=indent, ensure_ascii=plain)
    assert read(text.encode(), ("here",), size) == value


@given(value=st.lists(VALUES, max_size=8), size=st.integers(1, 30), skip=st.integers(0, 9))
def test_elements_may_be_stepped_over(value: list[Any], size: int, skip: int) -> None:
    assert read(json.dumps(value).encode(), (), size, skip) == value[skip:]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("a", "b"), [1, 2]),
        (("a", "b", "1"), 2),
        (("list", "1", "x"), 'y"'),
        (("list", "9"), "nothing"),
        (("a", "c"), "nothing"),
        (("a", "b", "x"), "nothing"),
        (("empty", "0"), "nothing"),
        (("none", "x"), "nothing"),
        (("none",), None),
        (("a b",), 3),
    ],
)
def test_paths_lead_through_keys_and_indexes(path: tuple[str, ...], found: Any) -> None:
    document = b'{"a": {"b": [1, 2]}, "list": [{"x": 0}, {"x": "y\\""}], "empty": [], "none": null, "a\\u0020b": 3}'
    assert read(document, path) == found


@pytest.mark.parametrize("text", [b"", b"[1, 2", b'{"a"', b"[1 2]", b'{"a": }', b'["x', b'{"here" 1}'])
def test_malformed_documents_are_errors(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read(text, ("here",) if text.startswith(b"{") else ())
