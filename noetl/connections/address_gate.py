"""The network policy for drivers that open their own sockets: the address is resolved and checked before they connect.

Where the driver accepts an address beside the name of a server (Postgres, NATS), it connects to the checked address, so
that a second answer of the name server cannot replace it. Object stores and DuckDB connect through `gate_proxy`.
Addresses that drivers may parse differently than this module are refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

from noetl.errors import StoreUnavailable

Allows = Callable[[str], bool]
LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"(?:[\w-]+\.)*(?:[\w-]+|[A-Za-z][\w-]*\.)", re.ASCII)  # a number has no dot at its end
_URL = re.compile(
    r"(?:[A-Za-z][\w+.-]*://)?(?:[^\s/?#@\\]*@)?(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+)(?::\d+)?(?:[/?#][^\s\\]*)?",
    re.ASCII,
)


class AddressDenied(StoreUnavailable):
    """The network policy does not allow the address of a connection."""

    def __init__(self, place: str, address: str) -> None:
        super().__init__(
            f"{place}: the network policy of this installation does not allow the address {address}; "
            "the setting NOETL_PRIVATE_NETWORKS allows private networks",
            kind="client_error",
        )


class NameUnresolved(StoreUnavailable):
    """The name of a server has no address now; a driver that asked again might get one that was not checked."""

    def __init__(self, host: str) -> None:
        super().__init__(f"the host name {host!r} cannot be resolved", kind="connection")


async def allowed_addresses(host: str, allows: Allows, *, every: bool = False) -> list[str]:
    """The allowed addresses of a server; AddressDenied if there is none, or (`every`) if one is denied.

    A path is a local socket and counts as the loopback address, and so does an empty name. NameUnresolved if the name
    has no address."""
    if not host or host.startswith(("/", "@", "\\")):
        if not allows(LOOPBACK):
            raise AddressDenied(host or "without a host", "of a local socket")
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
            raise AddressDenied(url, "without a valid host")
        await allowed_addresses(host, allows, every=True)


def host_of(url: str) -> str:
    """The host of an address; empty if it has none, or if parsers of URLs may read it differently."""
    found = _URL.fullmatch(url)
    return found[1].strip("[]").lower() if found else ""


async def _resolved(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host.partition("%")[0] if ":" in host else host))]
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise AddressDenied(
            repr(host), "of a host with other characters than letters, digits, dots and dashes (write xn--... names)"
        )
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        raise NameUnresolved(host) from None
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
