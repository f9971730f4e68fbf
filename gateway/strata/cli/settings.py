"""What the command line can be told from outside: ``STRATA_…`` without a service's name."""

from __future__ import annotations

import os

from pydantic import Field

from strata.agent_loop.models.presets.table import PRESETS
from strata.client.settings import ClientSettings

# What a process needs to run, whatever it does.
_FOR_ALL = frozenset({"HOME", "PATH", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR"})


class CliSettings(ClientSettings):
    """Where Strata is, and how it is started here."""

    port: int = Field(
        default=7600, ge=0, le=65535, description="Preferred port of the gateway of `strata up`."
    )
    gateway_host: str = Field(
        default="127.0.0.1",
        description="Address that the gateway of `strata up` listens on; 0.0.0.0 for all.",
    )
    mcp_token: str = Field(
        default="",
        repr=False,
        description="Bearer token that `strata mcp serve --http` asks for; unset means a new one"
        " at each start.",
    )
    database_admin_url: str = Field(
        default="", repr=False, description="PostgreSQL URL that `strata migrate` connects with."
    )


def environment_of_server() -> dict[str, str]:
    """Returns what a `strata up` that is started from here may see of our environment.

    Settings of services and of model providers, and what a process needs to run; no more.
    """
    return _environment("STRATA_", *_variables_of_providers())


def environment_of_service(name: str) -> dict[str, str]:
    """Returns what a service in a process of its own may see of our environment.

    Its own settings, which may hold keys, and no other service's; keys of chat models are for the
    agent loop alone, which reads them under the names that providers use.

    Args:
        name: The folder name of the service, ``core_memory``.
    """
    providers = _variables_of_providers() if name == "agent_loop" else ()
    return _environment(f"STRATA_{name.upper()}_", *providers)


def _variables_of_providers() -> list[str]:
    """Returns the beginnings of the variables that users of model providers set."""
    return [prefix for preset in PRESETS.values() for prefix in preset.variables_in(os.environ)]


def _environment(*prefixes: str) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) or name in _FOR_ALL
    }
