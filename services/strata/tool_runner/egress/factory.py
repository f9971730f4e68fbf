"""Creates the proxies and the CA file of tools from the settings."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard
from strata.tool_runner.domain.proxy import Proxies
from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits
from strata.tool_runner.settings import ToolRunnerSettings


def open_proxies(settings: ToolRunnerSettings, stack: AsyncExitStack) -> Proxies | None:
    """Returns the factory of proxies; None if tools have no network access."""
    if not settings.egress:
        return None
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(
        resolver, private_networks=settings.egress_private_networks, ports=settings.egress_ports
    )
    limits = ProxyLimits(bytes=settings.egress_bytes)
    return partial(EgressProxy, admission=guard, limits=limits)


def ca_file(settings: ToolRunnerSettings) -> Path | None:
    """Returns the CA file with which tools verify servers: from the settings or the machine.

    None if the machine has no single CA file: then tools trust no server.

    Raises:
        ValueError: The file of the settings does not exist.
    """
    if settings.egress_ca_file is not None:
        if not settings.egress_ca_file.is_file():
            raise ValueError(f"egress_ca_file: there is no file {settings.egress_ca_file}")
        return settings.egress_ca_file.resolve()
    default = ssl.get_default_verify_paths().cafile
    return Path(default).resolve() if default else None
