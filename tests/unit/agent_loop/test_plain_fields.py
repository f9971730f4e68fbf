"""The table of plain fields of agents, and the errors if a field is not declared everywhere."""

from __future__ import annotations

from dataclasses import fields

import pytest

from strata.agent_loop.convert.plain_fields import PlainFields
from strata.agent_loop.domain.agent.agents import Agent, AgentPatch, apply_patch
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import FieldViolation
from strata.shared.agent_types import AgentType


def too_large(name: str, value: int) -> list[FieldViolation]:
    return [FieldViolation(name, "is too large")] if value > 9 else []


TABLE = PlainFields(
    {"description": None, "max_files_open": too_large, "message_buffer_autoclear": None}
)


def test_values_contain_every_declared_field() -> None:
    request = pb.CreateAgentRequest(description="d", name="other")
    assert TABLE.values(request) == {
        "description": "d",
        "max_files_open": 0,
        "message_buffer_autoclear": False,
    }


def test_changes_contain_only_the_set_fields() -> None:
    request = pb.UpdateAgentRequest(description="", message_buffer_autoclear=False, name="other")
    assert TABLE.changes(request) == {"description": "", "message_buffer_autoclear": False}
    assert TABLE.changes(pb.UpdateAgentRequest()) == {}


def test_violations_name_the_field() -> None:
    assert TABLE.violations(pb.UpdateAgentRequest(max_files_open=9)) == []
    (violation,) = TABLE.violations(pb.CreateAgentRequest(max_files_open=10))
    assert violation == FieldViolation("max_files_open", "is too large")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("model", "Agent.model must be a str, a bool or an int"),
        ("unknown", "Agent.unknown must be a str, a bool or an int"),
        ("tends_agent_id", "AgentPatch.tends_agent_id must be a str or None"),
        ("sleeptime_frequency", "Agent.sleeptime_frequency must be declared as int"),
        ("memory_agent_id", "CreateAgentRequest.memory_agent_id must be declared as str"),
        ("system", "CreateAgentRequest.system must be declared as str"),
    ],
)
def test_a_field_that_is_not_declared_everywhere_is_refused(name: str, problem: str) -> None:
    with pytest.raises(TypeError) as raised:
        PlainFields({name: None})
    assert str(raised.value) == problem


def test_change_replaces_every_field_that_it_shares_with_the_agent() -> None:
    shared = {field.name for field in fields(AgentPatch)} & {field.name for field in fields(Agent)}
    agent = Agent("agent-1", "Bo", AgentType.LETTA_V1, "Base.", metadata={"a": "1"})
    for name in shared - {"metadata"}:
        changed = apply_patch(agent, AgentPatch("agent-1", **{name: "new"}))  # type: ignore[arg-type]
        assert getattr(changed, name) == "new"
        assert changed.metadata == agent.metadata
