from __future__ import annotations

import asyncio
import os
import socket
import socketserver
import struct
import threading
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest

from devcluster import services
from noetl.connections.nats_client import NatsClient
from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Timeout
from noetl.runtime.resources import close_loop_resources
from noetl.testing.tools import ToolHost, run_tool, tool_call
from noetl.tools.registry import load


@pytest.fixture
def do(nats_server: str, tmp_path: Path) -> Any:
    """Run the tool; its names are the test's own."""
    name = tmp_path.name.replace("_", "-")

    def run(action: str, **input: Any) -> Outcome:
        others = {key: input.pop(key) for key in ("host", "spec", "timeout") if key in input}
        return run_tool("nats", {"auth": nats_server, "action": action, "bucket": name, **input}, **others)

    run.name = name  # type: ignore[attr-defined]
    return run


def test_values_are_put_got_listed_and_deleted(do: Any) -> None:
    first = do("kv_put", key="orders.1", value={"a": [1, None]})
    assert first.data == {"key": "orders.1", "revision": 1}
    do("kv_put", key="orders.2", value="text")
    do("kv_put", key="users.1", value=5)
    assert do("kv_get", key="orders.1").data == {"key": "orders.1", "value": {"a": [1, None]}, "revision": 1}
    assert do("kv_get", key="orders.2").data["value"] == "text"
    assert do("kv_get", key="users.1").data["value"] == 5
    assert do("kv_list").data == {"keys": ["orders.1", "orders.2", "users.1"], "count": 3}
    assert do("kv_list", prefix="orders").data["count"] == 2
    assert do("kv_list", key="*.1").data["keys"] == ["orders.1", "users.1"]
    do("kv_delete", key="orders.1")
    gone = do("kv_get", key="orders.1")
    assert gone.error is not None and gone.error.kind == "not_found"
    do("kv_purge", key="orders.2")
    assert do("kv_keys").data["keys"] == ["users.1"]


def test_conditional_puts_detect_conflicts(do: Any) -> None:
    assert do("kv_put", key="k", value=1, create=True).status == "ok"
    assert do("kv_put", key="k", value=2, create=True).error.kind == "client_error"
    assert do("kv_put", key="k", value=2, revision=1).data["revision"] == 2
    assert do("kv_put", key="k", value=3, revision=1).error.kind == "client_error"
    assert do("kv_get", key="k").data["value"] == 2


def test_objects_of_any_size_are_put_and_got(do: Any, tmp_path: Path) -> None:
    host = ToolHost(folder=tmp_path)
    assert do("object_put", name="x.json", data={"a": 1}).data["bytes"] == 7
    assert do("object_get", name="x.json").data == {"a": 1}
    assert do("object_get", object="x.json").data == {"a": 1}  # beside a task's own `name`
    rows = [{"id": 1}, {"id": 2}]
    do("object_put", name="t.parquet", data=rows)
    assert do("object_get", name="t.parquet").data["rows"] == rows
    big = os.urandom(3_000_000)
    (tmp_path / "big.bin").write_bytes(big)
    do("object_put", name="big", file="big.bin", host=host)
    do("object_get", name="big", file="again.bin", host=host)
    assert (tmp_path / "again.bin").read_bytes() == big
    stored = do("object_get", name="big", host=host, spec={"inline_bytes": 1_000_000})
    assert stored.ref is not None and stored.ref.meta.bytes == 3_000_000
    do("object_put", name="copy", ref=msgspec.to_builtins(stored.ref), host=host)
    assert do("object_list").data["names"] == ["big", "copy", "t.parquet", "x.json"]
    assert do("object_info", name="copy").data["size"] == 3_000_000
    assert do("object_put", name="copy", data="x", create=True).error.kind == "client_error"
    assert do("object_delete", name="copy").data["deleted"] is True
    assert do("object_get", name="copy").error.kind == "not_found"


