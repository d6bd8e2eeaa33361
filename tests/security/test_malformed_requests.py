"""Class "malformed requests": every route answers with 4xx and without a traceback, on both databases."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pytest

from devcluster import services
from noetl.core.model.events import instant
from tests.server.http.serving import Cluster

pytestmark = pytest.mark.integration

BODIES: dict[str, tuple[bytes, str]] = {
    "form": (b"a=1&path=x", "application/x-www-form-urlencoded"),
    "text": (b'{"path": "x"}', "text/plain"),
    "no type": (b'{"path": "x"}', ""),
    "xml": (b"<a/>", "application/xml"),
    "multipart": (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
    "not UTF-8": (b'{"path": "\xff\xfe"}', "application/json"),
    "UTF-16": ('{"path": "x"}'.encode("utf-16"), "application/json"),
    "cut": (b'{"path": "x', "application/json"),
    "deep list": (b"[" * 20_000 + b"]" * 20_000, "application/json"),
    "deep object": (b'{"payload":' * 20_000 + b"1" + b"}" * 20_000, "application/json"),
    "deep field": (b'{"payload": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "application/json"),
    "null byte": (b"\x00", "application/json"),
    "surrogate": (b'{"path": "\\ud800"}', "application/json"),
    "long number": (b'{"version": ' + b"9" * 10_000 + b"}", "application/json"),
    "nan": (b'{"payload": {"a": NaN}}', "application/json"),
    "null": (b"null", "application/json"),
    "list": (b"[]", "application/json"),
    "empty": (b"", "application/json"),
    "charset": (b'{"path": "x"}', "application/json; charset=utf-7"),
    "wrong length": (b"{}", "application/json, text/plain"),
}
TEXTS = ["\x00", "a\x00b", "\ud800", "\u202e", "../..", "%00", "\x1b]0;x\x07", "a" * 5_000, "'\"; DROP TABLE x; --"]


# Attempts of each case for the page of the suite: on two databases, and (at least) once for each of sixty routes.
ATTEMPTS = {"test_bodies": 2 * 60 * len(BODIES), "test_texts_in_paths_and_queries": 2 * 60 * len(TEXTS)}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def served(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, IO[bytes]]]:
    with ExitStack() as stack:
        settings = {}
        if request.param == "postgres":
            settings["NOETL_STORE"] = stack.enter_context(services.fresh_database(request.getfixturevalue("postgres")))
        cluster = Cluster(Path(tmp_path_factory.mktemp("home")), **settings)
        log = stack.enter_context(tempfile.TemporaryFile())
        stack.callback(cluster.stop)
        cluster.start_server(log=log)
        yield cluster, log


@pytest.fixture
def sender(served) -> Iterator[Sender]:
    sender = Sender(served[0])
    yield sender
    sender.connection.close()
    assert sender.wrong == []
    served[1].seek(0)
    text = served[1].read().decode(errors="replace")
    assert "Traceback" not in text, text[-3000:]


def operations(cluster: Cluster) -> list[tuple[str, str, dict[str, Any]]]:
    document = cluster.ask("GET", "/openapi.json")[1]
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "delete", "patch")
    ]


class Sender:
    """Sends raw requests over one connection and records unexpected responses."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._token = cluster.token
        self.connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=30)
        self.wrong: list[str] = []
        self.sent = 0

    def send(self, what: str, method: str, path: str, body: bytes | None = None, type: str = "application/json") -> int:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Length": str(len(body or b""))}
        if body is not None and type:
            headers["Content-Type"] = type
        self.sent += 1
        try:
            self.connection.request(method, path, body=body, headers=headers)
            answer = self.connection.getresponse()
            text = answer.read(100_000)
        except (http.client.HTTPException, OSError) as problem:
            self.connection.close()
            self.wrong.append(f"{what}: {method} {path[:200]}: {problem!r}")
            return 0
        if answer.status >= 500 or b"Traceback" in text:
            self.wrong.append(f"{what}: {method} {path[:200]}: {answer.status} {text[:300]!r}")
        return answer.status


