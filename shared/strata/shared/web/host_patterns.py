"""Lists of host names that code may reach: syntax and wildcards."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strata.shared.web.metadata import reaches_metadata

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253
_WILDCARD = "*."


def problem_of(host: str) -> str:
    """Returns why a host is not allowed in a list of hosts; empty if it is.

    Allowed are lower-case ASCII names with at least one dot, also after a ``*.``.
    """
    if not host.isascii():
        return "must be ASCII; encode other letters with IDNA (xn--...)"
    if host != host.lower():
        return "must be lower case"
    name = host.removeprefix(_WILDCARD)
    labels = name.split(".")
    if len(name) > _MAX_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        return "must be a host name such as api.example.com or *.example.com, without port and path"
    if _NUMBER.fullmatch(labels[-1]):
        return "must be a name, not an address"
    if len(labels) == 1:
        return "must have a dot in it: whole top-level domains and names without one are refused"
    if reaches_metadata(host):
        return "must not cover a metadata service of a cloud or cluster"
    return ""


def covers(pattern: str, host: str) -> bool:
    """Returns whether an entry of a list covers a host, or every host that another entry covers.

    A name covers itself. ``*.example.com`` covers every name below ``example.com`` at any depth,
    but not ``example.com`` itself.
    """
    if pattern == host:
        return True
    return pattern.startswith(_WILDCARD) and host.removeprefix(_WILDCARD).endswith(pattern[1:])


def listed(host: str, patterns: Iterable[str]) -> bool:
    """Returns whether any entry of a list covers a host."""
    return any(covers(pattern, host) for pattern in patterns)
