"""The network policy: the addresses that tools of an installation may connect to."""

from __future__ import annotations

import ipaddress

from msgspec import Struct

# Reserved blocks (protocol assignments, relays) that some versions of Python classify as public.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23", "2002::/16", "3fff::/20", "5f00::/16")
)


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
            parsed = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        parsed = mapped if mapped is not None else parsed
        if any(parsed in ipaddress.ip_network(network, strict=False) for network in self.networks):
            return True
        return parsed.is_global and not parsed.is_multicast and not any(parsed in network for network in _SPECIAL)
