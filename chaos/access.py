"""G11: access control of every route for every role in every spelling, foreign hosts and origins, internal URLs.

The cases are generated from the route table of the application, so new routes are covered.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from chaos.findings import Finding
from noetl.runtime.clock import RealClock
from noetl.secrets.keychain import InstalledCredentials
from noetl.server.app_state import ServiceBackends, build_app_state
from noetl.server.composition import Stores, build_orchestrator
from noetl.server.http.access import ROLES, Caller, Role, Tokens
from noetl.server.http.app import create_app
from noetl.server.http.middleware.fast_path import RawRoute
from noetl.server.http.routes.operations import Operations
from noetl.server.http.web_page import SECTIONS
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.tools.registry import specs

# Routes without a role: health checks, pages, API description, sign-in, and webhooks, which are signed.
OPEN = (
    "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc", "/api/session",
    "/api/webhooks/{name}", "/answer/{token}",  # they require a signature
    "/", "/assets/{name}", *SECTIONS, *(f"{section}/{{rest:path}}" for section in SECTIONS),
)  # fmt: skip
REFUSED = (400, 401, 403, 404, 405, 413, 421, 307, 308)

GOOD_HOSTS = ("127.0.0.1", "127.0.0.1:8642", "localhost", "localhost:1", "[::1]:8642", "LOCALHOST")
BAD_HOSTS = (
    "evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example",
    "127.0.0.1:80@evil.example", "evil.example#127.0.0.1", "", "127.0.0.1:8642:evil", "[::1]evil.example", "[::1",
    "127.0.0.2", "0.0.0.0", "10.0.0.1", "localhost.", "127.1", "2130706433", "127.0.0.1,evil.example", "xn--localhost-",
    "evil.example/127.0.0.1",
)  # fmt: skip
BAD_ORIGINS = (
    "http://evil.example", "https://evil.example", "null", "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1@evil.example", "http://127.0.0.1:80@evil.example", "http://[::1]evil.example", "http://[::1",
    "file://", "file:///", "chrome-extension://127.0.0.1", "http://evil.example:8642", "http://0.0.0.0:8642",
    "//127.0.0.1",
    "127.0.0.1", "http://", "javascript://127.0.0.1", "http://evil.example/http://127.0.0.1", "http://10.0.0.1",
)  # fmt: skip


def create_test_app(tokens: Tokens, home: Path) -> FastAPI:
    """An application with in-memory stores, and credentials in `home`."""
    stores = Stores(MemoryEventStore(), MemoryPlaybookStore(), _NoResults(), MemoryRunQueue())  # type: ignore[arg-type]
    orchestrator = build_orchestrator(stores, specs)
    backends = ServiceBackends(MemoryTriggerStore(), MemoryDeliveryStore(), InstalledCredentials(home, {}), RealClock())
    parts = build_app_state(orchestrator, backends, tokens, home=home, allows_address=lambda address: False)

    async def readiness() -> list[str]:
        return []

    app = create_app(lambda: parts, tokens, readiness=readiness, version="0")
    app.state.app_state = parts
    app.state.operations = Operations(parts, app.state.workers)
    return app


class _NoResults:
    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


def route_table(app: FastAPI) -> list[tuple[str, str, Role | None]]:
    """Method, path and required role of every route; None if the route requires no role."""
    found: list[tuple[str, str, Role | None]] = []
    for route in _routes(app):
        path = route.path
        role: Role | None = "worker" if path.startswith("/api/work/") else _role(route)
        found += [(method, path, role) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def _routes(app: Any) -> Iterator[Route]:
    for route in app.routes:
        if isinstance(route, Route):
            yield route
        else:  # an included router
            yield from _routes(getattr(route, "original_router", None) or _Empty)


class _Empty:
    routes = ()


def _role(route: Route) -> Role | None:
    if isinstance(route, RawRoute):
        return route.role
    if not isinstance(route, APIRoute):
        return None
    for dependency in route.dependant.dependencies:
        role: Role | None = getattr(dependency.call, "role", None)
        if role is not None:
            return role
    return None


def spellings(path: str) -> list[str]:
    """Variants of a path that try to bypass the access check."""
    plain = "/".join("1" if part.startswith("{") else part for part in path.split("/"))
    head, _, tail = plain.rpartition("/")
    return [
        plain,
        plain + "/",
        "/" + plain,
        f"/./{plain.lstrip('/')}",
        f"/healthz/..{plain}",
        plain.upper(),
        f"{head}/%{ord(tail[0]):02x}{tail[1:]}" if tail else plain + "%20",
        f"{plain};role=admin",
    ]


async def request_status(app: Any, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b"{}") -> int:
    """The status of one request, sent without a socket."""
    from urllib.parse import unquote

    status = 0
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(3600)
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            raise _StatusKnown

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642), "state": {}, "app": app,
    }  # fmt: skip
    try:
        async with asyncio.timeout(5):
            await app(scope, receive, send)
    except (_StatusKnown, TimeoutError):
        pass
    return status


class _StatusKnown(BaseException):
    """Ends the request when the status is known."""


async def run_cases(folder: Path) -> tuple[Counter[str], list[str]]:
    """Run every case; returns the number of cases by sort, and the unexpected responses."""
    tokens = Tokens(folder)
    texts: dict[str, str | None] = {role: tokens.add(role, role) for role in ROLES}
    texts |= {"anonymous": None, "invalid": "noetl_guessed"}
    count: Counter[str] = Counter()
    roles = route_table(create_test_app(tokens, folder))
    unexpected = [f"{method} {path} needs no role" for method, path, role in roles if role is None and path not in OPEN]
    for role_name, text in texts.items():
        app = create_test_app(tokens, folder)  # with its own rate limits
        for method, path, role in route_table(app):
            for spelled in spellings(path):
                headers = [("host", "127.0.0.1"), ("content-type", "application/json")]
                headers += [("authorization", f"Bearer {text}")] if text else []
                status = await request_status(app, method, spelled, headers)
                count["routes"] += 1
                allowed = role is None or (role_name in ROLES and Caller("x", role_name).may(role))
                if status == 429:
                    app = create_test_app(tokens, folder)
                    continue
                if (status >= 500 and status != 503) or status == 0:
                    unexpected.append(f"{role_name} {method} {spelled}: {status}")
                elif not allowed and status not in REFUSED:
                    unexpected.append(f"{role_name} {method} {spelled} (needs {role}): {status}")
                elif allowed and role is not None and spelled == spellings(path)[0] and status in (401, 403):
                    unexpected.append(f"{role_name} {method} {spelled} (needs {role}) was rejected: {status}")
    app, admin = create_test_app(tokens, folder), ("authorization", f"Bearer {texts['admin']}")
    for hosts, valid in ((GOOD_HOSTS, True), (BAD_HOSTS, False)):
        for host in hosts:
            status = await request_status(app, "GET", "/api/executions", [("host", host), admin])
            count["hosts and origins"] += 1
            if (status == 200) != valid:
                unexpected.append(f"Host {host!r}: {status}")
    for origin in BAD_ORIGINS:
        status = await request_status(app, "GET", "/api/executions", [("host", "127.0.0.1"), ("origin", origin), admin])
        count["hosts and origins"] += 1
        if status != 403:
            unexpected.append(f"Origin {origin!r}: {status}")
    twice = [("host", "127.0.0.1"), ("host", "evil.example"), admin]
    for headers in (twice, [twice[1], twice[0], admin]):
        count["hosts and origins"] += 1
        if await request_status(app, "GET", "/api/executions", headers) == 200:
            unexpected.append(f"two hosts: {headers[:2]}")
    return count, unexpected


# ── URLs ────────────────────────────────────────────────────────────────────────────────────


def internal_urls(port: int) -> list[str]:
    """Common encodings of URLs of this machine, its network and the metadata service of its cloud."""
    hosts = """
        127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.0.0.1 017700000001 0177.0.0.1 127.0.0.2
        127.255.255.254 localhost LOCALHOST localhost. 0.0.0.0 0 [::1] [::] [0:0:0:0:0:0:0:1]
        [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1]
        [fd00::1] [fc00::1] 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.254 192.168.0.1 192.168.1.254
        169.254.169.254 169.254.170.2 100.64.0.1 100.100.100.200 192.0.0.192 198.18.0.1 224.0.0.1
        239.255.255.250 240.0.0.1 255.255.255.255 [ff02::1] [fe80::1%25lo] ①②⑦.⓪.⓪.① １２７.０.０.１
        user@127.0.0.1 user:pass@localhost example.com@127.0.0.1 127.0.0.1#example.com
        127.0.0.1%23.example.com
    """.split()  # noqa: SIM905
    urls = [
        f"http://{host}:{port}/" if "#" not in host else f"http://{host.replace('#', f':{port}#')}" for host in hosts
    ]
    return [
        *urls,
        f"https://127.0.0.1:{port}/", f"http:///127.0.0.1:{port}/", f"http:127.0.0.1:{port}", "file:///etc/passwd",
        f"gopher://127.0.0.1:{port}/_x", f"ftp://127.0.0.1:{port}/", f"dict://127.0.0.1:{port}/x",
        f"//127.0.0.1:{port}/",
        f"http://127.0.0.1\\@example.com:{port}/", f"http://127.0.0.1:{port}\t/", "unix:///var/run/docker.sock",
    ]  # fmt: skip


def experiment(*, quick: bool) -> Finding:
    """Run all cases in process, and fetch the URLs on a server with a worker."""
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder:
        count, unexpected = asyncio.run(run_cases(Path(folder)))
    urls, reached = _try_urls(8 if quick else 1)
    return Finding(
        part="access",
        guarantee="G11",
        target="Every route x role x 8 spellings: 0 unexpected responses; 60 internal URLs and 40 Host and Origin "
        "cases: 0 pass",
        setup="Cases generated from the route table of the application; URLs fetched by `kind: http` on a worker that "
        "may connect to public addresses only, with a listener on the internal addresses.",
        figures={
            "route, role and spelling": f"{count['routes']:,}",
            "hosts and origins": str(count["hosts and origins"]),
            "internal URLs": str(urls),
            "unexpected responses": str(len(unexpected)),
            "internal URLs reached": str(len(reached)),
        },
        violations=[*unexpected, *reached],
    )


def _try_urls(step: int) -> tuple[int, list[str]]:
    from chaos.internal_listener import InternalListener
    from chaos.single_server import single_server

    reached: list[str] = []
    with InternalListener() as listener, single_server(workers=1, NOETL_PRIVATE_NETWORKS="") as cluster:
        urls = internal_urls(listener.port)[::step]
        for url in urls:
            tool = {"kind": "http", "url": url, "spec": {"timeout": 3}}
            text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: u, path: chaos/u}\nworkflow: "
            status, document = cluster.ask(
                "POST", "/api/execute", {"content": text + json.dumps([{"step": "a", "tool": tool}])}
            )
            if status != 202:
                continue  # the playbook is rejected
            ended = cluster.finished(str(document["execution_id"]), 30)
            if ended["status"] == "success":
                reached.append(f"{url} was fetched")
        reached += [f"the internal listener got a connection {each}" for each in listener.connections]
    return len(urls), reached
