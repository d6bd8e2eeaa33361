from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from noetl.core.model.outcome import Outcome
from noetl.core.model.reference import Reference
from noetl.data.files.formats import CONTENT_TYPES
from noetl.data.files.table_files import encode_rows
from noetl.runtime.resources import close_loop_resources
from noetl.storage.results import open_store
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load

ROWS = [{"id": number, "name": f"n{number}", "tags": {"x": [number, None]}} for number in range(5000)]


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


def stored(data: bytes, content_type: str) -> tuple[ToolHost, dict[str, Any]]:
    host = ToolHost()
    reference = asyncio.run(host.put_result(chunks(data), content_type=content_type))
    return host, msgspec.to_builtins(reference)


def resolve(data: bytes, content_type: str, **input: Any) -> Outcome:
    host, reference = stored(data, content_type)
    return run_tool("resolve", {"ref": reference, **input}, host=host)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def streaming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every JSON test runs on the short way and on the long one: they must agree."""
    if request.param:
        monkeypatch.setattr("noetl.data.payload_reader.MAX_DECODED_WHOLE", 0)
    return bool(request.param)


DOCUMENT = json.dumps({"meta": {"n": 3}, "data": {"items": ROWS}, "rows": ROWS[:10]}).encode()


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"select": "meta.n"}, 3),
        ({"select": "meta"}, {"n": 3}),
        ({"select": "data.items", "limit": 2, "offset": 4998}, ROWS[4998:]),
        ({"select": "data.items.7.name"}, "n7"),
        ({"select": "data.items", "limit": 0}, []),
        ({"select": ["id", "tags.x"], "limit": 1, "offset": 2}, [{"id": 2, "tags.x": [2, None]}]),
        ({"limit": 2, "offset": "1"}, ROWS[1:3]),
    ],
)
def test_a_part_of_json_is_taken(streaming: bool, part: dict[str, Any], found: Any) -> None:
    assert resolve(DOCUMENT, "application/json", **part).data == found


def test_the_whole_of_json_is_the_value(streaming: bool) -> None:
    assert resolve(DOCUMENT, "application/json").data == json.loads(DOCUMENT)
    assert resolve(json.dumps(ROWS).encode(), "application/json", select=["id"], limit=2).data == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize("part", [{"select": "data.nothing"}, {"select": "meta", "limit": 1}, {"select": "meta.n.x"}])
def test_a_missing_part_is_not_found(streaming: bool, part: dict[str, Any]) -> None:
    outcome = resolve(DOCUMENT, "application/json", **part)
    assert outcome.error is not None and outcome.error.kind == "not_found"


@pytest.mark.parametrize("format", ["jsonl", "parquet", "arrow"])
def test_a_part_of_a_table_is_taken(format: str) -> None:
    data, kind = encode_rows(ROWS, format), CONTENT_TYPES[format]
    whole = {"rows": ROWS, "row_count": 5000, "columns": ["id", "name", "tags"]}
    assert resolve(data, kind).data == whole
    part = resolve(data, kind, select=["name", "id"], limit=3, offset=4000).data
    assert part["rows"] == [{"name": f"n{number}", "id": number} for number in (4000, 4001, 4002)]
    assert (part["row_count"], part["columns"]) == (3, ["name", "id"])
    assert resolve(data, kind, select="rows", limit=1).data == ROWS[:1]
    assert resolve(data, kind, select="id", offset=4998).data == [4998, 4999]
    assert resolve(data, kind, offset=6000).data["rows"] == []


def test_a_part_of_csv_is_taken() -> None:
    data = b'id,note\r\n1,"a ""b"",\r\nnext line"\r\n2,\r\n3\r\n'
    whole = resolve(data, "text/csv").data
    assert whole["rows"] == [
        {"id": "1", "note": 'a "b",\r\nnext line'},
        {"id": "2", "note": ""},
        {"id": "3", "note": None},
    ]
    assert resolve(data, "text/csv", select=["id"], limit=1, offset=1).data["rows"] == [{"id": "2"}]


def test_text_and_bytes_have_lines_and_bytes() -> None:
    assert resolve("eins\nzwei\ndrä".encode(), "text/plain").data == "eins\nzwei\ndrä"
    assert resolve(b"one\ntwo\nthree\n", "text/plain", limit=1, offset=1).data == "two\n"
    assert resolve(b"\x00\x01\x02\x03", "application/octet-stream").data == "AAECAw=="
    assert resolve(b"\x00\x01\x02\x03", "image/png", limit=2, offset=1).data == "AQI="


def test_the_format_can_be_set() -> None:
    assert resolve(b'{"a": 1}', "application/octet-stream", format="json").data == {"a": 1}
    outcome = resolve(b"{}", "text/plain", format="xls")
    assert outcome.error is not None and outcome.error.kind == "schema" and "parquet" in outcome.error.message


@pytest.mark.parametrize("part", [{}, {"select": "data.items", "limit": 1}])
@pytest.mark.parametrize("format", ["json", "jsonl", "parquet", "arrow", "csv"])
def test_a_damaged_payload_is_never_believed(tmp_path: Path, format: str, part: dict[str, Any]) -> None:
    """Even when the requested part lies before the damage."""
    if format == "json":
        data = DOCUMENT + b" " * 100_000
    else:
        data = encode_rows([{"id": row["id"], "data.items": "x"} for row in ROWS], format)

    async def scenario() -> Outcome:
        store = open_store(f"file://{tmp_path}", compression="none")
        reference = await store.put("1:a:1", chunks(data), content_type=CONTENT_TYPES[format])
        file = tmp_path / reference.locator["path"]
        spoilt = bytearray(file.read_bytes())
        spoilt[-9 if format == "json" else len(spoilt) // 2] ^= 4
        file.write_bytes(spoilt)
        host = ToolHost()
        host.open_result = store.open  # type: ignore[method-assign,assignment]
        return await load("resolve")(tool_call("resolve", {"ref": msgspec.to_builtins(reference), **part}, host=host))

    outcome = asyncio.run(scenario())
    assert outcome.error is not None
    assert (
        outcome.error.kind in ("ref.corrupt", "parse", "not_found") if format == "json" and not part else "ref.corrupt"
    )


def test_a_large_payload_is_taken_in_bounded_memory(tmp_path: Path) -> None:
    """A document of 12 MB gives a few rows while no more than two or three are held."""
    import tracemalloc

    row = json.dumps({"id": 1, "text": "x" * 500}).encode()

    async def document() -> AsyncIterator[bytes]:
        yield b'{"ignored": ['
        for _ in range(120):
            yield b",".join([row] * 100) + b","
        yield row + b'], "rows": ['
        for _ in range(120):
            yield b",".join([row] * 100) + b","
        yield b'{"id": 2}]}'

    async def scenario() -> Outcome:
        store = open_store(f"file://{tmp_path}")
        reference = await store.put("1:a:1", document(), content_type="application/json")
        assert reference.meta.bytes > 12_000_000
        host = ToolHost()
        host.open_result = store.open  # type: ignore[method-assign,assignment]
        call = tool_call(
            "resolve", {"ref": msgspec.to_builtins(reference), "select": "rows", "offset": 12_000}, host=host
        )
        tracemalloc.start()
        outcome = await load("resolve")(call)
        held.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        return outcome

    held: list[int] = []
    assert asyncio.run(scenario()).data == [{"id": 2}]
    assert held[0] < 5_000_000


def test_a_part_over_max_bytes_is_a_limit_error() -> None:
    host, reference = stored(DOCUMENT, "application/json")
    outcome = run_tool("resolve", {"ref": reference}, host=host, spec={"max_bytes": 1000})
    assert outcome.error is not None and outcome.error.kind == "limit" and "`limit`" in outcome.error.message


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        (None, "stored inline"),
        ("ctx.records_ref", "not a reference"),
        ({"rows": []}, "not a reference"),
        ({"type": "blob", "locator": {}}, "reference is incomplete"),
        (
            {"type": "tape", "locator": {}, "meta": {"content_type": "a", "bytes": 1, "sha256": ""}},
            "reference is incomplete",
        ),
    ],
)
def test_an_invalid_reference_is_an_error(ref: Any, says: str) -> None:
    outcome = run_tool("resolve", {"ref": ref})
    assert outcome.error is not None and outcome.error.kind == "ref.unresolved"
    assert says in outcome.error.message


def test_a_payload_that_is_gone_cannot_be_resolved() -> None:
    _, reference = stored(b"{}", "application/json")
    outcome = run_tool("resolve", {"ref": reference})
    assert outcome.error is not None and outcome.error.kind == "ref.unresolved"


def test_an_output_that_has_a_reference_is_one() -> None:
    host, reference = stored(b"[1]", "application/json")
    assert run_tool("resolve", {"reference": {"status": "ok", "ref": reference}}, host=host).data == [1]


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"offset": "x"}, {"select": 5}])
def test_an_invalid_part_is_rejected(wrong: dict[str, Any]) -> None:
    outcome = resolve(b"[]", "application/json", **wrong)
    assert outcome.error is not None and outcome.error.kind == "schema"


def test_broken_json_is_a_parse_error() -> None:
    outcome = resolve(b'{"a": ', "application/json")
    assert outcome.error is not None and outcome.error.kind == "parse"


# ── the older name ──────────────────────────────────────────────────────────────────────


def test_an_artifact_is_put_and_got_by_reference() -> None:
    async def both() -> tuple[Outcome, Outcome]:
        host, run = ToolHost(), load("artifact")
        put = await run(tool_call("artifact", {"action": "put", "data": ROWS, "format": "parquet"}, host=host))
        ref = msgspec.to_builtins(put.ref)
        got = await run(tool_call("artifact", {"action": "get", "ref": ref, "limit": 1}, host=host))
        await close_loop_resources()
        return put, got

    put, got = asyncio.run(both())
    assert isinstance(put.ref, Reference) and put.ref.meta.rows == 5000
    assert put.ref.meta.content_type == CONTENT_TYPES["parquet"]
    assert got.data["rows"] == ROWS[:1]


def test_an_artifact_is_put_and_got_by_address(s3: dict[str, Any], bucket: str, tmp_path: Path) -> None:
    host = ToolHost(credentials={"minio": s3}, folder=tmp_path)
    for address in (f"s3://{bucket}/a/b.json", "folder/b.json"):
        put = run_tool("artifact", {"action": "put", "uri": address, "data": {"a": [1, 2]}, "auth": "minio"}, host=host)
        assert put.status == "ok", put.error
        got = run_tool("artifact", {"uri": address, "select": "a", "limit": 1, "auth": "minio"}, host=host)
        assert got.data == [1]
    assert (tmp_path / "folder" / "b.json").read_text() == '{"a":[1,2]}'
    gone = run_tool("artifact", {"uri": f"s3://{bucket}/none.json", "auth": "minio"}, host=host)
    assert gone.error is not None and gone.error.kind == "not_found"
