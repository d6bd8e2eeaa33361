"""Class "connections": clients that send slowly, too much or nothing do not keep others from the server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from noetl.server.http.access import Tokens
from noetl.server.http.guarded_protocol import GuardedProtocol
from tests.server.http.serving import SERVE, Cluster

pytestmark = pytest.mark.integration

LIMIT = 40
CODE = (
    "import noetl.server.http.guarded_protocol as guard; guard.HEAD_SECONDS = 1.0; guard.BODY_SECONDS = 1.0; "
    f"guard.DRAIN_SECONDS = 0.5; guard.SWEEP_SECONDS = 0.1; guard.connection_limit = lambda: {LIMIT}; " + SERVE
)
HEAD = b"POST /api/validate HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("home")))
    try:
        cluster.start_server(CODE)
        yield cluster
    finally:
        cluster.stop()


def connect(cluster: Cluster, stack: ExitStack, data: bytes = b"") -> socket.socket:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", cluster.port), timeout=10))
    client.sendall(data)
    return client


def answer(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


def authorized(cluster: Cluster) -> bytes:
    return HEAD + f"Authorization: Bearer {cluster.token}\r\nContent-Type: application/json\r\n".encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX", HEAD, HEAD + b"Content-Length: 100\r\n"],
)
def test_an_incomplete_head_has_a_deadline(cluster, data):
    with ExitStack() as stack:
        client = connect(cluster, stack, data)
        began = time.monotonic()
        assert b"200" not in answer(client)
        assert 0.5 < time.monotonic() - began < 8


def test_a_head_that_arrives_byte_by_byte_has_a_deadline(cluster):
    with ExitStack() as stack:
        client = connect(cluster, stack, HEAD)
        client.settimeout(0.1)
        began = time.monotonic()
        is_closed = False
        while not is_closed and time.monotonic() - began < 10:
            try:
                client.sendall(b"X: y\r\n")
                is_closed = client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                is_closed = True
        assert is_closed


@pytest.mark.parametrize("framing", [b"Content-Length: 100000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc"])
def test_a_body_has_a_deadline(cluster, framing):
    with ExitStack() as stack:
        client = connect(cluster, stack, authorized(cluster) + framing)
        assert b"200 OK" not in answer(client)


def test_a_body_after_its_response_has_a_deadline(cluster):
    with ExitStack() as stack:
        client = connect(cluster, stack, HEAD + b"Content-Length: 1000000\r\n\r\n")  # no token: refused at once
        assert b"401" in answer(client)


def test_a_head_is_limited_in_size_and_fields(cluster):
    with ExitStack() as stack:
        large = connect(cluster, stack, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 300_000)
        assert b"431" in answer(large)
    with ExitStack() as stack:
        many = b"".join(b"X%d: y\r\n" % number for number in range(500))
        fields = connect(cluster, stack, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + many + b"\r\n")
        assert b"431" in answer(fields)
    with ExitStack() as stack:
        long = connect(cluster, stack, b"GET /" + b"y" * 300_000)
        assert b"431" in answer(long)


@pytest.mark.parametrize("sent", [b"GET /" + b"y" * 300_000, b"no HTTP\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_requests_that_are_no_valid_http_get_problem_documents(cluster, sent):
    with ExitStack() as stack:
        head, _, body = answer(connect(cluster, stack, sent)).partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["status"] in (400, 431)


def test_idle_connections_are_closed_for_new_ones(cluster):
    """Three times as many connections as the server accepts, and it still answers."""
    with ExitStack() as stack:
        for _ in range(LIMIT * 3):
            connect(cluster, stack)
        assert cluster.ask("GET", "/healthz", token="")[0] == 200
        for _ in range(LIMIT):
            connect(cluster, stack, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert cluster.ask("GET", "/healthz", token="")[0] == 200


def test_ordinary_requests_and_slow_readers_are_served(cluster):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=10)
    try:
        for pause in (0.0, 0.0, 1.5):  # idle between requests: that is no deadline of a head
            time.sleep(pause)
            connection.request("GET", "/healthz", headers={"Host": "127.0.0.1"})
            assert connection.getresponse().read()
    finally:
        connection.close()
    content = "# " + "x" * 1_000_000
    assert cluster.ask("POST", "/api/validate", {"content": content})[0] == 200


NOT_HTTP = [
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n",
    b"FOO / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    HEAD + b"Content-Length: -5\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
    b"GET /nope HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /ui/../x HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET /hooks/nope HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://127.0.0.1@evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://evil.example?/127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    HEAD + b"Connection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Connection: close\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Connection: close\r\nContent-Encoding: br, identity\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Connection: close\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"a" * 1_000_000,
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]


@pytest.mark.parametrize("data", NOT_HTTP)
def test_every_error_is_neither_stored_nor_guessed(cluster, data):
    with ExitStack() as stack:
        received = answer(connect(cluster, stack, data)).lower()
    assert received.startswith(b"http/1.1 4"), received[:100]
    head = received.partition(b"\r\n\r\n")[0]
    assert b"x-content-type-options: nosniff" in head and b"cache-control: no-store" in head, head


def chunked(cluster: Cluster, body: bytes) -> bytes:
    with ExitStack() as stack:
        data = authorized(cluster) + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body
        return answer(connect(cluster, stack, data))


@pytest.mark.parametrize(
    "trailer",
    [b"Host: evil.example", b"Authorization: Bearer x", b"Origin: https://evil.example", b"Cookie: noetl_token=x"],
)
def test_trailers_are_no_headers(cluster, trailer):
    assert b" 200 OK" in chunked(cluster, b'f\r\n{"content":"a"}\r\n0\r\n' + trailer + b"\r\n\r\n")


def test_what_chunks_have_besides_their_content_is_limited(cluster):
    assert b" 200 OK" in chunked(cluster, b'f;name="value"\r\n{"content":"a"}\r\n0\r\n\r\n')
    many = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"content":"' + b"a" * 50_000 + b'"}')
    assert b" 200 OK" in chunked(cluster, many + b"0\r\n\r\n")
    for flood in (b"f;" + b"a" * 2_000_000, b"1;a\r\na\r\n" + b"1;" + b"a=b;" * 500_000):
        assert chunked(cluster, flood).startswith(b"HTTP/1.1 413"), flood[:10]
    late = b'f\r\n{"content":"a"}\r\n0\r\n' + b"X-A: b\r\n" * 300_000
    assert not chunked(cluster, late).startswith(b"HTTP/1.1 5")


def test_the_response_to_an_invalid_request_is_short(cluster):
    status, answered = cluster.ask("POST", "/api/validate", {f"k{number}": 1 for number in range(10_000)})
    assert status == 422 and len(answered["errors"]) == 20
    assert answered["detail"].endswith("; and 9,981 more")


WAITING = (
    "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: w, path: w}\n"
    "workflow:\n  - {step: s, tool: {kind: wait, signal: go}}\n"
)
STREAMS = ("events/stream", "events/stream?after=1", "outline/stream", "logs/stream")


def stream(cluster: Cluster, stack: ExitStack, token: str, path: str) -> socket.socket:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    return connect(cluster, stack, head.encode())


def started(cluster: Cluster) -> str:
    status, found = cluster.ask("POST", "/api/execute", {"content": WAITING})
    assert status == 202
    return f"/api/executions/{found['execution_id']}"


def test_one_token_does_not_use_all_connections(cluster):
    tokens = Tokens(cluster.home)
    greedy, other = tokens.add("greedy", "viewer"), tokens.add("other", "viewer")
    path = started(cluster)
    with ExitStack() as stack:
        clients = [stream(cluster, stack, greedy, f"{path}/events/stream") for _ in range(LIMIT)]
        statuses = [client.recv(12) for client in clients]
        assert statuses.count(b"HTTP/1.1 200") == LIMIT // 2
        assert statuses.count(b"HTTP/1.1 429") == LIMIT - LIMIT // 2
        assert cluster.ask("GET", path, token=other)[0] == 200
    deadline = time.monotonic() + 10
    while cluster.ask("GET", path, token=greedy)[0] != 200:  # its streams are closed
        assert time.monotonic() < deadline


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_ends_when_its_token_is_revoked(cluster, name):
    tokens = Tokens(cluster.home)
    token = tokens.add("leaver", "viewer")
    path = started(cluster)
    with ExitStack() as stack:
        client = stream(cluster, stack, token, f"{path}/{name}")
        assert client.recv(12) == b"HTTP/1.1 200"
        tokens.remove("leaver")
        assert cluster.ask("POST", f"{path}/cancel", {"reason": "after the revocation"})[0] == 202
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        received = answer(client)
    assert b"after the revocation" not in received and b"execution.cancelled" not in received
    assert b"event: end" not in received and b'"status"' in received  # the stream, then the next response


def test_new_connections_do_not_look_at_all_others_each_time():
    """Many idle connections, and still more new ones."""
    looked = 0

    class Idle(GuardedProtocol):
        def __init__(self, connections: set) -> None:
            self.connections, self.cycle, self._since = connections, None, float(len(connections))
            self._in_head, self._waits = True, True
            self.transport = SimpleNamespace(is_closing=self._is_closing, abort=lambda: None)
            connections.add(self)

        def _is_closing(self) -> bool:
            nonlocal looked
            looked += 1
            return False

    connections: set = set()
    oldest = [Idle(connections) for _ in range(2000)][:10]
    for _ in range(500):
        new = Idle(connections)
        if len(connections) > 2000:
            assert new._close_idle()
    assert not connections & set(oldest) and len(connections) > 1900
    assert looked < 50 * 2000
