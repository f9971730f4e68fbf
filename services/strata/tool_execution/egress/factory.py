"""What tools may reach, put together from the settings."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard
from strata.tool_execution.domain.hosts import NetworkPolicy
from strata.tool_execution.domain.sandbox import Proxies
from strata.tool_execution.egress.fields import EgressFields
from strata.tool_execution.egress.proxy import EgressProxy, ProxyLimits


def network_policy(settings: EgressFields) -> NetworkPolicy:
    """Returns what the operator lets tools reach."""
    return NetworkPolicy(settings.egress, settings.egress_hosts)


def open_proxies(settings: EgressFields, stack: AsyncExitStack) -> Proxies | None:
    """Returns what makes the proxies of calls; None if tools may reach nothing."""
    if not settings.egress:
        return None
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(
        resolver, private_networks=settings.egress_private_networks, ports=settings.egress_ports
    )
    limits = ProxyLimits(bytes=settings.egress_bytes)
    return partial(EgressProxy, admission=guard, limits=limits)


def ca_file(settings: EgressFields) -> Path | None:
    """Returns the certificates that tools verify servers with: the set ones, or the machine's.

    None if it has none in one file: then no server is trusted.

    Raises:
        ValueError: There is no such file.
    """
    if settings.egress_ca_file is not None:
        if not settings.egress_ca_file.is_file():
            raise ValueError(f"egress_ca_file: there is no file {settings.egress_ca_file}")
        return settings.egress_ca_file.resolve()
    found = ssl.get_default_verify_paths().cafile
    return Path(found).resolve() if found else None
