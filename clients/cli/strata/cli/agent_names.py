"""Completion of the names of agents in the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import typer

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.cli.client import connected
from strata.cli.connection import Choice, find_target
from strata.client.settings import ClientSettings

_TIMEOUT_S = 1.5
_MAX_AGENTS = 200
_SAFE_CHARS = frozenset("_-.@+=,%")


def complete_agent(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of agents that begin with a text, as `typer` expects it.

    The gateway comes from the options typed so far, from the environment or from the data folder.
    The list is empty if no gateway is found or none answers within 1.5 s. It contains at most 200
    names.

    Args:
        ctx: The command that is being typed.
        incomplete: The beginning of the name; may be empty.
    """
    try:
        return asyncio.run(_names(_choice(ctx.params), incomplete))
    except Exception:  # noqa: BLE001 - a message would be written into the line that is being typed
        return []


def is_typeable(name: str) -> bool:
    """Whether a shell reads a name unchanged, as one word.

    The completion scripts insert names without quotes, and the script of zsh evaluates them.
    """
    return not name.startswith("-") and all(
        character.isalnum() or character in _SAFE_CHARS for character in name
    )


async def _names(choice: Choice, incomplete: str) -> list[str]:
    target = find_target(choice, ClientSettings.from_environment())
    request = pb.ListAgentsRequest(name_contains=incomplete, page_size=_MAX_AGENTS)
    async with asyncio.timeout(_TIMEOUT_S), connected(target) as client:
        response = await client.agents.ListAgents(request)
    names = (agent.name for agent in response.agents)
    return sorted(name for name in names if name.startswith(incomplete) and is_typeable(name))


def _choice(options: Mapping[str, Any]) -> Choice:
    """Returns the connection options; those that are not typed are absent or None."""
    return Choice(
        address=options.get("address") or "",
        api_key=options.get("api_key") or "",
        data=options.get("data"),
        tls=options.get("tls") or False,
        ca_file=options.get("ca_file"),
    )
