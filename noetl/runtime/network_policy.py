"""The network policy: the addresses that tools of an installation may connect to."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from msgspec import Struct

# Reserved blocks (protocol assignments, relays) that some versions of Python classify as public, former site-local
# addresses, and the public address of the platform services of Azure's virtual machines.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "64:ff9b:1::/48", "2001::/23", "2002::/16"),
        *("3fff::/20", "5f00::/16", "fec0::/10"),
    )
)


# IPv6 prefixes with an IPv4 address in the last 32 bits: compatible, translated, NAT64.
_EMBEDDING_IPV4 = tuple(ipaddress.IPv6Network(text) for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96"))


@lru_cache(4096)
def canonical(address: str) -> str:
    """The canonical form of an address; an IPv4 address that is embedded in an IPv6 address as IPv4."""
    number = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    if isinstance(number, ipaddress.IPv4Address):
        return str(number)
    inner = number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None)
    if inner is None and int(number) > 1 and any(number in network for network in _EMBEDDING_IPV4):
        inner = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
    return str(inner or number)


class AddressPolicy(Struct, frozen=True):
    """The addresses that tools may connect to: public ones, and the listed private networks.

    `private` True (`noetl run` on a personal machine) allows all."""

    private: bool = True
    networks: tuple[str, ...] = ()

    def allows(self, address: str) -> bool:
        """Whether tools may connect to this IP address."""
        if self.private:
            return True
        try:
            parsed = ipaddress.ip_address(canonical(address))
            given = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
        except ValueError:
            return False
        if any(parsed in ipaddress.ip_network(network, strict=False) for network in self.networks):
            return True
        # Translators read an address inside of a special block (6to4, Teredo, local NAT64) in ways of their own.
        is_special = any(each in network for network in _SPECIAL for each in (parsed, given))
        return parsed.is_global and not parsed.is_multicast and not is_special
