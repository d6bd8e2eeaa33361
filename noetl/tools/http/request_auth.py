"""Converts `auth:` of an http task, a name or a mapping, to headers and query parameters.

    auth: github                        a keychain entry or stored credential
    auth: {credential: github}          the same
    auth: {type: bearer, token: ...}    also basic, api_key, oauth2, headers

The type of a credential without `type` is inferred from its fields: a user and password are basic, a token (or an
entry with a single value) is bearer, an api key is a header.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, field

from noetl.connections.http.client import Allows, HttpFailure
from noetl.connections.oauth2 import ClientCredentials, tokens
from noetl.errors import SecretUnavailable
from noetl.tools._common.http_fields import AUTH_KINDS

Lookup = Callable[[str], Awaitable[Mapping[str, Any]]]

_NAME = re.compile(r"^[A-Za-z_][\w./ -]{0,63}$")
# Authentication schemes that are not supported: inferring another type would send wrong data.
_UNSUPPORTED = frozenset(
    {"digest", "ntlm", "kerberos", "negotiate", "spnego", "hawk", "oauth1", "aws", "aws4", "sigv4"}
)
_NAME_KEYS = ("credential", "name", "entry", "key")


class Auth(Struct, frozen=True):
    """Headers and query parameters that authenticate a request."""

    headers: dict[str, str] = field(default_factory=dict)
    params: tuple[tuple[str, str], ...] = ()
    grant: ClientCredentials | None = None  # the grant of an OAuth token: a rejected token is fetched again


async def authenticate(given: Any, lookup: Lookup, allows: Allows | None = None) -> Auth:
    """The headers and parameters for `auth:`; HttpFailure of kind `auth` if it is invalid."""
    if given is None or given == "":
        return Auth()
    if isinstance(given, str):
        return await _from_string(given, lookup, allows)
    if not isinstance(given, Mapping):
        raise HttpFailure("auth", "`auth` must be the name of a keychain entry, or a mapping")
    fields = dict(given)
    if len(fields) == 1:
        [(key, value)] = fields.items()
        if key in AUTH_KINDS and key not in ("token", "header"):  # {basic: {username, password}}, {bearer: token}
            fields = {"type": key, **value} if isinstance(value, Mapping) else {"type": key, "value": value}
        elif isinstance(value, Mapping) and key != "headers":
            fields = dict(value)  # an alias: {openai: {type: bearer, token: ...}}
    name = next((fields[key] for key in _NAME_KEYS if _is_entry_name(fields, key)), None)
    if name is not None:
        stored = await _look_up(str(name), lookup)
        fields = {**stored, **{key: value for key, value in fields.items() if fields.get(key) != name}}
    return await _from_fields(fields, allows)


def _is_entry_name(fields: Mapping[str, Any], key: str) -> bool:
    """Whether this key contains the name of an entry; `key` does only if it is not an API key."""
    if not isinstance(fields.get(key), str):
        return False
    if key == "key":
        return set(fields) <= {"key", "type"} and AUTH_KINDS.get(str(fields.get("type", "")).lower()) != "api_key"
    return key == "credential" or set(fields) <= {key, "type", "header", "in"}


async def _from_string(text: str, lookup: Lookup, allows: Allows | None) -> Auth:
    scheme, _, rest = text.partition(" ")
    if rest and scheme.lower() in ("bearer", "basic", "token"):
        return Auth({"Authorization": text})
    if not _NAME.match(text):
        return Auth({"Authorization": f"Bearer {text}"})  # not a valid name, so it is a token
    return await _from_fields(await _look_up(text, lookup), allows)


async def _look_up(name: str, lookup: Lookup) -> Mapping[str, Any]:
    try:
        return await lookup(name)
    except SecretUnavailable as missing:
        raise HttpFailure("auth", str(missing)) from missing


async def _from_fields(fields: Mapping[str, Any], allows: Allows | None) -> Auth:
    declared = str(fields.get("type") or fields.get("auth_type") or fields.get("scheme") or "").lower()
    if declared in _UNSUPPORTED:
        supported = "basic, bearer, api_key, oauth2, headers"
        raise HttpFailure("auth", f"`auth` of type {declared} is not supported; supported types: {supported}")
    kind = AUTH_KINDS.get(declared) or _infer_kind(fields)
    if kind == "basic":
        user = _first(fields, "username", "user", "login", "client_id") or ""
        password = _first(fields, "password", "secret", "value") or ""
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return Auth({"Authorization": f"Basic {pair}"})
    if kind == "bearer":
        token = _first(fields, "token", "access_token", "bearer", "value", "key")
        if not token:
            raise HttpFailure("auth", "`auth` of type bearer has no `token`")
        prefix = str(fields.get("prefix") or "Bearer").strip()
        return Auth({"Authorization": f"{prefix} {token}"})
    if kind == "api_key":
        return _api_key(fields)
    if kind == "oauth2":
        missing = [name for name in ("token_url", "client_id", "client_secret") if not fields.get(name)]
        if missing:
            raise HttpFailure("auth", f"`auth` of type oauth2 has no {', '.join(f'`{name}`' for name in missing)}")
        scope = fields.get("scope") or fields.get("scopes")
        grant = ClientCredentials(
            token_url=str(fields["token_url"]),
            client_id=str(fields["client_id"]),
            client_secret=str(fields["client_secret"]),
            scope=" ".join(map(str, scope)) if isinstance(scope, list) else scope,
            audience=fields.get("audience"),
            basic=str(fields.get("client_auth", "")).lower() == "basic",
        )
        return Auth({"Authorization": f"Bearer {await tokens().get(grant, allows=allows)}"}, grant=grant)
    if kind == "headers":
        headers = fields.get("headers")
        if not isinstance(headers, Mapping):
            raise HttpFailure("auth", "`auth` of type headers has no `headers` mapping")
        return Auth({str(name): str(value) for name, value in headers.items()})
    found = ", ".join(sorted(map(str, fields))) or "none"
    raise HttpFailure(
        "auth",
        f"the type of `auth` cannot be inferred from its fields ({found}). Set `type: "
        "basic|bearer|api_key|oauth2|headers`, or use a credential with username and password, a token, or an api_key",
    )


def _infer_kind(fields: Mapping[str, Any]) -> str | None:
    if fields.get("token_url"):
        return "oauth2"
    if fields.get("username") or fields.get("user") or fields.get("login"):
        return "basic"
    if fields.get("token") or fields.get("access_token") or fields.get("bearer"):
        return "bearer"
    if fields.get("api_key") or fields.get("apikey"):
        return "api_key"
    if fields.get("value"):
        return "api_key" if fields.get("header") or fields.get("in") else "bearer"
    return "headers" if isinstance(fields.get("headers"), Mapping) else None


def _api_key(fields: Mapping[str, Any]) -> Auth:
    key = _first(fields, "api_key", "apikey", "value", "key", "token")
    if not key:
        raise HttpFailure("auth", "`auth` of type api_key has no `api_key`")
    if str(fields.get("in") or fields.get("location") or "header").lower() == "query":
        name = _first(fields, "param", "query_param", "name") or "api_key"
        return Auth(params=((name, key),))
    name = _first(fields, "header", "header_name", "name") or "X-API-Key"
    prefix = fields.get("prefix")
    return Auth({name: f"{str(prefix).strip()} {key}" if prefix else key})


def _first(fields: Mapping[str, Any], *names: str) -> str | None:
    for name in names:
        if fields.get(name) not in (None, ""):
            return str(fields[name])
    return None
