"""PromptService, and agents that are created with a prompt by key."""

from __future__ import annotations

import pytest

from doubles.script import say
from inner_services import InnerServices
from strata.agent_loop.prompts.library import BUILTIN_DESCRIPTIONS, system_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import prompt_service_pb2 as prompt_pb
from strata.protocol.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shown(services: InnerServices, key: str) -> prompt_pb.Prompt:
    response = await services.prompts.GetPrompt(prompt_pb.GetPromptRequest(key=key))
    prompt: prompt_pb.Prompt = response.prompt
    return prompt


async def test_prompts_of_strata_and_of_the_folder_are_listed_and_shown(
    services: InnerServices,
) -> None:
    (services.prompts_folder / "butler.txt").write_text("You are a butler.\n", encoding="utf-8")
    (services.prompts_folder / "broken.txt").write_bytes(b"\xff")
    listing = await services.prompts.ListPrompts(prompt_pb.ListPromptsRequest())

    assert [prompt.key for prompt in listing.prompts] == [
        *BUILTIN_DESCRIPTIONS,
        "broken",
        "butler",
    ]
    assert not any(prompt.text for prompt in listing.prompts)
    broken, butler = listing.prompts[-2:]
    assert (broken.problem, broken.characters) == ("broken.txt is not UTF-8: byte 0 is wrong.", 0)
    assert (butler.builtin, butler.problem, butler.characters) == (False, "", 17)
    assert (await shown(services, "butler")).text == "You are a butler."
    workflow = await shown(services, "workflow")
    assert (workflow.builtin, workflow.text) == (True, system_prompt("workflow"))
    assert workflow.description == BUILTIN_DESCRIPTIONS["workflow"]


async def test_agent_keeps_the_prompt_that_it_was_created_with(services: InnerServices) -> None:
    file = services.prompts_folder / "butler.txt"
    file.write_text("You are a butler.\n{CORE_MEMORY}\nAlways.\n", encoding="utf-8")
    agent = await services.make_agent(name="Bo", system_prompt_key="butler")
    file.write_text("You are a gardener.", encoding="utf-8")

    assert agent.system == "You are a butler.\n{CORE_MEMORY}\nAlways."
    services.model.script(say("Hi."))
    await services.run(agent, "Hello.")
    system = services.model.requests[-1].system
    assert system.startswith("You are a butler.\n<memory_blocks>")
    assert system.endswith("</memory_metadata>\nAlways.")


async def test_agent_can_have_a_prompt_of_strata_by_key(services: InnerServices) -> None:
    agent = await services.make_agent(system_prompt_key="memgpt_generate_tool")
    assert agent.system == system_prompt("memgpt_generate_tool")


async def test_repeated_creation_gives_the_same_agent_after_the_prompt_changed(
    services: InnerServices,
) -> None:
    file = services.prompts_folder / "fleeting.txt"
    file.write_text("Be brief.", encoding="utf-8")
    fields = {"request_id": "once", "name": "Bo", "system_prompt_key": "fleeting"}
    first = await services.make_agent(**fields)
    file.write_text("Be long.", encoding="utf-8")
    assert await services.make_agent(**fields) == first


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"system_prompt_key": "nobody"}, NotFoundError, Reason.PROMPT_NOT_FOUND),
        ({"system_prompt_key": "../base"}, InvalidArgumentError, Reason.INVALID_FIELD),
        ({"system_prompt_key": "empty"}, FailedPreconditionError, Reason.PROMPT_UNUSABLE),
        (
            {"system_prompt_key": "react", "system": ""},
            InvalidArgumentError,
            Reason.INVALID_FIELD,
        ),
    ],
)
async def test_creation_with_a_prompt_that_cannot_be_used_leaves_nothing(
    services: InnerServices, fields: dict[str, str], error: type[StrataError], reason: Reason
) -> None:
    (services.prompts_folder / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(error) as raised:
        await services.make_agent(name="Bo", **fields)
    assert raised.value.reason is reason
    if error is InvalidArgumentError:
        assert [violation.field for violation in raised.value.violations] == ["system_prompt_key"]
    assert list((await services.agents.ListAgents(pb.ListAgentsRequest())).agents) == []


async def test_unknown_prompt_is_not_found(services: InnerServices) -> None:
    with pytest.raises(NotFoundError) as raised:
        await shown(services, "nobody")
    assert raised.value.reason is Reason.PROMPT_NOT_FOUND
