"""An HTTP server for the benchmarks of tools, in its own process: small responses, pages of rows, large bodies.

with http_server() as url: ...
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

BLOCK = 1 << 20
PAGE = 1000  # rows
GENERATED = 20  # distinct pages, which are served repeatedly


PAGES = web.AppKey("pages", list[bytes])


@contextmanager
def http_server() -> Iterator[str]:
    """Start the server; stop it at the end of the block."""
    command = [sys.executable, "-m", "bench.http_server"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _small(_: web.Request) -> web.Response:
    return web.json_response({"id": 1, "name": "a small response", "ok": True})


async def _body(request: web.Request) -> web.StreamResponse:
    """`?mb=N`: N MiB of random bytes."""
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    block = os.urandom(BLOCK)
    for _ in range(int(request.query["mb"])):
        await response.write(block)
    await response.write_eof()
    return response


async def _rows(request: web.Request) -> web.Response:
    """`?rows=N&page=K`: page K of N rows."""
    rows, page = int(request.query["rows"]), int(request.query["page"])
    more = str(page + 1).encode() if (page + 1) * PAGE < rows else b"null"
    data = request.app[PAGES][page % GENERATED] if page * PAGE < rows else b"[]"
    return web.Response(body=b'{"data":' + data + b',"next":' + more + b"}", content_type="application/json")


def _page(number: int) -> bytes:
    return msgspec.json.encode([_row(g) for g in range(number * PAGE + 1, (number + 1) * PAGE + 1)])


def _row(g: int) -> dict[str, Any]:
    return {
        "id": g, "grp": g % 1000, "name": f"user name {g}", "email": f"user{g}@example.org",
        "created": "2024-01-01T00:00:00", "updated": "2024-01-01T00:00:00Z", "price": g * 7919 % 100003 / 100,
        "score": g**0.5, "active": g % 3 == 0, "attrs": {"k": g % 97, "tags": ["a", "b", g % 7], "note": f"row {g}"},
    }  # fmt: skip


async def _serve() -> None:
    app = web.Application()
    app[PAGES] = [_page(number) for number in range(GENERATED)]
    app.add_routes([web.get("/small", _small), web.get("/body", _body), web.get("/rows", _rows)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(_serve())
