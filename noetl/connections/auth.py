"""Parses `auth:` of a tool: the name of a credential, a DSN or URL, or a mapping of either.

Fields are read with and without a prefix (`db_host`, `nats_url`), as stored credentials spell them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from noetl.core.model.tool import Host


class BadAuth(ValueError):
    """`auth` has an invalid type."""


_NAMES = ("credential", "key", "name")
_WHOLE = ("dsn", "url", "uri", "connection_string", "value")


async def fields_of(auth: Any, host: Host, *, prefixes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The connection's fields; a DSN or URL is the field `dsn`."""
    if auth in (None, ""):
        return {}
    if isinstance(auth, str):
        if is_dsn(auth):
            return {"dsn": auth.strip()}
        return plain_fields(await host.credential(auth), prefixes)
    if isinstance(auth, Mapping):
        given = dict(auth)
        only = next(iter(given), "") if len(given) == 1 else ""
        if only not in ("", "data", "headers") and isinstance(given[only], Mapping):
            given = dict(given[only])  # an alias of the connection: {api: {type: bearer, token: ...}}
        # {credential: pg} or {source: credential, key: pg} names one; {host: ..., user: ...} is one.
        name = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
        if name is None or _describes_a_server(given, prefixes):
            return plain_fields(given, prefixes)
        rest = {key: value for key, value in given.items() if key not in (*_NAMES, "source", "type", "kind")}
        return {**await fields_of(name, host, prefixes=prefixes), **plain_fields(rest, prefixes)}
    raise BadAuth(f"auth must be the name of a credential, a DSN, or a mapping, not {type(auth).__name__}")


def is_dsn(text: str) -> bool:
    """Whether the text is a connection's address rather than a credential's name."""
    return "://" in text or ("=" in text and " " in text.strip()) or text.startswith(("host=", "dbname=", "service="))


def plain_fields(fields: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields without their prefixes; a field without a prefix has precedence."""
    found: dict[str, Any] = {}
    nested = fields.get("data")
    for key, value in (nested if isinstance(nested, Mapping) else fields).items():
        stripped = next((key[len(prefix) :] for prefix in prefixes if key.startswith(prefix)), None)
        if stripped is None:
            found[key] = value
        else:
            found.setdefault(stripped, value)
    for name in _WHOLE:
        if isinstance(found.get(name), str) and (name != "value" or is_dsn(found[name])):
            found.setdefault("dsn", found[name])
    return {key: value for key, value in found.items() if value is not None}


def renamed(fields: Mapping[str, Any], spellings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields by the driver's own names: the first of a name's spellings that is given."""
    found = {}
    for name, accepted in spellings.items():
        value = next((fields[each] for each in accepted if fields.get(each) not in (None, "")), None)
        if value is not None:
            found[name] = value
    return found


def _describes_a_server(given: Mapping[str, Any], prefixes: tuple[str, ...]) -> bool:
    return any(field in plain_fields(given, prefixes) for field in ("host", "dsn"))
