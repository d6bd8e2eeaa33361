from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import ijson
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.data.files import json_stream
from noetl.data.files.json_stream import JsonStream

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def read(data: bytes, path: tuple[str, ...], size: int = 7, skip: int = 0) -> Any:
    async def select() -> Any:
        with closing(JsonStream(pieces(data, size))) as document:
            opening = await document.go_to(path)
            if opening is None:
                return "nothing"
            if opening == "[":
                return [element async for element in document.elements(skip=skip)]
            return await document.value()

    return asyncio.run(select())


@pytest.fixture(params=["yajl2_c", "python"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen = ijson.get_backend(request.param)
    chosen.sendable_list, chosen.JSONError = ijson.sendable_list, ijson.JSONError
    monkeypatch.setattr(json_stream, "_ijson", lambda: chosen)
    return str(request.param)


@settings(deadline=None)
@given(value=VALUES, size=st.integers(1, 50), indent=st.sampled_from([None, 2]), plain=st.booleans())
def test_a_document_is_read_as_it_was_written(value: Any, size: int, indent: int | None, plain: bool) -> None:
    text = json.dumps({"before": [{"x": "]}"}], "here": value, "after": 1}, indent=indent, ensure_ascii=plain)
    assert read(text.encode(), ("here",), size) == value


@settings(deadline=None)
@given(value=st.lists(VALUES, max_size=8), size=st.integers(1, 30), skip=st.integers(0, 9))
def test_elements_may_be_skipped(value: list[Any], size: int, skip: int) -> None:
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
def test_paths_consist_of_keys_and_indexes(path: tuple[str, ...], found: Any) -> None:
    document = b'{"a": {"b": [1, 2]}, "list": [{"x": 0}, {"x": "y\\""}], "empty": [], "none": null, "a\\u0020b": 3}'
    assert read(document, path) == found


@pytest.mark.usefixtures("backend")
def test_numbers_keep_their_types() -> None:
    text = b"[1, 1.0, -0.5, 1e3, 123456789012345678901234567890, 0.1, true, null]"
    found = read(text, ())
    assert found == json.loads(text)
    assert [type(value) for value in found] == [int, float, float, float, int, float, bool, type(None)]


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the python back end
@pytest.mark.parametrize(
    "text", [b"", b"[1, 2", b'{"a"', b"[1 2]", b'{"a": }', b'["x', b'{"here" 1}', b"[1e999]", b"[\xff]", b"[nan]"]
)
def test_malformed_documents_are_errors(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match="JSON is malformed"):
        read(text, ("here",) if text.startswith(b"{") else ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"here": [1, 2', "it ends after byte 14, inside a value"),
        (b'{"here": [1, 2, tru]}', r"after byte 14: invalid string in json text, near `.*tru\]"),
        (b'{"here": [1, 2 3]}', r"after byte 14: after array element, I expect ',' or '\]', near"),
        (b'{"here": [1, 1e999]}', "before byte 20: the number 1E\\+999 is out of range"),
    ],
)
def test_an_error_names_the_position(text: bytes, message: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=message):
        read(text, ("here",))


def test_a_missing_c_back_end_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(ijson, "backend_name", "python")
    json_stream._ijson.cache_clear()
    with caplog.at_level("INFO"):
        json_stream._ijson()
        json_stream._ijson()
    json_stream._ijson.cache_clear()
    assert [record.message for record in caplog.records] == [
        "ijson has no C back end on this machine: large JSON payloads are read about ten times slower"
    ]


def test_the_length_of_a_value_is_checked_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "FEED", 10)
    lengths: list[int] = []

    async def select() -> Any:
        document = JsonStream(pieces(b'{"x": "' + b"y" * 30 + b'", "here": {"a": "' + b"z" * 40 + b'"}}', 100))
        await document.go_to(("here",))
        return await document.value(lengths.append)

    assert asyncio.run(select()) == {"a": "z" * 40}
    assert lengths == [0, 10, 20, 30, 40]
