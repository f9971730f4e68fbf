"""The table of agent types: one row for each wire name."""

from __future__ import annotations

from typing import Any

import pytest

from strata.agent_loop.convert.agents import create_from_proto
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.message_buffer import BufferLengths
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.agent.types import AGENT_TYPES, Boot, LoopKind
from strata.agent_loop.prompts.base import base_prompt
from strata.agent_loop.rules.history import Called
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.agent_types import AgentType
from strata.shared.tool_catalogue import MEMORIES_STORED, default_tools
from strata.shared.tool_rules import ToolRuleType

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
def test_every_type_has_the_specified_traits(
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


@pytest.mark.parametrize("row", AGENT_TYPES.values())
def test_each_type_has_a_prompt_and_can_be_created(row: Any) -> None:
    assert base_prompt(row.type)
    wire = pb.AgentType.Value(f"AGENT_TYPE_{row.type.name}")
    request = pb.CreateAgentRequest(type=wire, enable_sleeptime=row.needs_sleeptime)
    assert create_from_proto(request).agent.type is row.type


def test_a_split_thread_agent_is_refused_with_a_list_of_valid_types() -> None:
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


def voice(**fields: Any) -> Agent:
    kind = pb.AGENT_TYPE_VOICE_CONVO
    return create_from_proto(
        pb.CreateAgentRequest(type=kind, enable_sleeptime=True, **fields)
    ).agent


def test_a_voice_agent_has_buffer_lengths_and_no_frequency() -> None:
    assert voice().buffer == BufferLengths(30, 15)
    assert voice().sleeptime_frequency == 0
    assert voice(max_message_buffer_length=40).buffer == BufferLengths(40, 15)
    lengths = {"max_message_buffer_length": 8, "min_message_buffer_length": 4}
    assert voice(**lengths).buffer == BufferLengths(8, 4)
    assert create_from_proto(pb.CreateAgentRequest()).agent.buffer is None


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"max_message_buffer_length": 15}, "min_message_buffer_length"),
        ({"min_message_buffer_length": 30}, "min_message_buffer_length"),
        ({"max_message_buffer_length": 1001}, "max_message_buffer_length"),
        ({"min_message_buffer_length": -1}, "min_message_buffer_length"),
        ({"sleeptime_agent_frequency": 5}, "sleeptime_agent_frequency"),
    ],
)
def test_wrong_lengths_of_a_buffer_are_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        voice(**fields)
    assert [violation.field for violation in raised.value.violations] == [wrong]


def test_only_voice_agents_have_a_buffer() -> None:
    request = pb.CreateAgentRequest(max_message_buffer_length=20, min_message_buffer_length=3)
    with pytest.raises(InvalidArgumentError) as raised:
        create_from_proto(request)
    assert [violation.field for violation in raised.value.violations] == [
        "max_message_buffer_length",
        "min_message_buffer_length",
    ]


def test_the_rules_of_a_voice_memory_agent_enforce_its_two_phases() -> None:
    traits = AGENT_TYPES[AgentType.VOICE_SLEEPTIME]
    solver = ToolRulesSolver(traits.default_rules(traits.tools))

    def allowed(*history: Called) -> tuple[tuple[str, ...], bool]:
        allowance = solver.allowed(list(history), traits.tools)
        return allowance.names, allowance.forced

    failed = Called("store_memories", "ToolError: memories[0] names the lines 9 to 12")
    stored = Called("store_memories", MEMORIES_STORED)
    rewritten = Called("rethink_user_memory", "done")
    assert allowed() == (("store_memories",), True)
    assert allowed(failed) == (("store_memories",), True)
    assert allowed(failed, stored) == (("rethink_user_memory",), True)
    second = ("rethink_user_memory", "finish_rethinking_memory")
    assert allowed(stored, rewritten) == (second, True)
    assert solver.ends("finish_rethinking_memory")
    assert not solver.ends("store_memories")


def test_default_rules_of_a_type_are_omitted_if_overridden_or_without_their_tools() -> None:
    traits = AGENT_TYPES[AgentType.VOICE_SLEEPTIME]
    own = ToolRule(ToolRuleType.RUN_FIRST, "rethink_user_memory")
    added = traits.default_rules(traits.tools, [own])
    assert ToolRuleType.CONSTRAIN_CHILD_TOOLS not in [rule.type for rule in added]
    assert traits.default_rules(("store_memories",))[-1].tool_name == "store_memories"
    assert not traits.default_rules(())
