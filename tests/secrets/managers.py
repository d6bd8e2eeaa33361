"""Secret managers on loopback with the paths, headers, envelopes and errors of the real ones."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager

from aiohttp import web


class Managers:
    """Vault, Google and Azure in one server; `requests` has every request."""

    def __init__(self):
        self.requests = []
        self.tokens = 0
        self.base = ""
        self.kv2 = {
            "secret/data/app/db": [{"user": "app", "password": "pw-1"}, {"user": "app", "password": "pw-2"}],
            "secret/data/single": [{"value": "only-one"}],
            "team/data/api": [{"token": "team-token"}],
            "secret/data/gone": [None],
        }
        self.kv1 = {"old/thing": {"value": "kv1-value"}}
        self.public_key = None

    # ── Vault ───────────────────────────────────────────────────────────────────────────

    async def vault(self, request):
        path = request.match_info["path"]
        self.requests.append((request.method, path, dict(request.headers)))
        if path.startswith("auth/"):
            return await self.vault_login(path, await request.json())
        if request.headers.get("X-Vault-Token") not in ("root", "signed-in"):
            return web.json_response({"errors": ["permission denied"]}, status=403)
        if path in self.kv2:
            versions = self.kv2[path]
            number = int(request.query.get("version", len(versions)))
            if not 1 <= number <= len(versions):
                return web.json_response({"errors": []}, status=404)
            data = versions[number - 1]
            metadata = {
                "version": number,
                "deletion_time": "",
                "destroyed": False,
                "created_time": "2024-01-01T00:00:00Z",
            }
            envelope = {"request_id": "r", "lease_id": "", "renewable": False, "lease_duration": 0, "warnings": None}
            status = 404 if data is None else 200
            return web.json_response({**envelope, "data": {"data": data, "metadata": metadata}}, status=status)
        if path in self.kv1:
            return web.json_response({"request_id": "r", "lease_duration": 2764800, "data": self.kv1[path]})
        return web.json_response({"errors": []}, status=404)

    async def vault_login(self, path, form):
        good = {
            "auth/approle/login": {"role_id": "r", "secret_id": "s"},
            "auth/userpass/login/ada": {"password": "p"},
            "auth/kubernetes/login": {"role": "app", "jwt": "j"},
        }
        if good.get(path) != form:
            return web.json_response({"errors": ["invalid role or secret ID"]}, status=400)
        return web.json_response({"auth": {"client_token": "signed-in", "lease_duration": 3600, "renewable": True}})

    # ── Google ──────────────────────────────────────────────────────────────────────────

    async def google(self, request):
        name = request.match_info["name"]
        if request.headers.get("Authorization") != "Bearer google-token":
            return web.json_response({"error": {"code": 401, "status": "UNAUTHENTICATED"}}, status=401)
        secrets = {
            "projects/p1/secrets/db/versions/latest": b'{"password": "g-pw"}',
            "projects/p1/secrets/db/versions/3": b"third",
            "projects/p1/secrets/raw/versions/latest": b"\xff\x00",
        }
        if name not in secrets:
            return web.json_response({"error": {"code": 404, "status": "NOT_FOUND"}}, status=404)
        return web.json_response({"name": name, "payload": {"data": base64.b64encode(secrets[name]).decode()}})

    async def google_token(self, request):
        """Checks the assertion's signature as Google would."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        form = await request.post()
        head, claim, signature = form["assertion"].split(".")
        padded = [part + "=" * (-len(part) % 4) for part in (head, claim, signature)]
        text = f"{head}.{claim}".encode()
        self.public_key.verify(base64.urlsafe_b64decode(padded[2]), text, padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(base64.urlsafe_b64decode(padded[1]))
        assert claims["iss"] == "robot@p1" and claims["exp"] > claims["iat"] and claims["aud"].endswith("token")
        return web.json_response({"access_token": "google-token", "expires_in": 3599, "token_type": "Bearer"})

    # ── Azure, and OAuth 2 in general ───────────────────────────────────────────────────

    async def azure(self, request):
        assert request.query["api-version"]
        if not request.headers.get("Authorization", "").startswith("Bearer tok-"):
            return web.json_response({"error": {"code": "Unauthorized"}}, status=401)
        if request.match_info["name"] != "db":
            return web.json_response({"error": {"code": "SecretNotFound"}}, status=404)
        version = request.match_info.get("version") or "newest"
        return web.json_response({"value": f"azure-{version}", "id": "https://x/secrets/db/1"})

    async def token(self, request):
        form = await request.post()
        self.tokens += 1
        self.requests.append(("token", dict(form), dict(request.headers)))
        basic = base64.b64encode(b"client:right").decode()
        if form.get("client_secret") != "right" and request.headers.get("Authorization") != f"Basic {basic}":
            return web.json_response({"error": "invalid_client", "error_description": "no such client"}, status=401)
        await asyncio.sleep(0.01)
        life = float(request.query.get("life", 3600))
        return web.json_response({"access_token": f"tok-{self.tokens}", "token_type": "Bearer", "expires_in": life})


@asynccontextmanager
async def managers():
    made = Managers()
    app = web.Application()
    app.router.add_route("*", "/v1/{path:auth/.*}", made.vault)
    app.router.add_get("/v1/{name:projects/[^:]*}:access", made.google)
    app.router.add_route("*", "/v1/{path:.*}", made.vault)
    app.router.add_post("/google-token", made.google_token)
    app.router.add_get("/secrets/{name}/{version:.*}", made.azure)
    app.router.add_post("/{tenant}/oauth2/v2.0/token", made.token)
    app.router.add_post("/token", made.token)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()
