"""Completion of the names of agents, from a gateway."""

from __future__ import annotations

import asyncio

import pytest

from command_line import completions
from e2e.cli.scripted import KEY, ScriptedGateway


async def offered(line: str, **environment: str) -> list[str]:
    return await asyncio.to_thread(completions, line, **environment)


@pytest.fixture
def agents(gateway: ScriptedGateway) -> None:
    for name in ("anton", "ann", "hannah", "an agent", "an$(id)"):
        gateway.agents.add(name)


@pytest.mark.parametrize(
    "line",
    [
        "strata chat an",
        "strata memory show an",
        "strata runs list --agent an",
        "strata agents show --json an",
        "strata groups create other an",
    ],
)
async def test_names_that_begin_with_the_text_are_offered(
    agents: None, environment: None, line: str
) -> None:
    assert await offered(line) == ["ann", "anton"]


async def test_without_a_text_all_names_are_offered(agents: None, environment: None) -> None:
    assert await offered("strata chat ") == ["ann", "anton", "hannah"]


async def test_the_options_that_are_typed_name_the_gateway(
    agents: None, gateway: ScriptedGateway
) -> None:
    line = f"strata chat --address {gateway.address} --api-key {KEY} ha"
    assert await offered(line, STRATA_ADDRESS="127.0.0.1:1") == ["hannah"]


async def test_a_gateway_that_refuses_the_key_offers_nothing(
    agents: None, gateway: ScriptedGateway
) -> None:
    line = f"strata chat --address {gateway.address} --api-key wrong an"
    assert await offered(line) == []
