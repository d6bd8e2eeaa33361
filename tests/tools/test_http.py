"""Kind http against a real server: requests, responses, failures, and the network policy."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import subprocess
import sys
import time
from email.utils import formatdate

import pytest
from web import serving

from noetl.connections.http.client import shown_url
from noetl.core.model.tool import Timeout
from noetl.errors import StoreUnavailable
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load
from noetl.worker.host import AddressPolicy
from tests.waiting import until


@pytest.fixture(scope="session")
def shop(loop):
    server = serving()
    shop = loop.run(server.__aenter__())
    yield shop
    loop.run(server.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch):
    """Names other than localhost are not known here, and no external resolver is queried."""
    real = socket.getaddrinfo

    def known(host, *args, **kwargs):
        name = host.decode() if isinstance(host, bytes) else host
        if name is None or name.lower() == "localhost" or re.fullmatch(r"[0-9a-fA-FxX.:%]+", name):
            return real(host, *args, **kwargs)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", known)


@pytest.fixture
def http(tool, shop):
    def run(path="/echo", /, **others):
        options = {
            name: others.pop(name) for name in ("spec", "host", "timeout", "attempt", "scopes") if name in others
        }
        url = shop.base + path if path.startswith("/") else path
        return tool("http", {"url": url, **others}, **options)

    return run


def good(outcome):
    assert outcome.status == "ok", outcome.error
    return outcome.data


# ── requests ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "PROPFIND"])
def test_every_method_is_sent(http, method):
    assert good(http(method=method))["method"] == method.upper()


def test_head_has_no_body_but_headers(http):
    outcome = http(method="HEAD")
    assert outcome.status == "ok" and outcome.data is None
    assert outcome.helpers["http"]["status"] == 200


def test_a_request_with_a_body_is_a_post_by_default(http):
    assert good(http())["method"] == "GET"
    assert good(http(json={"a": 1}))["method"] == "POST"


def test_params_extend_the_query_of_the_url(http):
    params = {"a": [1, 2], "b": None, "c": True, "d": "x y&z", "e": 1.5, "f": "ä"}
    assert good(http("/echo?z=0", params=params))["path"] == "/echo?z=0&a=1&a=2&c=true&d=x+y%26z&e=1.5&f=%C3%A4"
    assert good(http("/echo", params=[["k", 1], ["k", 2]]))["path"] == "/echo?k=1&k=2"
    assert "parameters must be" in http(params=["k"]).error.message


def test_headers_are_sent_and_nulls_omitted(http):
    headers = good(http(headers={"X-A": 1, "X-B": None, "X-C": True}))["headers"]
    assert headers["x-a"] == "1" and "x-b" not in headers and headers["x-c"] == "true"
    assert headers["user-agent"].startswith("noetl/")


@pytest.mark.parametrize(
    ("given", "content_type", "body"),
    [
        ({"json": {"a": [1, None]}}, "application/json", '{"a":[1,null]}'),
        ({"json": "text"}, "application/json", '"text"'),
        ({"form": {"a": 1, "b": ["x", "y z"]}}, "application/x-www-form-urlencoded", "a=1&b=x&b=y+z"),
        ({"body": "raw ä"}, "text/plain; charset=utf-8", "raw ä"),
        ({"body": {"a": 1}}, "application/json", '{"a":1}'),
        ({"body": [1]}, "application/json", "[1]"),
        ({"body": "<x/>", "headers": {"content-type": "application/xml"}}, "application/xml", "<x/>"),
        ({"body": {"a": 1}, "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
         "application/x-www-form-urlencoded", "a=1"),
        ({"data": {"a": 1}}, "application/json", '{"a":1}'),
        ({"data": {"query": {"q": 1}, "body": {"a": 1}}}, "application/json", '{"a":1}'),
        ({"data": "plain"}, "text/plain; charset=utf-8", "plain"),
        ({"payload": {"a": 1}}, "application/json", '{"a":1}'),
        ({"body_base64": base64.b64encode(b"\x00\xff").decode()}, "application/octet-stream", "\x00\\xff"),
        ({"json": False}, "application/json", "false"),
    ],
)  # fmt: skip
def test_bodies_in_every_spelling(http, given, content_type, body):
    seen = good(http(method="POST", **given))
    assert seen["headers"]["content-type"] == content_type
    assert seen["body"] == body
    assert seen["path"] == ("/echo?q=1" if "query" in str(given) else "/echo")


def test_endpoint_is_url(tool, shop):
    assert good(tool("http", {"endpoint": shop.base + "/echo"}))["path"] == "/echo"


def test_multipart_has_fields_and_files(http, tmp_path):
    (tmp_path / "local.bin").write_bytes(b"from disk")
    parts = good(
        http(
            multipart={
                "title": "a title",
                "tags": ["x", "y"],
                "note": {"filename": "n.txt", "content": "hello", "content_type": "text/plain"},
                "meta": {"content": {"k": 1}},
                "bin": {"base64": base64.b64encode(b"abc").decode(), "filename": "b.bin"},
                "local": {"path": "local.bin"},
            },
            host=ToolHost(folder=tmp_path),
        )
    )["parts"]
    assert [(part["name"], part["filename"], part["content"]) for part in parts] == [
        ("title", None, "a title"),
        ("tags", None, "x"),
        ("tags", None, "y"),
        ("note", "n.txt", "hello"),
        ("meta", "meta", '{"k":1}'),
        ("bin", "b.bin", "abc"),
        ("local", "local.bin", "from disk"),
    ]
    assert "without content" in http(multipart={"f": {"filename": "x"}}).error.message
    parts = good(http(files={"doc": {"content": "hello"}}, form={"k": "v"}))["parts"]
    assert [(part["name"], part["content"]) for part in parts] == [("k", "v"), ("doc", "hello")]


def test_a_file_and_a_stored_payload_are_streamed_as_bodies(http, loop, tmp_path):
    (tmp_path / "up.csv").write_text("a,b\n" * 50_000)
    host = ToolHost(folder=tmp_path)
    assert len(good(http(method="PUT", body_file="up.csv", host=host))["body"]) == 200_000

    async def chunks():
        yield b'{"n":'
        yield b"1}"

    reference = loop.run(host.put_result(chunks(), content_type="application/json"))
    seen = good(http(body_ref=reference, host=host))
    assert seen["body"] == '{"n":1}' and seen["headers"]["content-type"] == "application/json"
    assert "cannot read file" in http(body_file="no.csv", host=host).error.message


def test_two_bodies_are_rejected(http):
    outcome = http(json={}, form={"a": 1})
    assert outcome.error.kind == "schema"
    assert "`json` and `form`" in outcome.error.message


def test_the_idempotency_key_is_stable_over_attempts_and_can_be_replaced(http):
    first = good(http(method="POST", attempt=1))["headers"]["idempotency-key"]
    assert good(http(method="POST", attempt=2))["headers"]["idempotency-key"] == first
    assert good(http(method="DELETE"))["headers"]["idempotency-key"] == first
    assert "idempotency-key" not in good(http(method="GET"))["headers"]
    assert good(http(method="POST", headers={"IDEMPOTENCY-key": "own"}))["headers"]["idempotency-key"] == "own"
    assert "idempotency-key" not in good(http(method="POST", spec={"idempotency_key": False}))["headers"]


# ── authentication ──────────────────────────────────────────────────────────────────────

BASIC = "Basic " + base64.b64encode(b"ada:s3cret").decode()


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("pair", "authorization", BASIC),
        ("token_entry", "authorization", "Bearer tok-1"),
        ("bearer_map", "authorization", "Bearer tok-2"),
        ("key_map", "x-shop-key", "k-3"),
        ({"credential": "pair"}, "authorization", BASIC),
        ({"key": "pair"}, "authorization", BASIC),
        ({"type": "basic", "username": "ada", "password": "s3cret"}, "authorization", BASIC),
        ({"type": "basic", "credential": "pair"}, "authorization", BASIC),
        ({"basic": {"username": "ada", "password": "s3cret"}}, "authorization", BASIC),
        ({"type": "bearer", "token": "t"}, "authorization", "Bearer t"),
        ({"bearer": "t"}, "authorization", "Bearer t"),
        ({"openai": {"type": "bearer", "token": "t"}}, "authorization", "Bearer t"),
        ({"shop": {"type": "bearer", "key": "token_entry"}}, "authorization", "Bearer tok-1"),
        ({"type": "bearer", "credential": "token_entry"}, "authorization", "Bearer tok-1"),
        ({"type": "api_key", "header": "X-Key", "value": "v"}, "x-key", "v"),
        ({"type": "api_key", "key": "v"}, "x-api-key", "v"),
        ({"type": "api_key", "credential": "token_entry", "header": "X-T"}, "x-t", "tok-1"),
        ({"api_key": "v"}, "x-api-key", "v"),
        ({"type": "headers", "headers": {"X-One": "1"}}, "x-one", "1"),
        ("Bearer already-made", "authorization", "Bearer already-made"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P", "authorization", None),
    ],
)
def test_auth_by_name_and_by_mapping(http, auth, header, value):
    host = ToolHost(
        credentials={
            "pair": {"username": "ada", "password": "s3cret"},
            "token_entry": "tok-1",
            "bearer_map": {"type": "bearer", "token": "tok-2"},
            "key_map": {"type": "api_key", "api_key": "k-3", "header": "X-Shop-Key"},
        }
    )
    assert good(http(auth=auth, host=host))["headers"][header] == (value or f"Bearer {auth}")


def test_an_api_key_can_go_into_the_query(http):
    assert good(http(auth={"type": "api_key", "value": "v", "in": "query", "name": "k"}))["path"] == "/echo?k=v"


def test_a_header_of_the_author_wins_over_auth(http):
    headers = good(http(auth={"bearer": "a"}, headers={"authorization": "mine"}))["headers"]
    assert headers["authorization"] == "mine"


def test_an_unknown_or_useless_credential_is_an_auth_error(http):
    outcome = http(auth="nobody")
    assert outcome.error.kind == "auth" and '"nobody"' in outcome.error.message
    outcome = http(auth={"colour": "blue"})
    assert outcome.error.kind == "auth" and "(colour)" in outcome.error.message
    assert outcome.helpers["http"]["status"] is None


def test_oauth2_fetches_one_token_for_many_calls_and_renews_it(http, shop, loop):
    def grant(life):
        return {
            "type": "oauth2",
            "token_url": f"{shop.base}/token?life={life}",
            "client_id": "c",
            "client_secret": "right",
        }

    before = shop.tokens
    tokens = {good(http(auth=grant(3600)))["headers"]["authorization"] for _ in range(3)}
    assert len(tokens) == 1 and shop.tokens == before + 1

    async def many():
        calls = (tool_call("http", {"url": shop.base + "/echo", "auth": grant(1800)}) for _ in range(20))
        return await asyncio.gather(*(load("http")(call) for call in calls))

    assert {outcome.status for outcome in loop.run(many())} == {"ok"}
    assert shop.tokens == before + 2  # twenty calls at once, one request for a token
    short = {good(http(auth=grant(0)))["headers"]["authorization"] for _ in range(2)}
    assert len(short) == 1  # "0" is as good as not said
    life = "0.0000001"  # over before the next call can start
    assert len({good(http(auth=grant(life)))["headers"]["authorization"] for _ in range(2)}) == 2


def test_oauth2_with_a_wrong_secret_reports_the_servers_error(http, shop):
    grant = {"type": "oauth2", "token_url": f"{shop.base}/token", "client_id": "c", "client_secret": "wrong"}
    outcome = http(auth=grant)
    assert outcome.error.kind == "auth" and "who are you" in outcome.error.message
    assert "wrong" not in outcome.error.message


# ── answers ─────────────────────────────────────────────────────────────────────────────


def typed(http, content_type, body, **others):
    encoded = base64.b64encode(body).decode()
    return http("/typed", params={"t": content_type, "b": encoded}, **others)


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/problem+json; charset=utf-8", b'{"a": 1}', {"a": 1}),
        ("application/json", b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ("application/json; charset=utf-16", '{"a": "ä"}'.encode("utf-16"), {"a": "ä"}),
        ("application/json; charset=latin-1", '{"a": "ä"}'.encode("latin-1"), {"a": "ä"}),
        ("application/json", b"", None),
        ("application/json", b" \n", None),
        ("application/x-ndjson", b'{"a": 1}\n\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("text/plain; charset=utf-8", "grüße".encode(), "grüße"),
        ("text/plain; charset=iso-8859-1", "grüße".encode("latin-1"), "grüße"),
        ("text/plain", "grüße".encode("cp1252"), "grüße"),
        ("text/plain; charset=utf-8", "grüße".encode("cp1252"), "grüße"),
        ("text/plain; charset=no-such", b"x", "x"),
        ("text/csv", b"a,b\n", "a,b\n"),
        ("application/xml", b"<a/>", "<a/>"),
        ("image/svg+xml", b"<svg/>", "<svg/>"),
        ("application/x-www-form-urlencoded", b"a=1&b=2&a=3&c=", {"a": ["1", "3"], "b": "2", "c": ""}),
        ("application/octet-stream", b"\x00\x01", "AAE="),
        ("image/png", b"\x89PNG", "iVBORw=="),
    ],
)
def test_bodies_are_read_by_their_content_type(http, content_type, body, expected):
    outcome = typed(http, content_type, body)
    assert good(outcome) == expected
    assert outcome.meta["bytes"] == len(body)
    is_binary = isinstance(expected, str) and body and expected == base64.b64encode(body).decode()
    assert (outcome.meta.get("encoding") == "base64") == is_binary


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"guessed": true}', {"guessed": True}),
        (b"{not json", "{not json"),
        (b"just text", "just text"),
        (b"\xff\xfe\x00", "//4A"),
    ],
)
def test_a_body_of_no_declared_type_is_guessed(http, shop, body, expected):
    assert good(http(f"{shop.raw}/untyped/{body.hex()}")) == expected


def test_json_nested_without_end_is_a_parse_error(http, shop):
    assert http("/deep").error.kind == "parse"


@pytest.mark.parametrize("body", [b'{"a": ', b"<html>", b'{"a": NaN}', b'{"a": "\xff"}'])
def test_invalid_json_is_a_parse_error_with_the_text(http, body):
    outcome = typed(http, "application/json", body)
    assert outcome.error.kind == "parse" and not outcome.error.retryable
    assert outcome.helpers["http"]["status"] == 200
    assert isinstance(outcome.data, str) and outcome.data[:2] == body[:2].decode()


def test_the_parsing_of_the_body_can_be_configured(http):
    assert good(typed(http, "application/json", b"{}", spec={"parse": "text"})) == "{}"
    assert good(typed(http, "text/plain", b'{"a": 1}', spec={"parse": "json"})) == {"a": 1}
    assert good(typed(http, "text/plain", b"abc", spec={"parse": "bytes"})) == "YWJj"
    assert good(typed(http, "text/plain", b"abc", spec={"parse": "none"})) is None


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (400, "client_error", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "client_error", True),
        (409, "client_error", False),
        (422, "client_error", False),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (503, "server_error", True),
        (304, "client_error", False),
    ],
)
def test_statuses_other_than_2xx_are_errors_with_the_body(http, code, kind, retryable):
    outcome = http(f"/status/{code}")
    assert outcome.status == "error"
    assert (outcome.error.kind, outcome.error.retryable) == (kind, retryable)
    assert outcome.data == ({"code": code} if code != 304 else None)
    assert outcome.error.message.startswith(f"HTTP {code} ")
    assert outcome.helpers["http"]["status"] == code


def test_more_statuses_can_count_as_success(http):
    assert http("/status/404", spec={"ok_status": [404, 410]}).data == {"code": 404}
    assert http("/status/404", spec={"ok_status": [404]}).status == "ok"


def test_output_http_has_everything(http, shop):
    about = http("/status/503?after=12").helpers["http"]
    assert about["status"] == 503
    assert about["url"] == f"{shop.base}/status/503?after=12"
    assert about["request_id"] == "r-17"
    assert about["retry_after"] == 12.0
    assert about["headers"]["content-type"].startswith("application/json")
    assert 0 < about["elapsed_ms"] < 10_000
    later = http("/status/429", params={"after": formatdate(time.time() + 100, usegmt=True)}).helpers["http"]
    assert 90 < later["retry_after"] <= 100
    assert http("/status/429", params={"after": "soon"}).helpers["http"]["retry_after"] is None


# ── faults ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("/gone", "connection", "closed the connection"),
        ("/midway", "connection", "incomplete or corrupt"),
        ("/midchunk", "connection", "incomplete or corrupt"),
        ("/badchunk", "parse", "not valid HTTP"),
        ("/garbage", "parse", "not valid HTTP"),
        ("/header", "limit", "too large"),
        ("/headers", "limit", "too large"),
        ("/badgzip", "connection", "incomplete or corrupt"),
    ],
)
def test_a_server_that_misbehaves_is_a_typed_error(http, shop, path, kind, said):
    outcome = http(shop.raw + path)
    assert outcome.error.kind == kind
    assert said in outcome.error.message
    assert len(outcome.error.message) < 500


def test_no_answer_leaves_the_helpers_null(http):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        outcome = http(f"http://127.0.0.1:{free.getsockname()[1]}/")
    assert outcome.error.kind == "connection" and outcome.error.retryable
    about = outcome.helpers["http"]
    assert set(about) == {"status", "headers", "url", "elapsed_ms", "request_id", "retry_after"}
    assert about["status"] is None and about["headers"] is None


def test_an_unknown_host_is_a_connection_error(http):
    outcome = http("http://no-such-host.invalid/")
    assert outcome.error.kind == "connection" and "not known" in outcome.error.message


@pytest.mark.parametrize(
    ("path", "timeout", "said"),
    [
        ("/slow-headers", Timeout(read=0.2), "timeout.read"),
        ("/slow-body", Timeout(read=0.2), "timeout.read"),
        ("/slow-body", Timeout(total=0.3), "0.3 s (timeout.total)"),
        ("/slow-headers", Timeout(total=0.3), "timeout.total"),
    ],
)
def test_timeouts_are_enforced(http, path, timeout, said):
    started = time.monotonic()
    outcome = http(path, timeout=timeout)
    assert time.monotonic() - started < 5
    assert outcome.error.kind == "timeout" and outcome.error.retryable
    assert said in outcome.error.message


def test_a_connect_timeout_is_enforced(http, loop):
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    clients = [socket.socket() for _ in range(4)]  # fill the queue of a server that never accepts
    for one in clients:
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    outcome = http(f"http://127.0.0.1:{full.getsockname()[1]}/", timeout=Timeout(connect=0.3, total=5))
    for one in (*clients, full):
        one.close()
    assert outcome.error.kind == "timeout" and "timeout.connect" in outcome.error.message


def test_cancelling_a_call_closes_its_connection(loop, shop):
    async def cancelled():
        work = asyncio.ensure_future(load("http")(tool_call("http", {"url": shop.base + "/slow-body"})))
        await until(lambda: "slow body begun" in shop.seen)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: "slow body ended" in shop.seen)

    loop.run(cancelled())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", 'unsupported scheme "ftp"'),
        ("file:///etc/passwd", 'unsupported scheme "file"'),
        ("/relative", "it has no scheme"),
        ("http://", "it has no host"),
        ("http://[::1", "is not a URL"),
        ("http://host:99999/", "not a URL"),
        ("", "requires a `url`"),
        (None, "requires a `url`"),
        (7, "requires a `url`"),
    ],
)
def test_bad_urls_are_clear_errors(tool, url, said):
    outcome = tool("http", {"url": url})
    assert outcome.status == "error" and not outcome.error.retryable
    assert said in outcome.error.message


@pytest.mark.parametrize(
    "given",
    [
        {"headers": {"X-A": "a\r\nX-Injected: 1"}},
        {"method": "GET / HTTP/1.1\r\nX: y"},
        {"headers": ["not", "a", "mapping"]},
        {"spec": {"stream_above": "many"}},
        {"spec": {"redirects": "x"}},
    ],
)
def test_invalid_requests_are_rejected_before_they_are_sent(http, shop, given):
    before = len(shop.seen)
    outcome = http(**given)
    assert outcome.error.kind in ("schema", "client_error")
    if "spec" not in given:
        assert len(shop.seen) == before


# ── redirects and the policy ────────────────────────────────────────────────────────────


def test_redirects_are_followed_and_methods_change_as_they_should(http, shop):
    assert good(http("/redirect/302?to=/echo?x=1", json={"a": 1}))["method"] == "GET"
    assert good(http("/redirect/303?to=/echo", method="PUT", json={"a": 1}))["body"] == ""
    kept = good(http("/redirect/307?to=/echo", json={"a": 1}))
    assert (kept["method"], kept["body"]) == ("POST", '{"a":1}')
    assert kept["headers"]["cookie"] == "hop=1"
    parts = good(http("/redirect/308?to=/echo", multipart={"a": "1"}))["parts"]
    assert parts[0]["content"] == "1"


def test_redirects_can_be_counted_and_switched_off(http):
    outcome = http("/around", spec={"redirects": 3})
    assert "more than 3 redirects" in outcome.error.message
    outcome = http("/redirect/302?to=/echo", follow_redirects=False)
    assert outcome.helpers["http"]["status"] == 302
    assert outcome.helpers["http"]["headers"]["location"] == "/echo"


def test_credentials_stay_with_their_origin(http, shop):
    other = shop.base.replace("127.0.0.1", "localhost")
    host = ToolHost(credentials={"k": {"type": "api_key", "api_key": "key-1", "header": "X-Shop"}})
    private = {"Authorization": "Bearer a", "Cookie": "s=1", "X-Auth-Token": "t", "X-Fine": "f"}
    there = good(http(f"/redirect/307?to={other}/echo", headers=private, auth="k", host=host, method="POST"))["headers"]
    assert not {"authorization", "x-auth-token", "x-shop"} & set(there)
    assert "s=1" not in there.get("cookie", "")
    assert there["x-fine"] == "f" and "idempotency-key" in there
    here = good(http("/redirect/307?to=/echo", headers=private, auth="k", host=host))["headers"]
    assert here["authorization"] == "Bearer a" and here["x-shop"] == "key-1"


def test_a_secret_in_any_header_stays_with_its_origin(http, shop):
    other = shop.base.replace("127.0.0.1", "localhost")
    host = ToolHost(credentials={"k": {"value": "sesame-77"}})
    headers = {"X-Plain": "a", "X-Door": "open sesame-77"}
    there = good(http(f"/redirect/307?to={other}/echo", headers=headers, host=host, method="POST"))["headers"]
    assert "x-door" not in there and there["x-plain"] == "a"
    assert good(http("/redirect/307?to=/echo", headers=headers, host=host))["headers"]["x-door"] == "open sesame-77"


def test_a_redirect_to_another_scheme_is_refused(http):
    assert 'unsupported scheme "file"' in http("/redirect/302?to=file:///etc/passwd").error.message


class Public(ToolHost):
    """A host whose policy denies loopback, but for one address."""

    def allows_address(self, address):
        return not address.startswith("127.") and address not in ("::1", "0.0.0.0")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *("2130706433", "0x7f000001", "127.1", "0.0.0.0"),
    ],
)
def test_addresses_that_the_policy_denies_are_not_reached_in_any_spelling(http, shop, host):
    port = shop.base.rpartition(":")[2]
    before = len(shop.seen)
    outcome = http(f"http://{host}:{port}/echo", host=Public())
    assert outcome.status == "error" and not outcome.error.retryable
    assert outcome.error.kind == "client_error"
    assert len(shop.seen) == before


FORBIDDEN = [
    *("http://127.0.0.1/", "http://127.0.0.1:8080/x", "http://127.1/", "http://127.0.1/", "http://127.255.255.254/"),
    *("http://0/", "http://0.0.0.0/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/"),
    *("http://017700000001/", "http://2130706433/", "http://00000000000/", "http://4294967295/", "http://1/"),
    *(
        "http://localhost/",
        "http://LOCALHOST/",
        "http://localhost./",
        "http://user@127.0.0.1/",
        "http://a:b@localhost/",
    ),
    *("http://example.com@127.0.0.1/", "http://127.0.0.1#@example.com/", "http://127.0.0.1?@example.com/"),
    *(
        "http://[::1]/",
        "http://[::]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
    ),
    *("http://[::127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b:1::a00:1]/", "http://[2002:7f00:1::]/"),
    *(
        "http://[::ffff:0:7f00:1]/",
        "http://[fe80::1]/",
        "http://[fc00::1]/",
        "http://[fd12:3456::1]/",
        "http://[ff02::1]/",
    ),
    *(
        "http://10.0.0.1/",
        "http://10.255.255.255/",
        "http://172.16.0.1/",
        "http://172.31.255.255/",
        "http://192.168.1.1/",
    ),
    *(
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://100.64.0.1/",
        "http://100.100.100.200/",
    ),
    *("http://198.18.0.1/", "http://192.0.0.192/", "http://224.0.0.1/", "http://255.255.255.255/", "http://240.0.0.1/"),
    *(
        "https://127.0.0.1/",
        "HTTP://127.0.0.1/",
        "http://127.0.0.1:80\\@example.com/",
        "http://\u2460\u2461\u2466.0.0.1/",
    ),
    *(
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1/",
        "//127.0.0.1/",
        "http:127.0.0.1",
        "http:///127.0.0.1/",
    ),
    *(
        "unix:///var/run/docker.sock",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
        "dict://127.0.0.1:11211/",
        "http://127.0.0.1 /",
    ),
]


@pytest.mark.parametrize("url", FORBIDDEN)
def test_no_spelling_of_a_private_place_gets_past_a_servers_policy(tool, url):
    policy = AddressPolicy(private=False)

    let_through = []

    class Server(ToolHost):
        def allows_address(self, address):
            if policy.allows(address):
                let_through.append(address)
            return False  # whatever the policy says, this test sends nothing anywhere

    outcome = tool("http", {"url": url}, host=Server(), timeout=Timeout(connect=2, total=3))
    assert not let_through
    assert outcome.status == "error" and outcome.error.kind in ("client_error", "connection"), outcome.error
    assert outcome.helpers["http"]["status"] is None


def test_a_name_is_checked_by_the_address_that_is_connected_to(http, shop, monkeypatch):
    """A name that answers differently each time cannot slip through: no second look-up happens."""
    port = int(shop.base.rpartition(":")[2])
    requested = []
    real = socket.getaddrinfo

    def rebinding(host, *args, **kwargs):
        if host == "rebind.example":
            requested.append(host)
            return real("127.0.0.1", *args, **kwargs)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    outcome = http(f"http://rebind.example:{port}/echo", host=Public())
    assert "127.0.0.1" in outcome.error.message and "policy" in outcome.error.message
    assert requested == ["rebind.example"]


def test_a_redirect_to_a_denied_address_is_rejected(http, shop):
    class OnlyHere(ToolHost):
        def allows_address(self, address):
            return address == "127.0.0.1"

    port = shop.base.rpartition(":")[2]
    outcome = http(f"/redirect/302?to=http://127.0.0.2:{port}/echo", host=OnlyHere())
    assert "policy" in outcome.error.message and "127.0.0.2" in outcome.error.message


def test_behind_a_proxy_the_target_is_checked_too(http, shop):
    proxied = http("http://127.0.0.2:1/echo", proxy=shop.base, host=ToolHost(denied=("127.0.0.2",)))
    assert "policy" in proxied.error.message
    through = http("http://shop.internal/echo/via", proxy=shop.base)
    assert good(through)["path"].endswith("/echo/via")
    assert good(through)["headers"]["host"] == "shop.internal"


def test_messages_show_no_credentials_of_a_url():
    assert shown_url("https://me:pw@host/p?key=1#f") == "https://host/p"


# ── large bodies ────────────────────────────────────────────────────────────────────────


def test_a_body_is_streamed_to_the_store_on_request(http):
    host = ToolHost()
    outcome = http("/large/3000000", spec={"stream": True}, host=host)
    assert outcome.status == "ok" and outcome.data is None
    assert outcome.ref.meta.bytes == 3_000_000 == len(host.results[outcome.ref.meta.sha256])
    assert outcome.ref.meta.content_type == "application/octet-stream"
    assert host.counts[-1] == {"bytes": 3_000_000}


@pytest.mark.parametrize("query", ["", "?length=1"])
def test_a_body_above_the_threshold_is_streamed_too(http, query):
    host = ToolHost()
    outcome = http(f"/large/3000000{query}", spec={"stream_above": 1_000_000}, host=host)
    assert outcome.ref.meta.bytes == 3_000_000
    assert good(http(f"/large/100{query}", spec={"stream_above": 1_000_000}))


@pytest.mark.parametrize("query", ["", "?length=1"])
@pytest.mark.parametrize("spec", [{"max_response_bytes": 1000}, {"max_response_bytes": 1000, "stream": True}])
def test_a_body_over_the_limit_is_rejected(http, query, spec):
    outcome = http(f"/large/5000{query}", spec=spec)
    assert outcome.error.kind == "limit"
    assert "spec.max_response_bytes (1,000)" in outcome.error.message


def test_a_decompression_bomb_is_streamed_or_rejected(http):
    assert http("/bomb", spec={"max_response_bytes": 1_000_000}).error.kind == "limit"
    assert http("/bomb", spec={"stream_above": 1_000_000}).ref.meta.bytes == 50_000_000


def test_a_store_that_fails_is_a_storage_error(http):
    class Full(ToolHost):
        def __init__(self, failure):
            super().__init__()
            self.failure = failure

        async def put_result(self, chunks, **_):
            async for _chunk in chunks:
                raise self.failure

    full = http("/large/5000", spec={"stream": True}, host=Full(OSError(28, "No space left on device")))
    assert full.error.kind == "storage.quota"
    assert (
        http("/large/5000", spec={"stream": True}, host=Full(StoreUnavailable("gone"))).error.kind == "storage.access"
    )


BIG = """
import asyncio, re, sys
sys.path.insert(0, sys.argv[1])
from noetl.runtime.resources import close_loop_resources
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.testing.tools import ToolHost, tool_call
from noetl.tools.registry import load

