"""The table of agent types: one row for each wire name."""

from __future__ import annotations

from typing import Any

import pytest

from strata.agent_loop.convert.agents import create_from_proto
from strata.agent_loop.domain.agent_types import AGENT_TYPES, Boot, LoopKind
from strata.agent_loop.prompts.base import base_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.shared.agent_types import AgentType
from strata.shared.errors import InvalidArgumentError, Reason, UnimplementedError
from strata.shared.tool_catalogue import default_tools

V2, V3 = LoopKind.V2, LoopKind.V3


def test_every_type_has_a_row() -> None:
    assert set(AGENT_TYPES) == set(AgentType)
    assert [row.type for row in AGENT_TYPES.values()] == list(AGENT_TYPES)


@pytest.mark.parametrize(
    ("agent_type", "loop", "prompt_key", "base_tool_rules", "boot", "sees_blocks", "numbered"),
    [
        ("letta_v1_agent", V3, "letta_v1", False, Boot.NONE, True, True),
        ("memgpt_v2_agent", V2, "memgpt_v2_chat", True, Boot.CHAT, True, True),
        ("memgpt_agent", V2, "memgpt_chat", True, Boot.CHAT, True, False),
        ("sleeptime_agent", V3, "sleeptime_v2", True, Boot.NONE, True, True),
        ("react_agent", V2, "react", True, Boot.CHAT, False, False),
        ("workflow_agent", V2, "workflow", True, Boot.CHAT, False, False),
        ("voice_convo_agent", V2, "voice_chat", True, Boot.CHAT, True, False),
        ("voice_sleeptime_agent", V2, "voice_sleeptime", True, Boot.NONE, True, False),
    ],
)
def test_traits_are_those_of_the_specification(
    agent_type: str,
    loop: LoopKind,
    prompt_key: str,
    base_tool_rules: bool,
    boot: Boot,
    sees_blocks: bool,
    numbered: bool,
) -> None:
    row = AGENT_TYPES[AgentType(agent_type)]
    assert (row.loop, row.prompt_key, row.base_tool_rules) == (loop, prompt_key, base_tool_rules)
    assert (row.boot, row.sees_blocks, row.line_numbered) == (boot, sees_blocks, numbered)
    assert row.autoclears is (agent_type == "workflow_agent")
    assert row.needs_sleeptime is (agent_type == "voice_convo_agent")
    assert row.tools == default_tools(row.type)
    assert row.tools_with_sleeptime == default_tools(row.type, sleeptime=True)


@pytest.mark.parametrize("row", [row for row in AGENT_TYPES.values() if row.built])
def test_a_built_type_has_a_prompt(row: Any) -> None:
    assert base_prompt(row.type)


@pytest.mark.parametrize("row", [row for row in AGENT_TYPES.values() if not row.built])
def test_a_type_whose_loop_is_not_built_is_refused(row: Any) -> None:
    wire = pb.AgentType.Value(f"AGENT_TYPE_{row.type.name}")
    request = pb.CreateAgentRequest(type=wire, enable_sleeptime=row.needs_sleeptime)
    with pytest.raises(UnimplementedError) as raised:
        create_from_proto(request)
    assert raised.value.reason is Reason.NOT_BUILT


def test_a_split_thread_agent_is_refused_with_the_types_there_are() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        create_from_proto(pb.CreateAgentRequest(type=pb.AGENT_TYPE_SPLIT_THREAD))
    (violation,) = raised.value.violations
    assert violation.field == "type"
    assert "split_thread_agent is not supported" in violation.description
    assert all(name in violation.description for name in AgentType)


def test_a_voice_agent_is_refused_without_its_memory_agent() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        create_from_proto(pb.CreateAgentRequest(type=pb.AGENT_TYPE_VOICE_CONVO))
    assert [violation.field for violation in raised.value.violations] == ["enable_sleeptime"]
