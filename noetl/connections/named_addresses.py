"""Finds the addresses that parameters name, for drivers that connect by themselves.

A parameter is an address by its name (`host`, `servers`, `url`, `dsn`, ...). In the mappings that describe the
connection (`auth`, `config`), every URL is an address too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from noetl.connections.address_gate import LOOPBACK, Allows, NameUnresolved, allowed_addresses

_NAMES = re.compile(
    r"(?:[\w.]+[_.])?(?:host|hosts|hostname|hostaddr|hostlist|server|servers|broker|brokers|endpoint|endpoint_url|node|nodes|address|"
    r"addresses|peers|sentinels|startup_nodes|proxy|socket|unix_socket|url|uri|dsn|connection_string|broker\.list)"
)
_CONNECTION = frozenset({"auth", "credential", "connection", "config", "options", "settings", "client"})
_LIBPQ = re.compile(r"(?:^|[\s;])(?:host|hostaddr|server|data source|addr|address)\s*=\s*'?([^\s;']+)", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][\w+.-]*://([^/?#\s]*)([^\s#]*)")
_BUCKETS = re.compile(r"(?:s3|s3a|gs|gcs|az|abfss?|wasbs?)://")
_LOCAL = re.compile(r"(?:file|unix|sqlite|duckdb)\b")
_HOST = re.compile(r"(?:[\w.-]+@)?(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::\d+)?", re.ASCII)


async def check_named_addresses(fields: Mapping[str, Any], address_check: Callable[[str], Allows | None]) -> None:
    """Check the addresses in parameters; AddressDenied if the network policy does not allow one."""
    for place in places_of(fields):
        allows = address_check(place)
        if allows is None:
            continue
        for name in hosts_of(place):
            if re.search(r"\s", name):
                continue  # no name of a server
            with suppress(NameUnresolved):  # the driver reports it; the text may also be no name of a server
                await allowed_addresses(name or LOOPBACK, allows, every=True)


def places_of(fields: Mapping[str, Any], *, is_connection: bool = False) -> Iterator[str]:
    """The texts of parameters that are addresses; other mappings than those of the connection are data."""
    for name, value in fields.items():
        key = str(name).lower()
        if isinstance(value, Mapping):
            if is_connection or key in _CONNECTION:
                yield from places_of(value, is_connection=True)
            continue
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, str) and each and (_NAMES.fullmatch(key) or (is_connection and _URL.match(each))):
                yield each
            elif is_connection and isinstance(each, str) and each.lstrip().startswith("{"):  # such as a service account
                with suppress(ValueError):  # the driver reports it
                    yield from places_of(json.loads(each), is_connection=True)


def hosts_of(place: str) -> list[str]:
    """The hosts of an address: of a URL, of a list of servers (also of URLs), or of a connection string."""
    text = place.strip().removeprefix("jdbc:")
    if _BUCKETS.match(text):
        return []
    found = [] if _URL.match(text) else _LIBPQ.findall(text)
    if found:
        return [host for names in found for each in names.split(",") for host in _hosts(each)]
    return [host for server in text.split(",") for host in _hosts_of_server(server.strip())]


def _hosts_of_server(text: str) -> list[str]:
    url = _URL.match(text)
    if url is not None:
        if _LOCAL.match(text) and not url[1]:
            return ["/"] if text.startswith("unix") else []
        more = re.findall(r"[?&](?:host|hostaddr|server|unix_socket)=([^&]*)", url[2])
        return [host for each in (url[1], *more) for host in _hosts(each)]
    if "=" in text or (re.search(r"[/\\]|\.(?:db|sqlite|duckdb)$", text) and not text.startswith(("/", "@"))):
        first = re.split(r"[/\\=]", text)[0]
        return _hosts(first) if _HOST.fullmatch(first) else []  # a file, or a connection string without a server
    return _hosts(text)


def _hosts(text: str) -> list[str]:
    """The hosts of `host:port`, `user@host`, `[::1]:port`, `tcp(host:port)` or a path of a socket.

    Some parsers end the host at a backslash, others do not: both readings are hosts."""
    text = unquote(re.sub(r"^\w+\((.*)\)$", r"\1", text.strip()))
    if text.startswith(("/", "@")):
        return ["/"]
    whole = re.split(r"[/?#]", text)[0]
    return [_host(each.rpartition("@")[2]) for each in dict.fromkeys((whole, whole.partition("\\")[0]))]


def _host(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]
