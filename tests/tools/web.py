"""A real HTTP server on loopback, with valid responses and known failures."""

from __future__ import annotations

import asyncio
import base64
import gzip
from contextlib import asynccontextmanager

from aiohttp import web

from tests.waiting import until


class Shop:
    """Routes, and the requests they received."""

    def __init__(self):
        self.seen = []
        self.tokens = 0
        self.base = ""
        self.raw = ""

    async def echo(self, request):
        body = await request.read()
        answer = {
            "method": request.method,
            "path": request.path_qs,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": body.decode("utf-8", "backslashreplace"),
            "base64": base64.b64encode(body).decode(),
            "form": {},
        }
        if request.content_type.startswith("multipart/"):
            answer["parts"] = parts_of(request.headers["Content-Type"], body)
        self.seen.append(answer)
        return web.json_response(answer)

    async def status(self, request):
        code = int(request.match_info["code"])
        headers = {"X-Request-Id": "r-17", "Retry-After": request.query.get("after", "7")}
        return web.json_response({"code": code}, status=code, headers=headers)

    async def typed(self, request):
        return web.Response(body=base64.b64decode(request.query["b"]), headers={"Content-Type": request.query["t"]})

    async def deep(self, request):
        return web.Response(body=b"[" * 100_000, content_type="application/json")

    async def redirect(self, request):
        self.seen.append({"redirect": dict(request.headers), "method": request.method})
        code = int(request.match_info["code"])
        response = web.Response(status=code, headers={"Location": request.query["to"]})
        response.set_cookie("hop", "1")
        return response

    async def around(self, request):
        raise web.HTTPFound("/around")

    async def slow_headers(self, request):
        await asyncio.sleep(30)
        return web.Response()

    async def slow_body(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        self.seen.append("slow body begun")
        await until(lambda: request.transport is None)  # the client has closed the connection
        self.seen.append("slow body ended")
        return response

    async def large(self, request):
        size = int(request.match_info["size"])
        response = web.StreamResponse(headers={"Content-Type": request.query.get("t", "application/octet-stream")})
        if "length" in request.query:
            response.content_length = size
        await response.prepare(request)
        block = b"0123456789abcdef" * 65536
        while size > 0:
            await response.write(block[: min(size, len(block))])
            size -= len(block)
        return response

    async def bomb(self, request):
        body = gzip.compress(bytes(50_000_000))
        return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})

    async def token(self, request):
        form = await request.post()
        self.tokens += 1
        if form.get("client_secret") != "right":
            return web.json_response({"error": "invalid_client", "error_description": "who are you"}, status=401)
        life = float(request.query.get("life", "3600"))
        return web.json_response({"access_token": f"tok-{self.tokens}", "expires_in": life, "token_type": "Bearer"})

    async def fault(self, reader, writer):
        """A server that speaks no HTTP, or bad HTTP, by the requested path."""
        line = await reader.readline()
        path = line.split()[1].decode() if line.count(b" ") == 2 else "/"
        while (await reader.readline()).strip():
            pass
        answers = {
            "/gone": b"",
            "/midway": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nonly this",
            "/midchunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "/badchunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz",
            "/garbage": b"SSH-2.0-OpenSSH_9.9\r\n",
            "/header": b"HTTP/1.1 200 OK\r\nX-Big: " + b"x" * 200_000 + b"\r\nContent-Length: 0\r\n\r\n",
            "/headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"\r\n",
            "/badgzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        }
        if path.startswith("/untyped/"):
            body = bytes.fromhex(path.rpartition("/")[2])
            answers[path] = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        writer.write(answers[path])
        await writer.drain()
        writer.close()


def parts_of(content_type, body):
    """The parts of a multipart body, by the standard library's own reader."""
    from email import message_from_bytes, policy

    message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body, policy=policy.HTTP)
    return [
        {
            "name": part.get_param("name", header="content-disposition"),
            "filename": part.get_filename(),
            "type": part.get_content_type(),
            "content": part.get_payload(decode=True).decode("utf-8", "backslashreplace"),
        }
        for part in message.iter_parts()
    ]


@asynccontextmanager
async def serving(ssl=None):
    """The shop on two ports: a well-behaved one, and one for faults below HTTP."""
    shop = Shop()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/echo{tail:.*}", shop.echo)
    app.router.add_route("*", "/status/{code}", shop.status)
    app.router.add_get("/typed", shop.typed)
    app.router.add_get("/deep", shop.deep)
    app.router.add_route("*", "/redirect/{code}", shop.redirect)
    app.router.add_get("/around", shop.around)
    app.router.add_get("/slow-headers", shop.slow_headers)
    app.router.add_get("/slow-body", shop.slow_body)
    app.router.add_get("/large/{size}", shop.large)
    app.router.add_get("/bomb", shop.bomb)
    app.router.add_post("/token", shop.token)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl)
    await site.start()
    port = runner.addresses[0][1]
    shop.base = f"{'https' if ssl else 'http'}://127.0.0.1:{port}"
    faults = await asyncio.start_server(shop.fault, "127.0.0.1", 0)
    shop.raw = f"http://127.0.0.1:{faults.sockets[0].getsockname()[1]}"
    try:
        yield shop
    finally:
        faults.close()
        await runner.cleanup()
