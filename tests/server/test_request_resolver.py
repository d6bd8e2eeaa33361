"""Data requests: stored lists are joined by streaming, payloads are fetched or refused, synthesized steps are validated."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noetl.core.engine.effects import FetchPayload, StorePayload, Synthesized, ValidateSynthesis
from noetl.core.language.compile import compile_playbook
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.errors import PayloadUnavailable
from noetl.server.orchestrator.request_resolver import MOST_BYTES, RequestResolver, decoded, validate_synthesis
from noetl.tools.registry import specs


class Results:
    """A result store that hands out its bytes in small pieces."""

    def __init__(self, piece: int) -> None:
        self.piece = piece
        self.stored: dict[str, bytes] = {}

    async def put(self, name: str, chunks: AsyncIterator[bytes], **meta: Any) -> Reference:
        self.stored[name] = b"".join([chunk async for chunk in chunks])
        return Reference("blob", {"key": name}, ReferenceMeta("application/json", len(self.stored[name]), "0"))

    async def open(self, reference: Reference, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data = self.stored[reference.locator["key"]][offset : None if length is None else offset + length]
        for start in range(0, len(data), self.piece):
            yield data[start : start + self.piece]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "lists", [[[1, 2], [3]], [[], [1]], [[1], []], [[], []], [["a,b]", {"x": [1]}], [None], [[]]], [[1], [], [2], []]]
)
def test_lists_are_joined_element_by_element(piece, lists):
    async def join() -> Any:
        results = Results(piece)
        resolver = RequestResolver(results, dict)  # type: ignore[arg-type]
        parts: list[Any] = []
        for number, each in enumerate(lists[:-1]):
            results.stored[f"p{number}"] = msgspec.json.encode(each)
            parts.append(Reference("blob", {"key": f"p{number}"}, ReferenceMeta("application/json", 1, "0")))
        parts.append(msgspec.json.encode(lists[-1]))
        (reference,) = (await resolver.resolve([StorePayload("k", b"", 3, tuple(parts))], "1", None)).values()  # type: ignore[arg-type]
        return msgspec.json.decode(results.stored[reference.locator["key"]])

    assert asyncio.run(join()) == [item for each in lists for item in each]


TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, path: p}
executor: {spec: {policy: {limits: {max_hydrate_bytes: 20}}}}
workflow: [{step: start, tool: {kind: noop}}]
"""
PLAYBOOK = compile_playbook(TEXT, file="p.yaml", specs=specs()).playbook


GENEROUS = compile_playbook(TEXT.replace("20}", "1000000000000}"), file="p.yaml", specs=specs()).playbook


def fetched(
    data: bytes, content_type: str = "application/json", size: int | None = None, playbook: Any = PLAYBOOK
) -> Any:
    """The answer to a request for a stored payload."""

    async def fetch() -> Any:
        results = Results(3 if len(data) < 100 else 1_000_000)
        results.stored["k"] = data
        reference = Reference("blob", {"key": "k"}, ReferenceMeta(content_type, size or len(data), "0"))
        resolver = RequestResolver(results, specs)  # type: ignore[arg-type]
        return (await resolver.resolve([FetchPayload("f", reference)], "1", playbook))["f"]  # type: ignore[arg-type]

    return asyncio.run(fetch())


def test_a_payload_is_fetched_up_to_the_limit_of_the_playbook():
    assert fetched(b'{"a": [1, 2]}') == {"a": [1, 2]}
    assert fetched(b"1", size=20) == 1
    refused = fetched(b"1", size=21)
    assert isinstance(refused, PayloadUnavailable) and refused.kind == "limit"
    assert "21 bytes is larger than limits.max_hydrate_bytes (20)" in str(refused)


def test_a_playbook_cannot_raise_the_limit_of_the_server():
    assert fetched(b"1", size=MOST_BYTES, playbook=GENEROUS) == 1
    refused = fetched(b"1", size=MOST_BYTES + 1, playbook=GENEROUS)
    assert isinstance(refused, PayloadUnavailable) and refused.kind == "limit"
    assert "the most for templates of the server" in str(refused)


