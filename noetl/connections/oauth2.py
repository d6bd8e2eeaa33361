"""OAuth 2 client credentials: a token is fetched once, shared, and renewed before it expires."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from noetl.connections.http.client import Allows, HttpFailure, Request, exchange, shown_url
from noetl.core.model.tool import Timeout
from noetl.runtime.resources import per_loop

MARGIN_S = 60.0  # renew this long before the end, or at nine tenths of a short life
LIFE_S = 300.0  # of a token without `expires_in`
MAX_BYTES = 1 << 20


class ClientCredentials(Struct, frozen=True):
    """A client-credentials grant; `basic` sends the client's id and secret in a header, not in the form."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str | None = None
    audience: str | None = None
    basic: bool = False

    def key(self) -> str:
        """Return a key for this grant that does not reveal its secret."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class AccessToken(Struct, frozen=True):
    """An access token and when (by the loop's clock) to fetch the next one."""

    access_token: str
    renew_at: float


class TokenCache:
    """The running loop's tokens; one request at a time for each."""

    def __init__(self) -> None:
        self._tokens: dict[str, AccessToken] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, grant: ClientCredentials, *, allows: Allows | None = None) -> str:
        """Return a token that is valid for a while; raise HttpFailure if it cannot be fetched."""
        key, clock = grant.key(), asyncio.get_running_loop().time
        token = self._tokens.get(key)
        if token is not None and clock() < token.renew_at:
            return token.access_token
        async with self._locks.setdefault(key, asyncio.Lock()):
            token = self._tokens.get(key)
            if token is None or clock() >= token.renew_at:
                token = self._tokens[key] = await _fetch(grant, allows, clock())
        return token.access_token

    def forget(self, grant: ClientCredentials) -> None:
        """Drop a token that a server has refused before it expired."""
        self._tokens.pop(grant.key(), None)


def tokens() -> TokenCache:
    """The running loop's tokens."""
    return per_loop(TokenCache, TokenCache)


async def _fetch(grant: ClientCredentials, allows: Allows | None, now: float) -> AccessToken:
    import base64
    from urllib.parse import quote_plus, urlencode

    form = {"grant_type": "client_credentials"}
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    if grant.basic:
        pair = f"{quote_plus(grant.client_id)}:{quote_plus(grant.client_secret)}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form |= {"client_id": grant.client_id, "client_secret": grant.client_secret}
    if grant.scope:
        form["scope"] = grant.scope
    if grant.audience:
        form["audience"] = grant.audience
    data = urlencode(form).encode()
    timeout = Timeout(connect=10, read=30, total=60)
    request = Request("POST", grant.token_url, headers, body=lambda: data, timeout=timeout, redirects=0)
    async with exchange(request, allows) as answer:
        body = b""
        async for chunk in answer.chunks():
            body += chunk
            if len(body) > MAX_BYTES:
                raise HttpFailure(
                    "parse", f"the token response of {shown_url(grant.token_url)} is larger than {MAX_BYTES:,} bytes"
                )
    place = shown_url(grant.token_url)
    decoded: Any = None
    with suppress(msgspec.DecodeError):
        decoded = msgspec.json.decode(body)
    fields = decoded if isinstance(decoded, dict) else {}
    if answer.status >= 400:
        why = fields.get("error_description") or fields.get("error") or answer.reason
        kind = "auth" if answer.status < 500 and answer.status != 429 else "server_error"
        raise HttpFailure(kind, f"the token request to {place} failed: HTTP {answer.status} {why}")
    token = fields.get("access_token")
    if not isinstance(token, str) or not token:
        raise HttpFailure("parse", f"the token response of {place} has no access_token")
    try:
        life = float(fields.get("expires_in") or LIFE_S)
    except (TypeError, ValueError):
        life = LIFE_S
    return AccessToken(token, now + life - min(MARGIN_S, life * 0.1))
