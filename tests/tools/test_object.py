from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from devcluster import services
from noetl.connections import objects
from noetl.core.model.outcome import Outcome
from noetl.data.files import compression
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load
from tests.waiting import until

ROWS = [{"id": 1, "name": "ä"}, {"id": 2, "name": None}]
TABLE = {"rows": ROWS, "row_count": 2, "columns": ["id", "name"]}


@pytest.fixture(params=["s3", "file"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where objects of a test live: every test runs against both."""
    if request.param == "s3":
        return f"s3://{request.getfixturevalue('bucket')}/a"
    return str(tmp_path / "a")


@pytest.fixture
def host(s3: dict[str, Any], tmp_path: Path) -> ToolHost:
    return ToolHost(credentials={"store": s3}, folder=tmp_path)


def do(host: ToolHost, **input: Any) -> Outcome:
    others = {name: input.pop(name) for name in ("spec", "timeout") if name in input}
    return run_tool("object", {"auth": "store", **input}, host=host, **others)


@pytest.mark.parametrize(
    ("name", "data", "got"),
    [
        ("x.json", {"a": [1, None]}, {"a": [1, None]}),
        ("x.txt", "hällo\n", "hällo\n"),
        ("x.parquet", ROWS, TABLE),
        ("x.arrow", ROWS, TABLE),
        ("x.jsonl", ROWS, TABLE),
        ("x.csv", ROWS, {**TABLE, "rows": [{"id": "1", "name": "ä"}, {"id": "2", "name": ""}]}),
        ("x.tsv", [{"a": "1\t2"}], {"rows": [{"a": "1\t2"}], "row_count": 1, "columns": ["a"]}),
        ("x.bin", base64.b64encode(b"\x00\xff").decode(), base64.b64encode(b"\x00\xff").decode()),
        ("x.parquet", TABLE, TABLE),
        ("empty.json", [], []),
    ],
)
def test_put_content_can_be_read_back(host: ToolHost, base: str, name: str, data: Any, got: Any) -> None:
    format = "bytes" if name == "x.bin" else None
    put = do(host, action="put", uri=f"{base}/{name}", data=data, format=format)
    assert put.status == "ok", put.error
    outcome = do(host, action="get", uri=f"{base}/{name}", format=format)
    assert outcome.data == got
    assert outcome.helpers["object"]["size"] == put.data["bytes"]


def test_the_format_can_be_set_and_parts_can_be_read(host: ToolHost, base: str) -> None:
    do(host, uri=f"{base}/x", data=ROWS, format="parquet")
    assert do(host, uri=f"{base}/x", format="parquet", select=["id"], limit=1, offset=1).data["rows"] == [{"id": 2}]
    assert do(host, uri=f"{base}/x", format="parquet", select="name").data == ["ä", None]


def test_a_put_may_be_for_new_objects_only(host: ToolHost, base: str) -> None:
    assert do(host, uri=f"{base}/x.txt", data="first", create=True).status == "ok"
    again = do(host, uri=f"{base}/x.txt", data="second", create=True)
    assert again.error is not None and again.error.kind == "client_error" and "exists" in again.error.message
    assert do(host, uri=f"{base}/x.txt").data == "first"


def test_objects_are_listed_by_prefix(host: ToolHost, base: str) -> None:
    for name in ("b/1.txt", "b/2.txt", "c/3.txt", "bb.txt"):
        do(host, uri=f"{base}/{name}", data="x")
    listed = do(host, action="list", uri=base).data
    assert [entry["key"].removeprefix("a/") for entry in listed["objects"]] == [
        "b/1.txt",
        "b/2.txt",
        "bb.txt",
        "c/3.txt",
    ]
    assert do(host, uri=listed["objects"][0]["uri"]).data == "x"
    assert [entry["size"] for entry in listed["objects"]] == [1] * 4
    assert do(host, action="list", uri=base, prefix="b/").data["count"] == 2
    assert do(host, action="list", uri=base, prefix="b").data["count"] == 3
    some = do(host, action="list", uri=base, limit=3).data
    assert (some["count"], some["truncated"]) == (3, True)


def test_objects_are_inspected_and_deleted(host: ToolHost, base: str) -> None:
    do(host, uri=f"{base}/x.txt", data="x")
    assert do(host, action="head", uri=f"{base}/x.txt").data["size"] == 1
    assert do(host, action="exists", uri=f"{base}/x.txt").data["exists"] is True
    assert do(host, action="delete", uri=f"{base}/x.txt").data == {"deleted": 1}
    assert do(host, action="exists", uri=f"{base}/x.txt").data["exists"] is False
    for action in ("get", "head"):
        gone = do(host, action=action, uri=f"{base}/x.txt")
        assert gone.error is not None and gone.error.kind == "not_found"


def test_files_and_stored_results_are_streamed(host: ToolHost, base: str, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(bytes(range(256)) * 80_000)  # 20 MB: more than one part
    assert do(host, action="put", uri=f"{base}/big.bin", file="big.bin").data["bytes"] == 20_480_000
    assert host.counts[-1] == {"bytes": 20_480_000}
    got = do(host, uri=f"{base}/big.bin")  # more than a task holds
    assert got.ref is not None and got.ref.meta.bytes == 20_480_000
    assert do(host, action="get", uri=f"{base}/big.bin", file="out/again.bin").status == "ok"
    assert (tmp_path / "out" / "again.bin").read_bytes() == (tmp_path / "big.bin").read_bytes()
    assert do(host, uri=f"{base}/copy.bin", ref=msgspec.to_builtins(got.ref)).data["bytes"] == 20_480_000


def test_an_address_can_be_given_in_parts(host: ToolHost, bucket: str, tmp_path: Path) -> None:
    do(host, action="put", provider="s3", bucket=bucket, key="k/x.json", data={"a": 1})
    assert do(host, uri=f"s3://{bucket}/k/x.json").data == {"a": 1}
    assert run_tool("s3", {"path": f"{bucket}/k/x.json", "auth": "store"}, host=host).data == {"a": 1}
    do(host, uri="folder/x.parquet", data=ROWS)
    assert pq.read_table(tmp_path / "folder" / "x.parquet").num_rows == 2
    listed = do(host, action="list", provider="s3", bucket=bucket, prefix="k/")
    assert listed.data["count"] == 1
    both = do(host, action="delete", provider="s3", bucket=bucket, keys=["k/x.json"])
    assert both.data == {"deleted": 1}


def test_fields_of_credentials_have_many_spellings(s3: dict[str, Any], bucket: str) -> None:
    spelled = {
        "aws_access_key_id": s3["access_key_id"],
        "aws_secret_access_key": s3["secret_access_key"],
        "aws_region": "us-east-1",
        "endpoint_url": s3["endpoint"],
    }
    host = ToolHost(credentials={"store": spelled})
    assert do(host, uri=f"s3://{bucket}/x", data="x").status == "ok"


@pytest.mark.parametrize(
    ("input", "kind"),
    [
        ({}, "schema"),
        ({"uri": "ftp://x/y"}, "schema"),
        ({"uri": "s3://bucket"}, "schema"),
        ({"action": "explode", "uri": "x"}, "schema"),
        ({"action": "put", "uri": "x.json"}, "schema"),
        ({"bucket": "b", "key": "k"}, "schema"),
        ({"uri": "x.parquet", "data": [1, 2]}, "schema"),
        ({"uri": "x.json", "limit": "many"}, "schema"),
        ({"uri": "nowhere/x.json"}, "not_found"),
        ({"uri": "x.json", "auth": "nope"}, "auth"),
        ({"uri": "x", "ref": {"type": "blob", "locator": {}}}, "ref.unresolved"),
    ],
)
def test_bad_input_is_a_clear_error(host: ToolHost, tmp_path: Path, input: dict[str, Any], kind: str) -> None:
    (tmp_path / "x.json").write_text("{}")
    outcome = do(host, **input)
    assert outcome.error is not None and outcome.error.kind == kind, outcome.error


def test_broken_content_is_a_parse_error(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    for name in ("x.json", "x.txt"):
        outcome = do(host, uri=name)
        assert outcome.error is not None and outcome.error.kind == "parse"


def test_a_bucket_that_does_not_exist_is_not_found(host: ToolHost) -> None:
    outcome = do(host, uri="s3://no-such-bucket/x", data="x")
    assert outcome.error is not None and outcome.error.kind == "not_found"


def test_an_unreachable_store_is_a_connection_error_without_secrets() -> None:
    fields = {
        "access_key_id": "a",
        "secret_access_key": "hush-hush",
        "endpoint": f"http://127.0.0.1:{services.free_port()}",
    }
    outcome = do(ToolHost(credentials={"store": fields}), uri="s3://b/x", data="x")
    assert outcome.error is not None and (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    assert "hush-hush" not in str(outcome)


def test_a_put_that_is_cancelled_leaves_no_object(host: ToolHost, bucket: str) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b"x" * 1_000_000
            sent += 1
            await asyncio.sleep(0.005)

    async def cancelled() -> Outcome:
        host.open_result = lambda *_, **__: endless()  # type: ignore[method-assign,assignment,return-value]
        ref = {"type": "blob", "locator": {}, "meta": {"content_type": "x/y", "bytes": 1, "sha256": ""}}
        call = {"action": "put", "uri": f"s3://{bucket}/x", "ref": ref, "auth": "store"}
        task = asyncio.create_task(load("object")(tool_call("object", call, host=host)))
        await until(lambda: sent > 20)  # more than one part of the upload
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        outcome = await load("object")(
            tool_call("object", {"action": "exists", "uri": call["uri"], "auth": "store"}, host=host)
        )
        await close_loop_resources()
        return outcome

    assert asyncio.run(cancelled()).data["exists"] is False


@contextmanager
def pretending(*answers: bytes) -> Iterator[str]:
    """The address of something that speaks HTTP like S3 and gives these answers, whatever the request."""
    listening = socket.create_server(("127.0.0.1", 0))
    left = list(answers)

    def serve() -> None:
        while True:
            try:
                line, _ = listening.accept()
            except OSError:
                return
            with line:
                line.settimeout(5)
                with suppress(OSError):
                    line.recv(65536)
                    line.sendall(left.pop(0) if len(left) > 1 else left[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


HEAD = b'HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5000\r\nETag: "a"\r\n'
HEAD += b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nConnection: close\r\n\r\n"
DENIED = b"<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"
FORBIDDEN = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((FORBIDDEN % len(DENIED) + DENIED,), ("auth", "storage.access")),  # wrong credentials
        ((HEAD, HEAD + b"x" * 100, b""), ("connection", "storage.access", "timeout")),  # gone in the middle of the body
        ((b"this is not HTTP\r\n\r\n",), ("connection", "storage.access")),
    ],
)
def test_a_store_that_misbehaves_is_an_error_of_the_list(answers: tuple[bytes, ...], kind: tuple[str, ...]) -> None:
    with pretending(*answers) as endpoint:
        host = ToolHost(
            credentials={"s": {"endpoint": endpoint, "access_key_id": "AKIA", "secret_access_key": "wr0ng-key"}}
        )
        got = run_tool("object", {"uri": "s3://b/x.txt", "auth": "s"}, host=host, timeout=20)
    assert got.error is not None and got.error.kind in kind, got.error
    assert "wr0ng-key" not in got.error.message


def test_the_format_follows_the_key(host: ToolHost, tmp_path: Path) -> None:
    stored = run_tool("resolve", {"action": "put", "data": [{"a": 1}]}, host=host)
    wrong = run_tool("object", {"uri": "x.csv", "ref": msgspec.to_builtins(stored.ref)}, host=host)
    assert wrong.error is not None and wrong.error.kind == "schema"
    assert "the stored result is json" in wrong.error.message and "kind: transfer" in wrong.error.message
    assert not (tmp_path / "x.csv").exists()
    for name in ("x.json", "x"):
        put = run_tool("object", {"uri": name, "ref": msgspec.to_builtins(stored.ref)}, host=host)
        assert put.error is None and (tmp_path / name).read_text() == '[{"a":1}]'
    text = run_tool("object", {"uri": "y", "format": "bytes", "data": "no base64!"}, host=host)
    assert text.error is not None and "base64" in text.error.message


def test_a_missing_column_is_named(host: ToolHost, tmp_path: Path) -> None:
    for name in ("x.csv", "x.parquet", "x.arrow"):
        assert run_tool("object", {"uri": name, "data": [{"a": 1, "b": 2}]}, host=host).error is None
        for select in ("nope", ["a", "nope"]):
            outcome = run_tool("object", {"uri": name, "select": select}, host=host)
            assert outcome.error is not None and outcome.error.kind == "not_found", name
            assert "no column nope; it has a, b" in outcome.error.message


def test_the_same_file_can_be_written_concurrently(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for number in range(8):
        (tmp_path / "from" / f"{number}").write_bytes(bytes([number]) * 300_000)

    async def all_of_them() -> list[Any]:
        def get(number: int) -> Any:
            return load("object")(tool_call("object", {"uri": f"from/{number}", "file": "to/x"}, host=host))

        return await asyncio.gather(*(get(number) for number in range(8)))

    assert [outcome.error for outcome in asyncio.run(all_of_them())] == [None] * 8
    content = (tmp_path / "to" / "x").read_bytes()
    assert len(content) == 300_000 and len(set(content)) == 1
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["x"]


@pytest.mark.parametrize(("start", "count"), [(0, None), (10, None), (10, 3_000_000)])
def test_an_object_that_takes_longer_than_one_request_is_taken_up_where_it_was(start: int, count: int | None) -> None:
    body = bytes(range(250)) * 16_000
    wanted = body[start:] if count is None else body[start : start + count]
    requested: list[dict[str, str]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As an S3 store answers, but the first time only half of it comes."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        requested.append({name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])})
        given = requested[-1].get("range", "bytes=0-").removeprefix("bytes=").split("-")
        first, last = int(given[0]), min(int(given[1] or len(body)), len(body) - 1)
        part = body[first : last + 1]
        lines = [
            "HTTP/1.1 206 Partial Content" if "range" in requested[-1] else "HTTP/1.1 200 OK",
            f"Content-Range: bytes {first}-{last}/{len(body)}",
            f"Content-Length: {len(part)}",
            "Last-Modified: Mon, 16 Nov 2026 06:00:00 GMT",
            'ETag: "one"',
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + (part if len(requested) > 1 else part[: len(part) // 2]))
        lines_open.append(writer)

    lines_open: list[asyncio.StreamWriter] = []

    async def check() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        place = objects.parse_location("s3://b/large")
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        fields = {"access_key_id": "a", "secret_access_key": "b", "endpoint": endpoint}
        store = objects.new_store(place, objects.config_of(place, fields), total=1.0)
        got = [chunk async for chunk in objects.download(store, "large", start=start, count=count, chunk=1 << 16)]
        for line in lines_open:
            line.close()
            with suppress(ConnectionError):
                await line.wait_closed()
        server.close()
        return b"".join(got)

    assert asyncio.run(check()) == wanted
    assert len(requested) == 2 and requested[1]["if-match"] == '"one"'


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_small_object_that_is_large_without_its_compression_is_not_read_into_memory(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"bomb.txt.{ending}"
    path.write_bytes(compression.compress(b"0" * (80 << 20), compression.ENDINGS[ending]))
    assert path.stat().st_size < 1 << 20
    outcome = run_tool("object", {"action": "get", "uri": str(path)})
    assert outcome.error is not None and outcome.error.kind == "schema", outcome.error
    assert "more than 64 MiB" in outcome.error.message and "kind: transfer" in outcome.error.message


@pytest.mark.parametrize("to", ["d/../d/b.txt", "./d/b.txt", "link/b.txt", "d//b.txt"])
def test_a_file_is_not_moved_onto_itself_in_another_spelling(tmp_path, to):
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "b.txt").write_text("kept")
    outcome = run_tool("object", {"action": "move", "uri": "d/b.txt", "to": to}, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and "`to` is the object itself" in outcome.error.message
    assert (tmp_path / "d" / "b.txt").read_text() == "kept"


@pytest.mark.parametrize("to", ["in//a.txt", "./in/a.txt", "/in/a.txt", "in/"])
def test_an_object_is_not_moved_onto_itself_in_another_spelling(s3, bucket, to):
    auth = {name: s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    uri = f"s3://{bucket}/in/a.txt"
    assert run_tool("object", {"uri": uri, "auth": auth, "data": "kept"}).status == "ok"
    outcome = run_tool("object", {"action": "move", "uri": uri, "auth": auth, "to": to})
    assert outcome.error is not None and "`to` is the object itself" in outcome.error.message
    assert run_tool("object", {"uri": uri, "auth": auth}).data == "kept"


def test_files_and_objects_are_listed_by_a_pattern(tmp_path, s3, bucket):
    auth = {name: s3[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
    host = ToolHost(folder=tmp_path)
    for key in ("in/a.csv", "in/b.csv", "in/b.txt", "in/x/c.csv", "in/a[1].csv"):
        for uri in (key, f"s3://{bucket}/{key}"):
            assert run_tool("object", {"uri": uri, "auth": auth, "data": "x"}, host=host).status == "ok"
    wanted = {
        "in/*.csv": ["a.csv", "a[1].csv", "b.csv"],
        "in/**/*.csv": ["a.csv", "a[1].csv", "b.csv", "x/c.csv"],
        "in/a[1]*": ["a[1].csv"],
        "in/?.txt": ["b.txt"],
        "in/*.none": [],
    }
    for pattern, keys in wanted.items():
        local = run_tool("object", {"action": "list", "uri": pattern}, host=host).data["objects"]
        assert [entry["key"] for entry in local] == keys
        assert all(entry["uri"] == f"file://{tmp_path}/in/{entry['key']}" for entry in local)
        stored = run_tool("object", {"action": "list", "uri": f"s3://{bucket}/{pattern}", "auth": auth}).data["objects"]
        assert [entry["key"] for entry in stored] == [f"in/{key}" for key in keys]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["a.csv", "a[1].csv", "b.csv", "b.txt", "x"]


@pytest.mark.parametrize(
    ("address", "bucket", "key"),
    [
        ("s3://b/a#b.csv", "b", "a#b.csv"),
        ("s3://b/in/?.csv", "b", "in/?.csv"),
        ("s3://b/x?versionId=1#2", "b", "x?versionId=1#2"),
        ("s3://b/x#", "b", "x#"),
        ("s3://b/a%20b", "b", "a b"),
        ("s3://b/a%2520b", "b", "a%20b"),
        ("s3://b/50%.csv", "b", "50%.csv"),
        ("s3://b", "b", ""),
        ("file:///tmp/a#b.csv", "/tmp", "a#b.csv"),
    ],
)
def test_an_address_names_the_whole_key(address, bucket, key):
    place = objects.parse_location(address)
    assert place[1:3] == (bucket, key)
    assert objects.parse_location(place.url) == place  # a listed address is that of the object


def test_reading_creates_no_folder(tmp_path):
    host = ToolHost(folder=tmp_path)
    assert run_tool("object", {"action": "list", "uri": "none/"}, host=host).data["objects"] == []
    assert run_tool("object", {"action": "exists", "uri": "none/a.txt"}, host=host).data["exists"] is False
    for fields in ({"action": "get"}, {"action": "stat"}, {"action": "copy", "to": "b.txt"}):
        outcome = run_tool("object", {"uri": "none/a.txt", **fields}, host=host)
        assert outcome.error is not None and outcome.error.kind == "not_found"
        assert f"file://{tmp_path}/none/a.txt" in outcome.error.message
    assert list(tmp_path.iterdir()) == []


def test_a_compressed_object_is_decompressed_into_a_file(base: str, host: ToolHost, tmp_path: Path) -> None:
    auth = {"auth": "store"} if base.startswith("s3") else {}
    (tmp_path / "in.csv").write_bytes(b"a\n1\n")
    put = {"action": "put", "uri": f"{base}/x.csv.gz", "file": "in.csv", **auth}
    assert run_tool("object", put, host=host).error is None
    get = {"action": "get", "uri": f"{base}/x.csv.gz", **auth}
    for fields, content in (
        ({"file": "out.csv"}, b"a\n1\n"),
        ({"file": "out.csv.gz"}, compression.compress(b"a\n1\n", "gzip")),
        ({"file": "raw.csv", "compression": "none"}, compression.compress(b"a\n1\n", "gzip")),
    ):
        outcome = run_tool("object", {**get, **fields}, host=host)
        assert outcome.error is None, outcome.error
        assert (tmp_path / fields["file"]).read_bytes() == content
        assert outcome.data["bytes"] == len(content)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "delete", "uri": "*.csv"}, "*.csv: `delete` takes no pattern; loop over the objects of a list"),
        ({"action": "move", "uri": "a.csv", "to": "b.csv", "create": True}, "b.csv: the object already exists"),
        ({"action": "get", "uri": "c.parquet"}, "c.parquet: "),
        ({"action": "get", "uri": "d.csv.gz", "file": "out.csv"}, "d.csv.gz: the content is not valid gzip"),
    ],
)
def test_errors_name_the_object(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    for name in ("a.csv", "b.csv", "c.parquet", "d.csv.gz"):
        (tmp_path / name).write_text("a\n1\n")
    outcome = run_tool("object", fields, host=ToolHost(folder=tmp_path))
    assert outcome.error is not None and outcome.error.message.startswith(f"file://{tmp_path}/{message}")
    assert (tmp_path / "a.csv").exists() and not (tmp_path / "out.csv").exists()


def test_keys_of_a_folder_are_deleted_and_marks_before_json_are_ignored(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b'\xef\xbb\xbf{"a": 1}')
    host = ToolHost(folder=tmp_path)
    assert run_tool("object", {"action": "get", "uri": "d/a.json"}, host=host).data == {"a": 1}
    delete = {"action": "delete", "uri": "d/", "keys": ["a.json", "b.json", "c.json"]}
    assert run_tool("object", delete, host=host).data == {"deleted": 2}
    assert not list((tmp_path / "d").iterdir())


def test_a_folder_keeps_the_name_of_a_file(base: str, host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a\n1\n")
    put = do(host, action="put", uri=f"{base}/day/", file="in.csv")
    assert put.error is None and put.data["uri"].endswith("/day/in.csv")
    got = do(host, action="get", uri=f"{base}/day/in.csv", file="out/")
    assert got.data["file"] == str(tmp_path / "out" / "in.csv")
    assert (tmp_path / "out" / "in.csv").read_text() == "a\n1\n"


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"action": "delete", "uri": "day/"}, "schema", "is a folder, and `delete` is for one object"),
        ({"action": "copy", "uri": "day/", "to": "other"}, "schema", "is a folder, and `copy` is for one object"),
        ({"action": "put", "uri": "day/", "data": "x"}, "schema", "is a folder, and `put` is for one object"),
        ({"action": "copy", "uri": "day/*.csv", "to": "other/"}, "schema", "`copy` takes no pattern; loop over"),
        ({"action": "move", "uri": "day/*.csv", "to": "other/"}, "schema", "`move` takes no pattern; loop over"),
        ({"action": "put", "uri": "x.csv", "file": "none.csv"}, "not_found", "the file none.csv was not found"),
    ],
)
def test_a_folder_or_pattern_is_not_one_object(
    base: str, host: ToolHost, tmp_path: Path, fields: dict[str, Any], kind: str, message: str
) -> None:
    assert do(host, uri=f"{base}/day/x.csv", data="a").error is None
    outcome = do(host, **{**fields, "uri": f"{base}/{fields['uri']}"})
    assert outcome.error is not None and (outcome.error.kind, message in outcome.error.message) == (kind, True)
    assert do(host, uri=f"{base}/day/x.csv", action="exists").data["exists"] is True


def test_a_folder_in_the_place_of_a_file_is_named(host: ToolHost, tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    (tmp_path / "x.csv").write_text("a")
    for fields, message in (
        ({"action": "delete", "uri": "day"}, "day is a folder"),
        ({"action": "put", "uri": "day", "data": "x"}, "day is a folder"),
        ({"action": "put", "uri": "x.csv/y", "data": "x"}, "x.csv/y: a part of the path is a file"),
    ):
        outcome = do(host, **fields)
        assert outcome.error is not None and outcome.error.kind == "client_error"
        assert outcome.error.message.endswith(message)
