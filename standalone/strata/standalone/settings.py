"""Selects the environment variables that each process of a local Strata gets."""

from __future__ import annotations

import os

from strata.agent_loop.models.presets.table import PRESETS
from strata.shared.tracing.settings import TRACES_PREFIX

# Variables that every process needs.
_FOR_ALL = frozenset({"HOME", "PATH", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR"})


def environment_of_server() -> dict[str, str]:
    """Returns the environment for a `strata up` that a command starts.

    It has the settings of services and of model providers, and what every process needs.
    """
    return _environment("STRATA_", *_variables_of_providers())


def environment_of_service(name: str) -> dict[str, str]:
    """Returns the environment for the process of one service.

    It has the settings of that service, which may contain keys, and of no other service. The
    settings of traces are added, unless the service runs code of tools. Only the agent loop gets
    the keys of chat models, which it reads under the providers' own variable names.

    Args:
        name: The folder name of the service, ``core_memory``.
    """
    providers = _variables_of_providers() if name == "agent_loop" else ()
    traces = () if name == "tool_runner" else (TRACES_PREFIX,)
    return _environment(f"STRATA_{name.upper()}_", *traces, *providers)


def _variables_of_providers() -> list[str]:
    """Returns the prefixes of the model providers' own variables."""
    return [prefix for preset in PRESETS.values() for prefix in preset.variables_in(os.environ)]


def _environment(*prefixes: str) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) or name in _FOR_ALL
    }