def test_objects_are_readable_by_others(do: Any, nats_server: str) -> None:
    """The layout is NATS's own."""
    data = os.urandom(400_000)

    async def read() -> bytes:
        client = await nats.connect(nats_server)
        bucket = await client.jetstream().object_store(do.name)
        result = await bucket.get("x")
        await client.close()
        return bytes(result.data or b"")

    async def write() -> None:
        client = await nats.connect(nats_server)
        bucket = await client.jetstream().object_store(do.name)
        await bucket.put("theirs", data)
        await client.close()

    do("object_put", name="x", data=data)
    assert asyncio.run(read()) == data
    asyncio.run(write())
    assert do("object_info", name="theirs").data["size"] == 400_000
    assert len(do("object_get", name="theirs").data) == 533_336  # as base64


def test_a_flush_confirms_the_commands_before_it() -> None:
    """The ping of a flush is read after them, so that its reply says something about them."""
    commands: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            commands.append(line.split(b" ")[0].strip())
            if commands[-1] == b"PING":
                writer.write(b"PONG\r\n")
            elif commands[-1] == b"PUB":
                await reader.readline()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = NatsClient()
        await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await client.subscribe("a")
        await client.publish("b", b"x")
        await client.flush()
        await client.close()
        server.close()

    asyncio.run(scenario())
    assert commands == [b"CONNECT", b"PING", b"SUB", b"PUB", b"PING"]


def test_messages_are_published_and_requests_answered(nats_server: str) -> None:
    async def scenario() -> tuple[list[Any], Outcome, Outcome]:
        client = await nats.connect(nats_server)
        seen: list[Any] = []

        async def note(message: Any) -> None:
            seen.append((message.data, dict(message.headers or {})))

        async def reply(message: Any) -> None:
            await message.respond(b'{"sum": 3}')

        await client.subscribe("note", cb=note)
        await client.subscribe("add", cb=reply)
        await client.flush()
        run = load("nats")
        call = {"auth": nats_server, "action": "publish", "subject": "note", "data": {"a": 1}, "headers": {"x": 1}}
        await run(tool_call("nats", call))
        answer = await run(
            tool_call("nats", {"auth": nats_server, "action": "request", "subject": "add", "data": [1, 2]})
        )
        nobody = await run(
            tool_call("nats", {"auth": nats_server, "action": "request", "subject": "nobody", "data": ""})
        )
        await client.flush()
        await client.close()
        await close_loop_resources()
        return seen, answer, nobody

    seen, answer, nobody = asyncio.run(scenario())
    assert seen == [(b'{"a":1}', {"x": "1"})]
    assert answer.data == {"sum": 3}
    assert nobody.error is not None and nobody.error.kind == "not_found"


def test_a_repeated_attempt_is_stored_once_in_a_stream(do: Any, nats_server: str) -> None:
    async def make() -> None:
        client = await nats.connect(nats_server)
        await client.jetstream().add_stream(name=do.name, subjects=[f"{do.name}.>"])
        await client.close()

    asyncio.run(make())
    first = do("js_publish", subject=f"{do.name}.a", data={"n": 1})
    again = do("js_publish", subject=f"{do.name}.a", data={"n": 1})
    assert (first.data["seq"], first.data["duplicate"]) == (1, False)
    assert (again.data["seq"], again.data["duplicate"]) == (1, True)
    assert do("js_get", stream=do.name, seq=1).data["data"] == {"n": 1}
    assert do("js_get_msg", stream=do.name, subject=f"{do.name}.a").data["seq"] == 1
    assert do("js_info", stream=do.name).data["messages"] == 1
    patient = Timeout(read=10)
    fetched = do("js_fetch", stream=do.name, consumer="reader", subject=f"{do.name}.>", timeout=patient).data
    assert [message["data"] for message in fetched["messages"]] == [{"n": 1}]
    empty = do("js_fetch", stream=do.name, consumer="reader", subject=f"{do.name}.>", timeout=Timeout(read=0.2))
    assert empty.data == {"messages": [], "count": 0}
    lost = do("js_publish", subject="no.stream.listens", data=1)
    assert lost.error is not None and lost.error.kind == "not_found"


