"""Network addresses that an untrusted URL may lead to (protection against SSRF).

The tables are our own, because those of `ipaddress` differ between versions of Python; a test
compares both. Only addresses that are listed as public are allowed. All of IPv6 except global
unicast is refused, and so is every form that embeds an IPv4 address in an IPv6 one (mapped, NAT64,
6to4, Teredo), because its destination depends on routers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from strata.shared.web.errors import ForbiddenUrlError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PRIVATE_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # shared by the customers of a provider (CGNAT)
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local, and the metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # Teredo, benchmarks, ORCHID and other protocol assignments
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)
# Addresses that end with an IPv4 one: compatible, mapped, translated (RFC 2765) and NAT64.
_CARRIERS = tuple(
    map(
        ipaddress.IPv6Network,
        ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"),
    )
)
_6TO4 = ipaddress.IPv6Network("2002::/16")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_V4_BITS = 0xFFFFFFFF
# No setting allows these: the metadata of a cloud contains the credentials of the machine.
_NEVER = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "169.254.0.0/16",  # AWS, Azure, GCP, Oracle, DigitalOcean and others
            "100.100.100.200/32",  # Alibaba
            "192.0.0.192/32",  # Oracle
            "168.63.129.16/32",  # Azure's wire server, a public address
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/128",
            "fd00:ec2::/32",  # AWS
            "fd20:ce::/32",  # GCP
            "fe80::/10",
            "ff00::/8",
        ),
    )
)


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Returns networks such as ``10.1.0.0/16``; a lone address is a network of one.

    Raises:
        ValueError: A text is not a network, or the network may never be reached.
    """
    networks = tuple(ipaddress.ip_network(text.strip()) for text in texts)
    for network in networks:
        for never in _NEVER:
            if network.version == never.version and network.subnet_of(never):  # type: ignore[arg-type]
                raise ValueError(f"{network} may not be allowed: it lies in {never}")
    return networks


def is_public(address: Address) -> bool:
    """Returns whether an address belongs to the public Internet, and to no private network."""
    if any(address in network for network in _NEVER):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _PRIVATE_V4)
    if address.scope_id is not None:
        return False
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Returns whether an address lies in one of the explicitly allowed networks."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    if any(
        candidate in network for candidate in (address, *_carried(address)) for network in _NEVER
    ):
        return False
    return any(address in network for network in allowed)


def _carried(address: Address) -> list[ipaddress.IPv4Address]:
    """Returns the IPv4 addresses that an IPv6 address can lead to, by translation or tunnel."""
    # The unspecified and the loopback address have the form of IPv4-compatible ones.
    if isinstance(address, ipaddress.IPv4Address) or int(address) <= 1:
        return []
    bits = int(address)
    embedded = [bits & _V4_BITS for network in _CARRIERS if address in network]
    if address in _6TO4:
        embedded.append(bits >> 80 & _V4_BITS)
    if address in _TEREDO:
        # The tunnel's server, and its client, whose bits are inverted.
        embedded += [bits >> 64 & _V4_BITS, ~bits & _V4_BITS]
    return [ipaddress.IPv4Address(bits) for bits in embedded]


def check_addresses(texts: Sequence[str], allowed: Sequence[Network] = ()) -> list[Address]:
    """Returns the addresses of a name, if all of them may be reached.

    A single forbidden address refuses the name: a name with public and private addresses is an
    attack, and a connection could use any of them.

    Raises:
        ForbiddenUrlError: The name has no address, or one that may not be reached.
    """
    addresses: list[Address] = []
    for text in texts:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise ForbiddenUrlError(f"{text!r} is not a network address.") from None
        if not is_public(address) and not is_allowed(address, allowed):
            # Without the address, because internal addresses are not shown to callers.
            raise ForbiddenUrlError(
                "The URL leads to a private or reserved network, which may not be reached."
            )
        if address not in addresses:
            addresses.append(address)
    if not addresses:
        raise ForbiddenUrlError("The host has no address.")
    return addresses
