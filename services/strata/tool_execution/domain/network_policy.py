"""The operator's policy for the network access of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.shared.web.host_patterns import listed


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The hosts that the operator allows tools to reach.

    Attributes:
        allowed: Whether tools have network access.
        hosts: The allowed hosts, in the syntax of `problem_of`; empty means all that tools declare.
    """

    allowed: bool = False
    hosts: tuple[str, ...] = ()

    def refused(self, hosts: Sequence[str]) -> list[str]:
        """Returns the hosts of a tool that the policy does not allow."""
        if not self.hosts:
            return []
        return [host for host in hosts if not listed(host, self.hosts)]
