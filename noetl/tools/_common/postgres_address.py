"""The connection string of kinds that connect to PostgreSQL, with the network policy applied to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.connections import postgres
from noetl.connections.address_gate import LOOPBACK, AddressDenied, Allows, allowed_addresses
from noetl.connections.auth import fields_of
from noetl.core.model.tool import Host

_OVERRIDES = ("dsn", "host", "port", "user", "password", "database", "sslmode")
_PLACES = ("dsn", "host", "hostname", "server", "hostaddr")


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
    if options.get("service") and not allows(LOOPBACK):
        raise AddressDenied(f"service={options['service']}", "of a service file")
    names = options.get("host", "").split(",")
    given = options.get("hostaddr", "").split(",") if options.get("hostaddr") else names
    names = names if len(names) == len(given) else given
    ports = options.get("port", "").split(",")
    ports = ports if len(ports) == len(given) else ports[:1] * len(given)
    servers = [
        (name, address, port)
        for name, place, port in zip(names, given, ports, strict=True)
        for address in await allowed_addresses(place, allows) or [""]
    ]
    hosts, addresses, numbers = (",".join(parts) for parts in zip(*servers, strict=True))
    options |= {"host": hosts, "port": numbers}
    return make_conninfo("", **(options | {"hostaddr": addresses} if addresses.strip(",") else options))
