"""The built page: served from the package with a strict policy, cached by name, small enough."""

from __future__ import annotations

import asyncio
import gzip
import re
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi import FastAPI
from msgspec import Struct

from noetl.errors import NoetlError
from noetl.server.http import problems
from noetl.server.http import web_page as pages

ROOT = Path(__file__).resolve().parents[2]


class Answer(Struct):
    status_code: int
    headers: dict[str, str]
    text: str


class Client:
    """Calls the routes of the page without a server."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._app = FastAPI()
        self._app.include_router(pages.router)
        self._app.add_exception_handler(NoetlError, problems.on_noetl_error)

    def get(self, path: str) -> Answer:
        sent: list[dict] = []

        async def receive() -> dict:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "root_path": self._prefix,
            "query_string": b"",
            "headers": [],
        }
        asyncio.run(self._app(scope, receive, send))
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]).decode())


@pytest.mark.parametrize(
    "path", ["/", "/executions", "/executions/7", "/playbooks/a/b", "/operations", "/inbox", "/compare/1/2"]
)
def test_every_page_path_returns_the_document(path: str):
    answer = Client().get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"


def test_the_policy_allows_no_inline_script_and_the_document_has_none():
    answer = Client().get("/")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "default-src 'none'" in policy and "unsafe" not in policy
    assert all(re.search(r'src="assets/[^"]+"', tag) for tag in re.findall(r"<script[^>]*>", answer.text))
    assert re.search(r"</script>", answer.text) and not re.search(r"<script[^>]*>[^<]", answer.text)


def test_the_nonce_changes_and_is_in_the_policy():
    nonces = set()
    for _ in range(2):
        answer = Client().get("/")
        nonce = re.search(r'name="style-nonce" content="([^"]+)"', answer.text)[1]
        assert f"'nonce-{nonce}'" in answer.headers["content-security-policy"]
        nonces.add(nonce)
    assert len(nonces) == 2


def test_the_document_contains_the_path_prefix():
    assert '<base href="/flows/">' in Client("/flows").get("/flows/executions").text
    assert '<base href="/">' in Client().get("/executions").text


def test_hashed_files_can_be_cached_forever():
    client = Client()
    named = re.findall(r'(?:src|href)="(assets/[^"]+)"', client.get("/").text)
    assert len(named) == 2
    for name in named:
        answer = client.get("/" + name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/assets/app-OLD.js").status_code == 404
    assert client.get("/assets/..%2findex.html").status_code == 404


ASSETS = files("noetl") / "ui" / "assets"


def test_the_whole_page_is_under_400_kilobytes_gzipped():
    sizes = {each.name: len(gzip.compress(each.read_bytes(), 9)) for each in ASSETS.iterdir()}
    assert sum(sizes.values()) < 400_000, sizes


def test_the_first_view_is_under_150_kilobytes_gzipped():
    """The document, its style and its script, with everything that the script imports statically."""
    named = re.findall(r'(?:src|href)="assets/([^"]+)"', Client().get("/").text)
    loaded: dict[str, int] = {}
    while named:
        name = named.pop()
        if name not in loaded:
            text = (ASSETS / name).read_bytes()
            loaded[name] = len(gzip.compress(text, 9))
            named += re.findall(r'(?:import|from)\s*"\./([^"]+)"', text.decode())
    assert len(loaded) > 2
    assert sum(loaded.values()) < 150_000, loaded


def test_the_lock_file_names_no_registry():
    assert "http" not in re.sub(r'"(url|funding)": "[^"]*"', "", (ROOT / "ui" / "package-lock.json").read_text())


def test_every_route_of_the_page_can_be_loaded_directly():
    text = (ROOT / "ui/src/main.tsx").read_text()
    routes = re.findall(r'^  \["(/[^"]*)", [A-Z]\w+\],$', text, re.MULTILINE)
    assert len(routes) > 5
    assert {f"/{route.split('/')[1]}" for route in routes} == {"/", *pages.SECTIONS}
