"""The fast path for small HTTP requests: the same bytes on the wire and the same failures as with the session."""

from __future__ import annotations

import asyncio
import re
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from noetl.connections.http import raw_requests
from noetl.connections.http.client import HttpFailure, Request, client, exchange
from noetl.core.model.tool import Timeout
from noetl.runtime.resources import close_loop_resources

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server that sends the given answers and records the requests."""

    def __init__(self, *answers: bytes | None):
        self.answers = list(answers)  # None: close the connection instead
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def talk(self, reader, writer):
        self.connections += 1
        try:
            while line := await reader.readline():
                head = {"": line.decode().strip()}
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(": ")
                    assert name.lower() not in head, f"{name} was sent twice"
                    head[name.lower()] = value
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(int(head.get("content-length", 0))))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    return
                writer.write(answer)
        finally:
            writer.close()


@asynccontextmanager
async def listening(*answers):
    peer = Peer(*answers)
    server = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer
    finally:
        await close_loop_resources()
        server.close()


async def sent(request, allows=None):
    async with exchange(request, allows) as answer:
        return answer.status, await answer.read()


def by_session(monkeypatch):
    monkeypatch.setattr(raw_requests, "is_supported", lambda version: False)


def test_pyproject_requires_the_supported_versions_of_aiohttp():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    required = next(entry for entry in tomllib.loads(text)["project"]["dependencies"] if entry.startswith("aiohttp"))
    lowest, cap = re.fullmatch(r"aiohttp>=([\d.]+),<([\d.]+)", required).groups()
    first, end = raw_requests.SUPPORTED_AIOHTTP
    assert tuple(map(int, lowest.split(".")))[:2] == first
    assert tuple(map(int, cap.split("."))) == end


def test_the_installed_aiohttp_is_supported_and_the_fast_path_is_used(monkeypatch):
    async def call():
        async with listening(OK) as peer:
            http = client()
            monkeypatch.setattr(http.session, "request", None)
            assert await sent(Request("GET", peer.url)) == (200, b"ok")

    assert raw_requests.is_supported(aiohttp.__version__)
    asyncio.run(call())


def test_an_unsupported_version_is_logged_once(caplog):
    with caplog.at_level("INFO"):
        assert not any(raw_requests.is_supported("99.0.1") for _ in range(3))
        assert not raw_requests.is_supported("3.12.15")
    assert [record.getMessage().partition(", it is")[0] for record in caplog.records] == [
        "HTTP fast path is off: aiohttp 99.0.1 is installed",
        "HTTP fast path is off: aiohttp 3.12.15 is installed",
    ]


REQUESTS = {
    "get": Request("GET", "/a%20b?x=1&y=%C3%A4", headers={"X-One": "1", "accept": "text/plain"}),
    "bare": Request("GET", "/"),
    "params": Request("GET", "/p?a=1", params=(("b", "ü &"), ("b", "2"))),
    "json": Request("POST", "/", headers={"Content-Type": "application/json", "Idempotency-Key": "k"}, body=lambda: b"{}"),
    "agent": Request("PUT", "/", headers={"User-Agent": "me", "Content-Type": "a/b"}, body=lambda: b"\x00" * 70),
    "empty": Request("POST", "/", headers={"Content-Type": "a/b"}),
    "user": Request("GET", "http://me:pass@{place}/"),
    "host": Request("GET", "/", headers={"Host": "example.test"}),
    "large": Request("POST", "/", headers={"Content-Type": "a/b"}, body=lambda: bytes(raw_requests.MAX_BODY + 1)),
    "options": Request("OPTIONS", "/"),
    "odd": Request("PURGE", "/"),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_small_request_has_the_same_bytes_as_with_the_session(name, monkeypatch):
    async def both():
        async with listening(OK) as peer:
            request = REQUESTS[name]
            place = peer.url.removeprefix("http://")
            url = request.url.replace("{place}", place) if "{place}" in request.url else peer.url + request.url
            request = Request(
                request.method, url, headers=request.headers, params=request.params, body=request.body
            )  # fmt: skip
            assert await sent(request) == (200, b"ok")
            await close_loop_resources()
            by_session(monkeypatch)
            assert await sent(request) == (200, b"ok")
        assert peer.heads[0] == peer.heads[1]
        assert peer.bodies[0] == peer.bodies[1]

    asyncio.run(both())


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_a_header_cannot_smuggle_another(value):
    async def attempt():
        async with listening(OK) as peer:
            with pytest.raises(HttpFailure) as failure:
                await sent(Request("GET", peer.url, headers={"X-One": value}))
            assert failure.value.kind == "client_error"
        assert peer.heads == []

    asyncio.run(attempt())


def test_connections_are_reused_and_their_address_is_checked_each_time():
    async def calls():
        async with listening(OK) as peer:
            for _ in range(5):
                assert await sent(Request("GET", peer.url)) == (200, b"ok")
            assert peer.connections == 1
            with pytest.raises(HttpFailure) as failure:
                await sent(Request("GET", peer.url), lambda address: False)
            assert failure.value.details["denied"] == ["127.0.0.1"]
            assert len(peer.heads) == 5

    asyncio.run(calls())


def test_an_idempotent_request_is_repeated_once_if_its_idle_connection_was_closed():
    async def calls():
        async with listening(OK, None, OK) as peer:
            await sent(Request("GET", peer.url))
            assert await sent(Request("GET", peer.url)) == (200, b"ok")
            assert (len(peer.heads), peer.connections) == (3, 2)
        async with listening(OK, None) as peer:
            await sent(Request("GET", peer.url))
            with pytest.raises(HttpFailure, match="closed the connection without a response"):
                await sent(Request("GET", peer.url))
            assert len(peer.heads) == 3
        async with listening(OK, None, OK) as peer:
            await sent(Request("GET", peer.url))
            with pytest.raises(HttpFailure, match="closed the connection without a response"):
                await sent(Request("POST", peer.url, body=lambda: b"{}"))
            assert len(peer.heads) == 2, "the first one may have been processed"

    asyncio.run(calls())


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("GET", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK, (200, b"ok")),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", (200, b"")),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", (200, b"ok")),
        ("GET", b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", (404, b"no")),
    ],
)
def test_a_complete_response_leaves_the_connection_open(method, answer, expected):
    async def calls():
        async with listening(answer, OK) as peer:
            assert await sent(Request(method, peer.url)) == expected
            assert await sent(Request("GET", peer.url)) == (200, b"ok")
            assert peer.connections == 1

    asyncio.run(calls())


def test_a_response_with_connection_close_does_not():
    async def calls():
        async with listening(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok") as peer:
            for _ in range(2):
                assert await sent(Request("GET", peer.url)) == (200, b"ok")
            assert peer.connections == 2

    asyncio.run(calls())


def test_an_unread_body_and_a_cancelled_call_close_their_connections():
    async def calls():
        half = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"
        async with listening(half) as peer:
            async with exchange(Request("GET", peer.url)) as answer:
                assert answer.status == 200
            with pytest.raises(HttpFailure) as failure:
                await sent(Request("GET", peer.url, timeout=Timeout(total=0.05)))
            assert failure.value.kind == "timeout"
            with pytest.raises(HttpFailure, match="without data"):
                await sent(Request("GET", peer.url, timeout=Timeout(read=0.05)))
            assert peer.connections == 3
            connector = client().session.connector
            assert not connector._acquired and not connector._conns

    asyncio.run(calls())


def test_a_refused_connection_has_a_plain_message():
    async def call():
        async with listening(OK) as peer:
            url = peer.url
        with pytest.raises(HttpFailure, match=r"cannot connect to http://127\.0\.0\.1:[0-9]+: connection refused"):
            await sent(Request("GET", url))
        await close_loop_resources()

    asyncio.run(call())
