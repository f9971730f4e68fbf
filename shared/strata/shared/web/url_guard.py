"""Checks of untrusted URLs against SSRF: their form, and the addresses that they lead to.

There are three checks. `parse_url` accepts only URLs that every parser reads in the same way. An
address in a URL is checked before any resolver is asked. A name is resolved once, all its
addresses are checked, and the connection is made to these addresses; a second look-up could
return other ones (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urljoin

import idna

from strata.shared.web.addresses import Address, check_addresses, is_allowed, read_networks
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.metadata import is_metadata_name

MAX_URL_CHARS = 4096
PORTS = {"http": 80, "https": 443}
_MAX_ADDRESSES = 64
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<rest>[/?#].*)?", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_UNWRITABLE = re.compile("[\x00-\x20\x7f\\\\\ud800-\udfff]")
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Suffixes of names that resolve differently, or only, inside a private network.
_INTERNAL_SUFFIXES = frozenset(
    (
        *("localhost", "local", "localdomain", "internal", "intranet", "private", "corp", "home"),
        *("lan", "arpa", "svc", "invalid", "onion", "alt"),
    )
)

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """A parsed URL.

    Attributes:
        host: The name in lower-case ASCII without a final dot, or the address.
        literal: The address, if the URL names one instead of a host.
        path: Path and query, in ASCII; begins with ``/``.
    """

    scheme: str
    host: str
    port: int
    path: str
    literal: Address | None = None

    @property
    def authority(self) -> str:
        """Host and port in the form of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """The origin (scheme, host, port) that credentials belong to."""
        return self.scheme, self.host, self.port

    @property
    def url(self) -> str:
        """The normalised URL."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def join(self, location: str) -> UrlTarget:
        """Returns the target of a redirect.

        Raises:
            ForbiddenUrlError: The location is not a URL that may be fetched.
        """
        # Checked before joining, which would silently drop some of these characters.
        if _UNWRITABLE.search(location):
            raise ForbiddenUrlError("The redirect has spaces, backslashes or control characters.")
        return parse_url(urljoin(self.url, location))


class TargetCheck(Protocol):
    """Decides whether a target may be reached, and at which addresses."""

    async def resolve(self, target: UrlTarget) -> list[Address]:
        """Returns the addresses to connect to, in order of preference.

        Raises:
            ForbiddenUrlError: The target may not be reached.
            FetchError: Its name cannot be resolved.
        """
        ...


def parse_url(text: str) -> UrlTarget:
    """Parses a URL; refuses URLs that parsers could read differently.

    Raises:
        ForbiddenUrlError: It is not an http or https URL, has no valid host, contains credentials
            or is too long.
    """
    text = text.strip(" \t\r\n")
    if len(text) > MAX_URL_CHARS:
        raise ForbiddenUrlError(f"The URL is longer than {MAX_URL_CHARS} characters.")
    if _UNWRITABLE.search(text):
        raise ForbiddenUrlError("The URL has spaces, backslashes or control characters in it.")
    match = _URL.fullmatch(text)
    if match is None:
        scheme = _SCHEME.match(text)
        if scheme is not None and scheme[0].lower() not in ("http:", "https:"):
            raise ForbiddenUrlError(
                f"Only http and https URLs can be fetched, not {scheme[0][:20]}"
            )
        raise ForbiddenUrlError("This is not a full URL; a URL begins with https:// or http://.")
    scheme_name = match["scheme"].lower()
    host, port, literal = _read_authority(match["authority"], PORTS[scheme_name])
    path = _read_path(match["rest"] or "")
    return UrlTarget(scheme_name, host, port, path, literal)


def _read_authority(text: str, default_port: int) -> tuple[str, int, Address | None]:
    if "@" in text:
        raise ForbiddenUrlError("A URL with a user name or password in it cannot be fetched.")
    if "%" in text:
        raise ForbiddenUrlError("The host of the URL may have no % in it.")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ForbiddenUrlError("The host or the port of the URL is malformed.")
    port = int(match["port"]) if match["port"] else default_port
    if not 0 < port < 65536:
        raise ForbiddenUrlError(f"There is no port {port}.")
    host = match["host"]
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ForbiddenUrlError(f"{host} is not an IPv6 address.") from None
        return str(address), port, address
    host = _read_name(host)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        return _read_ipv4(host, port)
    return host, port, None


def _read_ipv4(host: str, port: int) -> tuple[str, int, Address]:
    # Octal, hexadecimal and short spellings are refused: only some resolvers accept them.
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        raise ForbiddenUrlError(
            f"{host} is not an IPv4 address: four decimal numbers without leading zeros."
        ) from None
    return str(address), port, address


def _read_name(host: str) -> str:
    """Returns the name in ASCII. It must be valid in IDNA 2008; look-alikes are not mapped."""
    name = host.lower().removesuffix(".")
    if not name:
        raise ForbiddenUrlError("The URL names no host.")
    try:
        if not name.isascii():
            name = idna.encode(name, strict=True).decode("ascii")
        for label in name.split("."):
            if label.startswith("xn--"):
                idna.ulabel(label)
    except (idna.IDNAError, UnicodeError):
        raise ForbiddenUrlError("The host of the URL is not a valid name.") from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ForbiddenUrlError("The host of the URL is not a valid name.")
    return name


def _read_path(rest: str) -> str:
    rest = rest.partition("#")[0]
    if not rest.startswith("/"):
        rest = "/" + rest
    return quote(rest, safe="/?%:@!$&'()*+,;=-._~[]|^")


def is_internal_name(host: str) -> bool:
    """Returns whether a name has a meaning only inside a private network."""
    return "." not in host or host.rpartition(".")[2] in _INTERNAL_SUFFIXES


class Guard:
    """Allows targets on the public web and in explicitly allowed private networks.

    Args:
        resolver: Returns the addresses of a name.
        private_networks: Private networks that may be reached, such as ``10.1.0.0/16`` for a
            company's wiki. If there are any, internal names are resolved too and must lead there.
        ports: Ports that may be connected to; not copied, because a range of all of them is small
            and a set of them takes 4 MB.

    Raises:
        ValueError: A text is not a network, or the network may never be allowed.
    """

    def __init__(
        self,
        resolver: Resolver,
        *,
        private_networks: Iterable[str] = (),
        ports: Collection[int] = (80, 443),
    ) -> None:
        self._resolver = resolver
        self._allowed = read_networks(private_networks)
        self._ports = ports

    async def resolve(self, target: UrlTarget) -> list[Address]:
        """Returns the checked addresses of a target; connect to these without resolving again.

        Raises:
            ForbiddenUrlError: It may not be reached.
            FetchError: Its name cannot be resolved.
        """
        if target.port not in self._ports:
            raise ForbiddenUrlError(f"Port {target.port} may not be connected to.")
        if target.literal is not None:
            return check_addresses([str(target.literal)], self._allowed)
        if is_metadata_name(target.host):
            raise ForbiddenUrlError(f"The host {target.host} may not be reached from here.")
        internal = is_internal_name(target.host)
        if internal and not self._allowed:
            raise ForbiddenUrlError(
                f"The host {target.host} is a name of a private network,"
                " which may not be reached from here."
            )
        resolved = await look_up(self._resolver, target)
        addresses = check_addresses(resolved, self._allowed)
        if internal and not all(is_allowed(address, self._allowed) for address in addresses):
            raise ForbiddenUrlError(
                f"The host {target.host} is an internal name, but leads somewhere else."
            )
        return addresses


class Trusting:
    """Allows every target; only for URLs that the operator configured.

    Args:
        resolver: Returns the addresses of a name.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def resolve(self, target: UrlTarget) -> list[Address]:
        """Returns the addresses of a target.

        Raises:
            FetchError: Its name cannot be resolved.
        """
        if target.literal is not None:
            return [target.literal]
        addresses = await look_up(self._resolver, target)
        return [ipaddress.ip_address(text) for text in addresses]


async def look_up(resolver: Resolver, target: UrlTarget) -> list[str]:
    """Resolves the name of a target once.

    Raises:
        FetchError: The name has no address or too many, or there was no answer.
    """
    try:
        addresses = list(await resolver(target.host, target.port))
    except TimeoutError:
        raise FetchError(f"The name servers gave no address of {target.host} in time.") from None
    except (OSError, UnicodeError):
        raise FetchError(f"The host {target.host} cannot be found.") from None
    if not addresses:
        raise FetchError(f"The host {target.host} cannot be found.")
    if len(addresses) > _MAX_ADDRESSES:
        raise FetchError(f"The host {target.host} has too many addresses.")
    return addresses