class Sink(ToolHost):
    async def put_result(self, chunks, *, content_type, rows=None):
        size = 0
        async for chunk in chunks:
            size += len(chunk)
        return Reference("blob", {}, ReferenceMeta(content_type, size, ""))

async def main():
    call = tool_call("http", {"url": sys.argv[2]}, host=Sink(), spec={"stream_above": 33554432})
    outcome = await load("http")(call)
    await close_loop_resources()
    # Not getrusage: its maximum begins with that of the process that started this one.
    peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
    print(outcome.ref.meta.bytes, peak // 1024)

asyncio.run(main())
"""


def test_a_gigabyte_is_streamed_in_bounded_memory(loop, shop):
    async def fetch():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", BIG, os.path.dirname(__file__), f"{shop.base}/large/{1 << 30}"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return out.decode().split()

    size, megabytes = map(int, loop.run(asyncio.wait_for(fetch(), 100)))
    assert size == 1 << 30
    assert megabytes < 200


# ── TLS ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A CA, a server certificate for 127.0.0.1 and a client certificate, made here."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("tls")
    start = datetime.datetime(2020, 1, 1)
    keys = {}

    def make(name, issuer):
        key = keys[name] = ec.generate_private_key(ec.SECP256R1())
        title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
        builder = x509.CertificateBuilder(signer, title, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=36500))
        builder = builder.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(keys[issuer], hashes.SHA256())
        pem = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.key").write_bytes(private)

    for name in ("ca", "server", "client"):
        make(name, "ca")
    return folder


@pytest.fixture(scope="session")
def secure(loop, certificates):
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    server = serving(ssl=context)
    shop = loop.run(server.__aenter__())
    yield shop
    loop.run(server.__aexit__(None, None, None))


def test_certificates_are_verified_unless_disabled(http, secure, certificates):
    outcome = http(secure.base + "/echo")
    assert outcome.error.kind == "connection" and not outcome.error.retryable
    assert "TLS" in outcome.error.message
    assert good(http(secure.base + "/echo", verify=False))
    assert good(http(secure.base + "/echo", verify="false"))
    host = ToolHost(folder=certificates)
    assert good(http(secure.base + "/echo", ca="ca.pem", host=host))
    assert good(http(secure.base + "/echo", ca=(certificates / "ca.pem").read_text()))
    named = secure.base.replace("127.0.0.1", "localhost")
    assert "TLS" in http(named + "/echo", ca="ca.pem", host=host).error.message


def test_client_certificates_are_sent_from_files_and_from_text(http, secure, certificates):
    host = ToolHost(folder=certificates)
    assert good(http(secure.base + "/echo", ca="ca.pem", cert="client.pem", key="client.key", host=host))
    texts = {name: (certificates / f"client.{end}").read_text() for name, end in (("cert", "pem"), ("key", "key"))}
    assert good(http(secure.base + "/echo", ca="ca.pem", host=host, **texts))
    outcome = http(secure.base + "/echo", cert="no.pem", host=host)
    assert outcome.error.kind == "client_error" and "no.pem" in outcome.error.message


def test_calls_share_connections(loop, shop):
    probe = subprocess.run(
        [sys.executable, "-c", "import noetl.tools.http.spec, sys; print('aiohttp' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert probe.stdout.strip() == "False"

    async def several():
        from noetl.connections.http.client import client

        for _ in range(5):
            outcome = await load("http")(tool_call("http", {"url": shop.base + "/echo"}))
            assert outcome.status == "ok"
        return sum(len(kept) for kept in client().session.connector._conns.values())

    assert loop.run(several()) >= 1


def test_names_of_files_are_sent_as_they_are(http):
    parts = good(http(multipart={"f": {"filename": "Größe 5.txt", "content": "x"}}))
    assert 'filename="Größe 5.txt"' in parts["body"]


def test_an_unsupported_auth_type_is_rejected(http):
    outcome = http(auth={"type": "digest", "username": "u", "password": "p"})
    assert (
        outcome.error.kind == "auth" and "digest" in outcome.error.message and "basic, bearer" in outcome.error.message
    )


def test_unsupported_options_are_rejected(http):
    assert "an HTTP proxy" in http(proxy="socks5://127.0.0.1:1").error.message
    assert "requires `cert`" in http(key="client.key").error.message
    down = http("http://shop.internal/", proxy="http://me:pw@127.0.0.1:1").error
    assert down.kind == "connection" and "through the proxy http://127.0.0.1:1" in down.message
