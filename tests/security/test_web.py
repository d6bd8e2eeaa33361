"""Class "web": requests of other sites and malformed bodies are refused with 4xx and without a traceback."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostics import bounded_hints, did_you_mean
from noetl.server.http.access import Tokens
from noetl.server.http.middleware.security import MAX_ANONYMOUS_BYTES, MAX_TEXT_BODY, TEXT_PATHS, SecurityMiddleware
from noetl.server.http.problems import flat_routes
from noetl.server.http.routes.execute import _read
from noetl.tools.registry import specs


def send(
    tmp_path: Path, headers: dict[str, str], method: str = "POST", path: str = "/api/validate"
) -> tuple[int, dict]:
    """One request through the middleware; returns the status and the headers of the response."""
    tokens = Tokens.prepare(tmp_path)
    token = tokens.add("t", "admin") if not any(each.name == "t" for each in tokens.all()) else ""

    async def app(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def collect(message):
        sent.append(message)

    given = {"host": "127.0.0.1:8080", "authorization": f"Bearer {token}", "content-length": "0", **headers}
    scope = {
        "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()], "scheme": "http",
    }  # fmt: skip
    middleware = SecurityMiddleware(app, tokens=tokens, hosts=("noetl.example.com",))
    asyncio.run(middleware(scope, receive, collect))
    start = sent[0]
    return start["status"], {name.decode().lower(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8080"}, True),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "http://127.0.0.1"}, False),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "https://127.0.0.1:8080"}, True),
        ({"origin": "https://noetl.example.com"}, True),
        ({"origin": "https://noetl.example.com:8443"}, False),
        ({"origin": "http://evil.example.com:8080"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
    ],
)
def test_only_pages_of_this_server_may_change_something(tmp_path, headers, allowed):
    assert (send(tmp_path, headers)[0] == 200) is allowed


def test_responses_are_neither_stored_nor_guessed(tmp_path):
    _, headers = send(tmp_path, {})
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "body", [b"\xff", b'{"path": "\xff\xfe"}', b"[" * 100_000, b"{" * 3, b"null", b"\x00", b'{"path": 1}']
)
def test_malformed_bodies_are_refused_in_words(body):
    with pytest.raises(Exception) as caught:
        _read(body, "application/json")
    assert not isinstance(caught.value, (UnicodeDecodeError, RecursionError, MemoryError))


def page_routes() -> list[str]:
    """Routes with a body that the role viewer may call."""
    from noetl.server.http import app as http_app

    tokens = Tokens.prepare(Path(tempfile.mkdtemp()))
    app = http_app.create_app(lambda: None, tokens, readiness=None, version="0")
    found = []
    for route in flat_routes(app.routes):
        dependant = getattr(route, "dependant", None)
        has_body = dependant is not None and route.body_field is not None and "POST" in route.methods
        if has_body and ": Viewer" in inspect.getsource(route.endpoint):
            found.append(route.path)
    return found


def test_texts_of_viewers_are_bounded_on_every_route():
    others = {"/api/schedules/preview", "/api/inbox/links", "/api/executions/{execution_id}/signal"}  # no playbooks
    others |= {"/api/executions/{execution_id}/query", "/api/results/{ref}/query"}  # SQL, with limits of its own
    assert set(page_routes()) - others <= TEXT_PATHS


def test_viewers_send_short_texts_and_authors_long_ones(tmp_path):
    tokens = Tokens.prepare(tmp_path)
    viewer, author = tokens.add("v", "viewer"), tokens.add("a", "author")
    for path in TEXT_PATHS:
        for length, status in ((MAX_TEXT_BODY + 1, 413), (1000, 200)):
            assert request(tokens, path, viewer, length) == status
        assert request(tokens, path, author, 4_000_000) == 200
    statuses = [request(tokens, "/api/validate", viewer, MAX_TEXT_BODY, middleware=one) for one in [guard(tokens)] * 5]
    assert 429 in statuses


def guard(tokens: Tokens) -> SecurityMiddleware:
    async def app(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    return SecurityMiddleware(app, tokens=tokens)


def request(tokens, path, token, length, *, middleware=None, scheme="http", cookie=None, client="192.0.2.1"):
    """The status of one request through the middleware."""
    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"x" * length, "more_body": False}

    async def collect(message):
        sent.append(message)

    headers = {"host": "127.0.0.1", "content-length": str(length)}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    headers |= {"cookie": cookie} if cookie else {}
    scope = {
        "type": "http", "method": "POST", "path": path, "root_path": "", "query_string": b"", "client": (client, 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "scheme": scheme,
    }  # fmt: skip
    asyncio.run((middleware or guard(tokens))(scope, receive, collect))
    return sent[0]["status"]


def test_over_https_only_the_cookie_of_this_host_is_read(tmp_path):
    tokens = Tokens.prepare(tmp_path)
    text = tokens.add("v", "viewer")
    for scheme, cookie, status in (
        ("http", f"noetl_token={text}", 200),
        ("https", f"noetl_token={text}", 401),  # another host of the domain can set it
        ("https", f"__Host-noetl_token={text}", 200),
        ("https", f"noetl_token=x; __Host-noetl_token={text}", 200),
        ("http", f"__Host-noetl_token={text}; noetl_token=x", 200),
    ):
        assert request(tokens, "/api/validate", None, 10, scheme=scheme, cookie=cookie) == status


def test_failed_attempts_to_sign_in_are_slowed_by_address(tmp_path):
    tokens = Tokens.prepare(tmp_path)

    async def refusing(scope, receive, send):
        await PlainTextResponse("no", status_code=401)(scope, receive, send)

    middleware = SecurityMiddleware(refusing, tokens=tokens)
    statuses = [request(tokens, "/api/session", None, 10, middleware=middleware) for _ in range(15)]
    assert statuses[:10] == [401] * 10 and set(statuses[10:]) == {429}
    assert request(tokens, "/api/session", None, 10, middleware=middleware, client="192.0.2.2") == 401
    addresses = [f"2001:db8::{number:x}" for number in range(30)]  # one network
    statuses = [request(tokens, "/api/session", None, 10, middleware=middleware, client=each) for each in addresses]
    assert 429 in statuses
    for number in range(11_000):
        middleware._sign_ins.allow(str(number))
    assert len(middleware._sign_ins._buckets) <= 10_000
    assert request(tokens, "/api/session", None, 10_000) == 413


def test_bodies_of_callers_without_a_token_share_a_limit(tmp_path):
    tokens = Tokens.prepare(tmp_path)
    middleware = guard(tokens)
    middleware._anonymous = MAX_ANONYMOUS_BYTES - 100
    assert request(tokens, "/api/webhooks/a", None, 1000, middleware=middleware) == 503
    assert request(tokens, "/api/webhooks/a", None, 10, middleware=middleware) == 200
    assert middleware._anonymous == MAX_ANONYMOUS_BYTES - 100


STEP = "  - {{step: {name}, tool: {{kind: noop, input: {{x: '{{{{ ctx.{read} }}}}'}}}}, next: {{arcs: [{{step: {to}}}]}}}}\n"
SLOW_TEXTS = {
    "unknown steps": "".join(STEP.format(name=f"{'a' * 20}{n}", read="x", to=f"{'a' * 19}b{n}") for n in range(1200)),
    "unknown names": "".join(
        STEP.format(name=f"s{n}", read=f"{'a' * 15}{n}", to=f"s{n + 1}").replace(
            ", next:", f", set: {{ctx.{'a' * 14}b{n}: 1}}, next:"
        )
        for n in range(900)
    ),
    "code": "  - step: s\n    tool:\n      kind: python\n      code: |\n"
    + "".join(f"        a{n} = b{n} + c{n}\n" for n in range(5000)),
}


@pytest.mark.parametrize("name", SLOW_TEXTS)
def test_texts_of_viewers_are_checked_quickly(name):
    """Thousands of problems, each with a hint that compares thousands of names."""
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: slow}\nworkflow:\n"
    text = head + SLOW_TEXTS[name]
    assert len(text) < MAX_TEXT_BODY
    known = specs()
    began = time.process_time()
    found = compile_playbook(text, file="", specs=known).diagnostics
    assert time.process_time() - began < 2.5  # about 1; it was 4 to 10
    assert len(found) > 800


def test_hints_of_all_checks_of_a_migration_are_bounded_together():
    """A migration checks its text several times."""
    with bounded_hints():
        with bounded_hints():
            assert did_you_mean("stepp", ["step"]) == 'did you mean "step"?'
            assert did_you_mean("a" * 60, [f"{number:060}" for number in range(1000)]) == ""
        with bounded_hints():
            assert did_you_mean("stepp", ["step"], "none") == "none"
    assert did_you_mean("stepp", ["step"]) == 'did you mean "step"?'