def test_a_payload_is_decoded_by_its_type():
    assert decoded(b"[1]", "application/json; charset=utf-8") == [1]
    assert decoded(b"a\xff", "text/plain") == "a\ufffd"
    assert decoded(b"a,b\n1,2\n", "text/csv")["columns"] == ["a", "b"]
    with pytest.raises(PayloadUnavailable, match=r"^a stored payload of type image/png cannot be read by a template"):
        decoded(b"", "image/png")
    broken = fetched(b"{")
    assert isinstance(broken, PayloadUnavailable) and broken.kind == "ref.corrupt"
    assert str(broken).startswith("a stored payload is not valid JSON")


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("application/vnd.apache.parquet", b"PAR1"),
        ("application/vnd.apache.arrow.stream", b"x"),
        ("application/x-ndjson", b'{"a"\n'),
        ("text/csv", b"a,b\n\xff\xfe"),
        ("text/csv", b"a\n" + b"x" * (65 << 20)),
    ],
)
def test_a_table_that_does_not_match_its_type_is_corrupt(content_type, data):
    with pytest.raises(PayloadUnavailable, match="a stored payload is not valid ") as refused:
        decoded(data, content_type)
    assert refused.value.kind == "ref.corrupt"


def test_an_unknown_request_is_an_error():
    with pytest.raises(TypeError, match="no resolver for the data request str"):
        asyncio.run(RequestResolver(Results(1), specs).resolve(["?"], "1", PLAYBOOK))  # type: ignore[arg-type,list-item]


A = {"step": "a", "tool": {"kind": "noop"}}
B = {"step": "b", "tool": {"kind": "noop"}}


@pytest.mark.parametrize(
    ("nodes", "names", "entry"),
    [
        ([A, B], ["a", "b"], "a"),
        ({"workflow": [A, B], "entry": "b"}, ["a", "b"], "b"),
        ({"steps": [A, B], "entry_step": "b"}, ["a", "b"], "b"),
        ({"workflow": [A], "steps": [B]}, ["a"], "a"),
        ([{**A, "next": {"arcs": [{"step": "start"}, {"step": "earlier"}]}}], ["a"], "a"),
    ],
    ids=["list", "workflow", "steps", "both", "known steps"],
)
def test_synthesized_steps_are_compiled(nodes, names, entry):
    found = validate_synthesis(ValidateSynthesis("v", "start", nodes, 2, known=("earlier",)), PLAYBOOK, specs())  # type: ignore[arg-type]
    assert found.problems == ()
    assert ([step.name for step in found.steps], found.entry) == (names, entry)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ("a", "expected a list of steps, got str"),
        ([], "the workflow has no steps"),
        ({"other": []}, "expected a list of steps, got NoneType"),
        ([A, B, {**A, "step": "c"}], "3 steps are more than the limit of 2"),
        ({"workflow": [A], "entry": "z"}, "entry 'z' is not one of the new steps"),
        ([{**A, "set": {"state.n": 1}}], "the steps write state, and the playbook has none"),
        ([{"step": "a", "tool": [{"name": "t", "kind": "noop", "set": {"state.n": 1}}]}], "the steps write state"),
        ([{**A, "next": {"arcs": [{"step": "start", "set": {"state.n": 1}}]}}], "the steps write state"),
        ([{"step": "a", "tool": {"kind": "none_such"}}], "none_such"),
    ],
    ids=[
        "text",
        "empty",
        "no list",
        "too many",
        "entry",
        "state",
        "state of a task",
        "state of an arc",
        "unknown kind",
    ],
)
def test_bad_synthesized_steps_are_refused(nodes, problem):
    found = validate_synthesis(ValidateSynthesis("v", "start", nodes, 2), PLAYBOOK, specs())  # type: ignore[arg-type]
    assert isinstance(found, Synthesized) and found.steps == ()
    assert any(problem in each for each in found.problems), found.problems


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        pytest.param({"a": [1, 2], "b": ["x", None]}, True, id="small"),
        pytest.param({"a": ["x" * 1_000_000] * 100}, False, id="repeated text"),
        pytest.param({"a": [True] * 2_000_000}, False, id="one bit for each row"),
    ],
)
def test_a_table_is_read_up_to_its_decoded_size(table, fits):
    file = io.BytesIO()
    pq.write_table(pa.table(table), file, compression="zstd")
    data = file.getvalue()
    assert len(data) < 3_000_000
    found = fetched(data, "application/vnd.apache.parquet", playbook=GENEROUS)
    if fits:
        assert found == {"rows": [{"a": 1, "b": "x"}, {"a": 2, "b": None}], "row_count": 2, "columns": ["a", "b"]}
    else:
        assert isinstance(found, PayloadUnavailable)
        assert found.kind == "limit"
        assert "kind: resolve" in str(found)
