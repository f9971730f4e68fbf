"""``strata agents create --type``, and ``--autoclear`` of ``create`` and ``update``."""

from __future__ import annotations

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.shared.agent_types import TYPES_WITHOUT_BLOCKS, AgentType


@pytest.mark.parametrize("agent_type", AgentType)
async def test_agent_is_created_with_its_type_and_the_blocks_that_it_is_shown(
    gateway: ScriptedGateway, strata: Run, agent_type: AgentType
) -> None:
    done = await strata("agents", "create", "bo", "--type", agent_type.value)
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert pb.AgentType.Name(request.type) == f"AGENT_TYPE_{agent_type.name}"
    labels = [] if agent_type in TYPES_WITHOUT_BLOCKS else ["human", "persona"]
    assert [block.label for block in request.blocks] == labels
    assert not request.message_buffer_autoclear


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--type", "split_thread_agent"), "letta_v1_agent"),
        (("--type", "react_agent", "--persona", "I am Bo."), "omit --human, --persona"),
        (("--type", "workflow_agent", "--block", "plan=x"), "omit --human, --persona"),
        (("--type", "workflow_agent", "--no-autoclear"), "omit --no-autoclear"),
        (("--human", "Ann", "--block", "human=Bo"), "by --human or by --block, not both"),
    ],
)
async def test_options_that_contradict_the_type_are_wrong_usage(
    gateway: ScriptedGateway, strata: Run, options: tuple[str, ...], expected: str
) -> None:
    done = await strata("agents", "create", "bo", *options)
    assert done.code == 2, done
    assert expected in " ".join(done.err.split())
    assert gateway.agents.created == []


async def test_standard_blocks_are_also_set_by_the_option_for_further_ones(
    gateway: ScriptedGateway, strata: Run
) -> None:
    options = ("--block", "plan=x", "--block", "human=Name: Ann")
    assert (await strata("agents", "create", "bo", *options)).code == 0
    [request] = gateway.agents.created
    blocks = [(block.label, block.value) for block in request.blocks]
    assert blocks == [("persona", ""), ("plan", "x"), ("human", "Name: Ann")]


async def test_autoclear_is_set_shown_and_turned_off(gateway: ScriptedGateway, strata: Run) -> None:
    assert (await strata("agents", "create", "al", "--autoclear")).code == 0
    assert gateway.agents.created[0].message_buffer_autoclear
    agent = gateway.agents.add("bo")
    assert "cleared" not in (await strata("agents", "show", "bo")).out
    for options, expected in [
        (("--autoclear",), True),
        (("--description", "d"), True),
        (("--no-autoclear",), False),
    ]:
        assert (await strata("agents", "update", "bo", *options)).code == 0
        assert agent.message_buffer_autoclear is expected
    agent.message_buffer_autoclear = True
    agent.type = pb.AGENT_TYPE_WORKFLOW
    shown = (await strata("agents", "show", "bo")).out
    assert "window: cleared before each run" in shown
    assert "type: workflow_agent" in shown