@pytest.mark.parametrize(
    ("input", "kind"),
    [
        ({"action": "explode"}, "schema"),
        ({"action": "publish"}, "schema"),
        ({"action": "kv_get", "bucket": "no-such", "key": "x"}, "not_found"),
        ({"action": "kv_get", "key": "x"}, "schema"),
        ({"action": "object_get", "bucket": "no-such", "name": "x"}, "not_found"),
        ({"action": "object_put", "bucket": "b", "name": "x"}, "schema"),
        ({"action": "publish", "subject": "a", "headers": 5}, "schema"),
    ],
)
def test_bad_input_is_a_clear_error(nats_server: str, input: dict[str, Any], kind: str) -> None:
    outcome = run_tool("nats", {"auth": nats_server, **input})
    assert outcome.error is not None and outcome.error.kind == kind, outcome.error


def test_without_a_server_it_is_a_connection_error() -> None:
    outcome = run_tool(
        "nats", {"auth": f"nats://127.0.0.1:{services.free_port()}", "action": "publish", "subject": "a"}
    )
    assert outcome.error is not None and (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    nowhere = run_tool("nats", {"action": "publish", "subject": "a"})
    assert nowhere.error is not None and nowhere.error.kind == "schema"


def test_a_wrong_token_is_an_auth_error_and_fields_have_prefixes(tmp_path: Path) -> None:
    with services.Nats(tmp_path / "nats", token="sesame") as server:
        url = f"nats://127.0.0.1:{server.port}"
        host = ToolHost(
            credentials={"good": {"nats_url": url, "nats_token": "sesame"}, "bad": {"url": url, "token": "no"}}
        )
        good = run_tool("nats", {"auth": "good", "action": "publish", "subject": "a"}, host=host)
        bad = run_tool("nats", {"auth": "bad", "action": "publish", "subject": "a"}, host=host)
    assert good.status == "ok"
    assert bad.error is not None and bad.error.kind == "auth"


def test_an_auth_error_is_reported_when_the_server_closes_the_connection() -> None:
    class Curt(socketserver.StreamRequestHandler):
        """Closes the connection of a client that does not wait for its greeting."""

        def handle(self) -> None:
            self.wfile.write(b'INFO {"auth_required":true}\r\n')
            if b'"verbose":true' in self.rfile.readline().replace(b" ", b""):
                self.wfile.write(b"-ERR 'Authorization Violation'\r\n")
            else:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Curt) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"nats://someone:wrong@127.0.0.1:{server.server_address[1]}"
        refused = run_tool("nats", {"auth": url, "action": "publish", "subject": "a"})
        server.shutdown()
    assert refused.error is not None and refused.error.kind == "auth", refused.error


def test_a_server_that_dies_in_the_middle_is_an_error_and_its_return_is_noticed(tmp_path: Path) -> None:
    with services.Nats(tmp_path / "nats") as server:

        async def crash() -> list[Outcome]:
            run = load("nats")
            call = {"auth": server.url, "action": "kv_put", "bucket": "b", "key": "k", "value": 1}
            outcomes = [await run(tool_call("nats", call))]
            await asyncio.to_thread(server.kill)
            outcomes.append(await run(tool_call("nats", call, timeout=3)))
            await asyncio.to_thread(server.start)
            outcomes.append(await run(tool_call("nats", call, timeout=10)))
            await close_loop_resources()
            return outcomes

        before, during, after = asyncio.run(crash())
    assert before.status == "ok"
    assert during.error is not None and during.error.kind in ("connection", "timeout") and during.error.retryable
    assert after.status == "ok", after.error


def test_missing_keys_are_named_and_bytes_are_preserved(do: Any, tmp_path: Path) -> None:
    assert do("kv_put", key="a", data=1).error is None
    missing = do("kv_get", key="nope").error
    assert missing.kind == "not_found" and "key nope" in missing.message and "bucket " in missing.message
    assert "`revision` must be an integer" in do("kv_put", key="a", data=1, revision="x").error.message
    assert do("object_put", name="b", data="AAH/", format="bytes").data["bytes"] == 3
    assert do("object_get", name="b", format="bytes").data == "AAH/"
    absent = do("object_put", name="c", file=str(tmp_path / "nope")).error
    assert absent.kind == "not_found" and "nope" in absent.message
