"""The connection string of kinds that connect to PostgreSQL, with the network policy applied to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.connections import postgres
from noetl.connections.address_gate import LOOPBACK, AddressDenied, Allows, NameUnresolved, allowed_addresses
from noetl.connections.auth import fields_of
from noetl.connections.postgres import BadAddress
from noetl.core.model.tool import Host
from noetl.errors import StoreUnavailable

_OVERRIDES = ("dsn", "host", "port", "user", "password", "database", "sslmode")
_PLACES = ("dsn", "host", "hostname", "server", "hostaddr")
_UNCHECKED = ("service", "servicefile", "oauth_issuer", "sslkeylogfile")  # name other servers, or files to write


async def postgres_conninfo(host: Host, fields: Mapping[str, Any], **more: Any) -> str:
    """The connection string of the fields of a task, a source or a target."""
    credential = await fields_of(fields.get("auth"), host, prefixes=postgres.PREFIXES)
    overrides = {name: fields[name] for name in _OVERRIDES if fields.get(name)}
    connection = {**credential, **overrides}
    info = postgres.conninfo({**connection, **more})
    allows = host.address_check(*(connection[name] for name in _PLACES if connection.get(name)))
    return info if allows is None else await _checked(info, allows)


async def _checked(info: str, allows: Allows) -> str:
    """The connection string with the allowed addresses of its servers, to which libpq connects."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    options = {name: str(value) for name, value in conninfo_to_dict(info).items()}
    unchecked = next((name for name in _UNCHECKED if options.get(name)), None)
    if unchecked and not allows(LOOPBACK):
        raise AddressDenied(f"{unchecked}={options[unchecked]}", "of this option")
    given = {name: options[name].split(",") for name in ("host", "hostaddr", "port") if options.get(name)}
    count = len(given.get("hostaddr") or given["host"])
    names, places, ports = (_filled(given.get(name, [""]), count) for name in ("host", "hostaddr", "port"))
    try:
        servers = [
            (name or place, address, port)
            for name, place, port in zip(names, places, ports, strict=True)
            for address in await allowed_addresses(place or name, allows) or [""]
        ]
    except NameUnresolved as problem:
        raise StoreUnavailable(str(problem), kind="db.connection") from None
    hosts, addresses, numbers = (",".join(parts) for parts in zip(*servers, strict=True))
    options |= {"host": hosts, "port": numbers}
    return make_conninfo("", **(options | {"hostaddr": addresses} if addresses.strip(",") else options))


def _filled(parts: list[str], count: int) -> list[str]:
    """The parts of an option with several servers; a single one is that of all servers."""
    if len(parts) not in (1, count):
        raise BadAddress(f"`host`, `hostaddr` and `port` of the connection have different numbers of servers ({count})")
    return parts if len(parts) == count else parts * count
