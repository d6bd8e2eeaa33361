"""The network policy for tool kinds, sources and targets of plug-ins, which connect with drivers of their own.

The addresses in their parameters and credentials are resolved and checked before they are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.connections.address_gate import LOOPBACK
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.named_addresses import check_named_addresses, places_of
from noetl.core.model.tool import Host

_DESCRIBING = frozenset({"port", "user", "username", "password", "database", "db", "db_user", "db_port"})
_AUTH = ("auth", "credential", "credentials", "connection")


async def check_addresses(fields: Mapping[str, Any], host: Host) -> None:
    """Check the addresses of a call; AddressDenied if the network policy does not allow one."""
    if not hasattr(host, "address_check") or host.address_check() is None:
        return  # a host of a test, or one without a policy
    given = dict(fields)
    for name in _AUTH:
        if given.get(name) not in (None, ""):
            try:
                given[name] = await fields_of(given[name], host)
            except BadAuth:
                continue  # the plug-in reports it
    if not isinstance(fields.get("auth"), str) and not any(places_of(given)):
        described = {*given, *(given["auth"] if isinstance(given.get("auth"), Mapping) else ())}
        if described & _DESCRIBING:
            given["host"] = LOOPBACK  # the default of drivers
    await check_named_addresses(given, host.address_check)
