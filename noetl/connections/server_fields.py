"""The fields of a connection to a server, from `auth:`: those of a URL, a port that is a number, and TLS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from noetl.connections.auth import BadAuth, fields_of
from noetl.core.model.excerpt import excerpt
from noetl.core.model.tool import Host

if TYPE_CHECKING:
    import ssl

_OPTIONS = ("ca", "ssl", "tls", "verify")  # that a URL may have after `?`
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


async def server_fields(
    auth: Any, host: Host, *, schemes: tuple[str, ...], prefixes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The fields of `auth`; a URL is split into `scheme host port user password database`, and `port` is a number.

    BadAuth if the URL has another scheme or unknown options, or the port is no port. Values are not in the message: a
    URL contains a password."""
    found = await fields_of(auth, host, prefixes=prefixes)
    url = found.pop("dsn", None)
    if url:
        found |= _parts(str(url), schemes)
    if found.get("username") and not found.get("user"):
        found["user"] = found["username"]
    if found.get("port") not in (None, ""):
        found["port"] = port_number(found["port"])
    if found.get("host") and not re.fullmatch(
        r"[\w.-]+|\[?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?\]?", str(found["host"]), re.ASCII
    ):
        raise BadAuth("`host` of the connection must be a host name or an IP address, without port, path and user")
    return found


def port_number(value: Any) -> int:
    """A port, also as text."""
    text = str(value).strip()
    if isinstance(value, bool | float) or not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 65535):
        raise BadAuth(f"`port` must be a number from 1 to 65535, not {excerpt(value)}")
    return int(text)


def tls_context(fields: Mapping[str, Any]) -> ssl.SSLContext | None:
    """The TLS context of `tls` (or `ssl`), `ca` (a PEM text, or a file with it) and `verify`; None without TLS."""
    import ssl

    wanted = flag(fields, "tls", flag(fields, "ssl", False))
    authority = fields.get("ca")
    if not wanted and not authority:
        return None
    try:
        if authority and "-----BEGIN" in str(authority):
            context = ssl.create_default_context(cadata=str(authority))
        else:
            context = ssl.create_default_context(cafile=str(authority) if authority else None)
    except (ssl.SSLError, ValueError):
        raise BadAuth("`ca` of the connection is not a certificate in PEM format") from None
    except OSError as problem:
        raise BadAuth(f"`ca` of the connection cannot be read: {problem.strerror}: {authority}") from None
    if not flag(fields, "verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A field that is true or false, also as text."""
    value = fields.get(name)
    if value in (None, ""):
        return default
    if isinstance(value, bool):
        return value
    found = _FLAGS.get(str(value).strip().lower())
    if found is None:
        raise BadAuth(f"`{name}` of the connection must be true or false, not {excerpt(value)}")
    return found


def _parts(url: str, schemes: tuple[str, ...]) -> dict[str, Any]:
    form = f"{schemes[0]}://user:password@host:port/name"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise BadAuth(f"the URL of the connection has an invalid host or port; write {form}") from None
    scheme = parts.scheme.lower().partition("+")[0]
    if scheme not in schemes:
        raise BadAuth(f"the URL of the connection must be {form}, not {scheme or 'a text'}://")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        known = ", ".join(_OPTIONS)
        raise BadAuth(f"the URL of the connection has the unknown option {unknown[0]!r}; known: {known}")
    found = {
        "host": parts.hostname, "user": parts.username, "password": parts.password, "database": parts.path.strip("/"),
    }  # fmt: skip
    named = {name: unquote(value) for name, value in found.items() if value}
    return {"scheme": scheme, **options, **named, **({"port": port} if port is not None else {})}
