"""Names of hosts that a tool may reach: how they are written, and what they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strata.shared.web.metadata import reaches_metadata

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253
_WILDCARD = "*."


def problem_of(host: str) -> str:
    """Says why this cannot stand in a list of hosts; empty if it can.

    A name with at least one dot, in lower-case ASCII, or ``*.`` before such a name.
    """
    if not host.isascii():
        return "must be ASCII; write other letters as IDNA does (xn--...)"
    if host != host.lower():
        return "must be lower case"
    name = host.removeprefix(_WILDCARD)
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        return "must be a host's name, api.example.com or *.example.com, without port and path"
    if _NUMBER.fullmatch(labels[-1]):
        return "must be a name, not an address"
    if len(labels) == 1:
        return "must have a dot in it: whole top-level domains and names without one are refused"
    if reaches_metadata(host):
        return "must not stand for a metadata service of a cloud or cluster"
    return ""


def covers(pattern: str, host: str) -> bool:
    """Says whether an entry of a list stands for a host, or for all that another entry does.

    An entry is exactly that name. ``*.example.com`` is every name below ``example.com`` at any
    depth, and not ``example.com`` itself.
    """
    if pattern == host:
        return True
    return pattern.startswith(_WILDCARD) and host.removeprefix(_WILDCARD).endswith(pattern[1:])


def listed(host: str, patterns: Iterable[str]) -> bool:
    """Says whether any entry of a list stands for a host."""
    return any(covers(pattern, host) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What the operator lets tools reach.

    Attributes:
        allowed: Whether tools may reach anything.
        hosts: Where they may, as `problem_of` has it; empty means wherever each one says.
    """

    allowed: bool = False
    hosts: tuple[str, ...] = ()

    def refused(self, hosts: Sequence[str]) -> list[str]:
        """Returns those of a tool's hosts that it may not have."""
        if not self.hosts:
            return []
        return [host for host in hosts if not listed(host, self.hosts)]
