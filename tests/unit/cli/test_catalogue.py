"""Built-in tools and agent types of the command line agree with those of the services."""

from __future__ import annotations

import pytest

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.shared.agent_mcp.definitions import CHANGING, READING
from strata.shared.agent_types import AgentType
from strata.shared.tool_catalogue import CATALOGUE, ToolEffect

# They show what an agent reads anyway, or do the same as the tool `memory`.
OF_THE_COMMAND_LINE = {"list_memory_blocks", "read_memory_block", "view_memory", "memory_create"}


def test_tools_of_the_mcp_server_are_built_in_tools_or_its_own() -> None:
    names = {tool.name for tool in (*READING, *CHANGING)}
    assert names - OF_THE_COMMAND_LINE <= {name for name, tool in CATALOGUE.items() if tool.built}
    assert not OF_THE_COMMAND_LINE & set(CATALOGUE)


@pytest.mark.parametrize("tool", [*READING, *CHANGING], ids=lambda tool: str(tool.name))
def test_read_only_hints_match_the_effects_of_the_catalogue(tool: object) -> None:
    name, annotations = tool.name, tool.annotations  # type: ignore[attr-defined]
    if name in CATALOGUE:
        read_only = CATALOGUE[name].effect is ToolEffect.READ_ONLY
        assert annotations.read_only_hint is read_only


def test_every_agent_type_has_its_value_in_the_contract() -> None:
    values = {name: pb.AgentType.Value(f"AGENT_TYPE_{name}") for name in AgentType.__members__}
    refused = {pb.AGENT_TYPE_UNSPECIFIED, pb.AGENT_TYPE_SPLIT_THREAD}
    assert set(values.values()) == set(pb.AgentType.values()) - refused
