"""`POST /api/execute`: which requests are accepted, and how the others are rejected."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.server.http.serving import Cluster

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: one, path: one}
workflow:
  - step: start
    tool: {kind: noop}
"""
CONTENT = json.dumps({"content": PLAYBOOK}).encode()
JSON = "application/json"


def post(cluster: Cluster, body: bytes, content_type: str | None = JSON, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and document of the response to these bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=30)
    sent = {"Authorization": f"Bearer {cluster.token}", **({"Content-Type": content_type} if content_type else {})}
    try:
        connection.request("POST", "/api/execute", body, sent | headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8", "Application/vnd.example+json"])
def test_every_json_content_type_is_accepted(cluster: Cluster, content_type: str):
    assert post(cluster, CONTENT, content_type)[0] == 202


def test_a_byte_order_mark_is_skipped(cluster: Cluster):
    assert post(cluster, b"\xef\xbb\xbf" + CONTENT)[0] == 202


@pytest.mark.parametrize("content_type", [None, "text/plain", "multipart/form-data; boundary=x"])
def test_another_content_type_is_rejected(cluster: Cluster, content_type: str | None):
    status, document = post(cluster, CONTENT, content_type)
    assert (status, document["detail"]) == (422, "body: the Content-Type must be application/json")


@pytest.mark.parametrize(
    ("body", "location"),
    [
        (b"", "body"),
        (b"{nope", "body"),
        (b"[]", "body"),
        (b'{"path": "a", "bogus": 1}', "body"),
        (b'{"path": 1}', "body.path"),
        (b'{"path": "%b"}' % (b"x" * 1001), "body.path"),
        (b'{"path": "a", "payload": null}', "body.payload"),
        (b'{"path": "a", "strict": "yes"}', "body.strict"),
        (b'{"path": "a", "version": 3.5}', "body.version"),
        (b'{"path": "a", "version": 1%b}' % (b"0" * 30), "body.version"),
        (b'{"path": "a", "payload": {"x": NaN}}', "body"),
        (b'{"path": "a", "payload": {"x": "\\ud800"}}', "body"),
        (b'{"path": "\xff"}', "body"),
        (b'{"path": "a", "payload": {"x": %b}}' % (b"[" * 100_000 + b"]" * 100_000), "body"),
    ],
)
def test_an_invalid_body_is_rejected_with_the_field_that_is_wrong(cluster: Cluster, body: bytes, location: str):
    status, document = post(cluster, body)
    assert (status, document["title"]) == (422, "Invalid request"), document
    assert [each["in"] for each in document["errors"]] == [location]
    assert document["detail"].startswith(f"{location}: ")


def test_a_whole_number_with_a_decimal_point_is_an_integer(cluster: Cluster):
    status, document = post(cluster, b'{"path": "absent", "version": 3.0}')
    assert status == 404 and "version 3 " in document["detail"]


def test_integers_of_any_size_are_accepted(cluster: Cluster):
    body = json.dumps({"content": PLAYBOOK, "payload": {"n": 10**30}}).encode()
    status, document = post(cluster, body)
    assert status == 202
    assert cluster.finished(document["execution_id"])["status"] == "success"


@pytest.mark.parametrize("body", [b"{}", b'{"path": "a", "content": "b"}'])
def test_exactly_one_of_path_and_content_is_required(cluster: Cluster, body: bytes):
    status, document = post(cluster, body)
    assert status == 400 and "`path`" in document["detail"]


def test_an_idempotency_key_starts_one_execution(cluster: Cluster):
    first = post(cluster, CONTENT, **{"Idempotency-Key": "same"})
    assert first[0] == 202
    assert post(cluster, CONTENT, **{"Idempotency-Key": "same"}) == first
    status, document = post(cluster, CONTENT, **{"Idempotency-Key": "x" * 201})
    assert (status, document["errors"][0]["in"]) == (422, "header.Idempotency-Key")


def test_the_role_operator_is_required(cluster: Cluster):
    from noetl.server.http.access import Tokens

    viewer = Tokens(cluster.home).add("viewer", "viewer")
    assert post(cluster, CONTENT, Authorization=f"Bearer {viewer}")[0] == 403


def test_the_route_is_in_the_api_document(cluster: Cluster):
    _, document = cluster.ask("GET", "/openapi.json")
    operation = document["paths"]["/api/execute"]["post"]
    assert operation["x-role"] == "operator"
    assert operation["requestBody"]["content"][JSON]["schema"] == {"$ref": "#/components/schemas/ExecuteBody"}
    schema = document["components"]["schemas"]["ExecuteBody"]
    assert {"path", "content", "version", "payload"} <= schema["properties"].keys() and schema["oneOf"]