def test_bodies(served, sender):
    cluster = served[0]
    for method, path, operation in operations(cluster):
        if "requestBody" not in operation or path.endswith(("/stop", "/drain")):
            continue
        path = path.replace("{", "").replace("}", "")
        for name, (body, type) in BODIES.items():
            status = sender.send(name, method, path, body, type)
            if name in ("not UTF-8", "UTF-16", "cut", "deep list", "null byte") and 200 <= status < 300:
                sender.wrong.append(f"{name}: {method} {path}: {status}")


def test_texts_in_paths_and_queries(served, sender):
    cluster = served[0]
    for method, path, operation in operations(cluster):
        if "stream" in path or path.startswith("/api/work/"):
            continue
        parameters = [each for each in operation.get("parameters", ()) if each["in"] in ("path", "query")]
        for text in TEXTS:
            encoded = quote(text.encode("utf-8", "surrogatepass"), safe="")
            filled = path
            for each in parameters:
                if each["in"] == "path":
                    filled = filled.replace("{" + each["name"] + "}", encoded)
            filled = filled.replace("{path:path}", encoded)
            if filled != path:
                sender.send("path", method, filled, b"{}" if "requestBody" in operation else None)
            for each in parameters:
                if each["in"] == "query" and method == "GET":
                    name = each["name"]
                    plain = path.replace("{", "").replace("}", "")
                    sender.send("query", method, f"{plain}?{name}={encoded}")


def test_texts_in_fields(served, sender):
    """Null characters and control characters in every text field of every body."""
    cluster = served[0]
    document = cluster.ask("GET", "/openapi.json")[1]
    schemas = document["components"]["schemas"]
    for method, path, operation in operations(cluster):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None or path.startswith("/api/work/"):
            continue
        schema = content["schema"]
        schema = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
        names = list(schema.get("properties", {})) or ["path", "name"]
        path = path.replace("{", "").replace("}", "")
        for text in ("\x00", "a\x00b", "\x1b[2J", "\u202e"):
            sender.send("all fields", method, path, json.dumps(dict.fromkeys(names, text)).encode())
            for name in names:
                for value in (text, {text: text}, [text]):
                    required = dict.fromkeys(schema.get("required", ()), "x")
                    sender.send(f"field {name}", method, path, json.dumps({**required, name: value}).encode())


def test_null_characters_in_data_are_kept_or_refused(served, sender):
    cluster = served[0]
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: nulls}\nworkload: {a: 1}\nworkflow: [{step: s, next: {arcs: []}}]\n"
    assert cluster.ask("POST", "/api/catalog/register", {"content": text})[0] in (200, 201)
    for payload in ({"a": "x\x00y"}, {"x\x00y": 1}, {"a": {"b": ["\x00"]}}):
        status, document = cluster.ask("POST", "/api/execute", {"path": "nulls", "payload": payload})
        assert status == 202 or 400 <= status < 500
        if status == 202:
            assert cluster.finished(document["execution_id"])["status"] == "success"
    for method, path, body in (
        ("PUT", "/api/credentials/nulls", {"type": "generic", "data": {"a": "x\x00y"}}),
        ("POST", "/api/catalog/register", {"content": text + "# \x00"}),
        ("POST", "/api/execute", {"path": "nu\x00lls"}),
        ("POST", "/api/execute", {"content": text + "\x00"}),
        ("POST", "/api/session", {"token": "\x00"}),
    ):
        assert cluster.ask(method, path, body)[0] < 500, (method, path)
    assert cluster.ask("POST", "/api/execute", {"path": "nulls"}, headers={"Idempotency-Key": "a b"})[0] < 500


@pytest.mark.parametrize("at", [1e308, -1e308, float("inf"), float("-inf"), float("nan"), 2.0**63, -30_610_224_001.0])
def test_an_instant_far_away_has_a_text(at):
    """One wait until such an instant must not break the list of all waits."""
    assert instant(at)[:4] in ("9999", "1000")
