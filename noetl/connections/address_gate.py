"""The network policy for drivers that open their own sockets: the address is resolved and checked before they connect.

Where the driver accepts an address beside the name of a server (Postgres, NATS), it connects to the checked address, so
that a second answer of the name server cannot replace it. Object stores and DuckDB resolve the name again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from noetl.errors import StoreUnavailable

Allows = Callable[[str], bool]
LOOPBACK = "127.0.0.1"


class AddressDenied(StoreUnavailable):
    """The network policy does not allow the address of a connection."""

    def __init__(self, place: str, address: str) -> None:
        super().__init__(
            f"{place}: the network policy of this installation does not allow the address {address}; "
            "the setting NOETL_PRIVATE_NETWORKS allows private networks",
            kind="client_error",
        )


async def allowed_addresses(host: str, allows: Allows, *, every: bool = False) -> list[str]:
    """The allowed addresses of a server; AddressDenied if there is none, or (`every`) if one is denied.

    A path is a local socket and counts as the loopback address. A name that cannot be resolved has no addresses."""
    if host.startswith(("/", "@", "\\")):
        if not allows(LOOPBACK):
            raise AddressDenied(host, "of a local socket")
        return []
    found = await _resolved(host.strip("[]"))
    denied = [address for address in found if not allows(address)]
    if denied and (every or len(denied) == len(found)):
        raise AddressDenied(host, ", ".join(sorted(denied)))
    return [address for address in found if address not in denied]


async def check_urls(urls: Iterable[str], allows: Allows) -> None:
    """Check the hosts of addresses (`scheme://host:port/...` or `host:port`) of a driver that resolves them itself."""
    for url in urls:
        host = host_of(url)
        if not host:
            raise AddressDenied(url, "without a host")
        await allowed_addresses(host, allows, every=True)


def host_of(url: str) -> str:
    """The host of an address; empty if it cannot be read."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


async def _resolved(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host.partition("%")[0]))]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
