"""AgentService and ModelService through the real services."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from chat_messages import roles, user_message
from doubles.script import say
from inner_services import InnerServices
from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.prompts.library import system_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import model_service_pb2 as model_pb
from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnimplementedError,
)
from strata.shared.agent_types import AgentType
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

GATED = tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL
BUILTIN = [
    "conversation_search",
    "memory_insert",
    "memory_replace",
    "archival_memory_insert",
    "archival_memory_search",
    "expand_summary",
]


async def create(services: InnerServices, **fields: Any) -> pb.CreateAgentResponse:
    response: pb.CreateAgentResponse = await services.agents.CreateAgent(
        pb.CreateAgentRequest(**fields)
    )
    return response


async def test_fresh_agent_has_the_defaults_of_its_type(services: InnerServices) -> None:
    made = await create(services, name="Bo")

    agent = made.agent
    assert agent.type == pb.AGENT_TYPE_LETTA_V1
    assert list(agent.tools) == BUILTIN
    assert [block.label for block in made.blocks] == ["human", "persona"]
    assert [block.value for block in made.blocks] == ["", ""]
    assert agent.default_conversation_id == "conversation-" + agent.id.removeprefix("agent-")
    assert (agent.timezone, agent.revision, agent.max_files_open) == ("UTC", 1, 0)
    assert agent.per_file_view_window_char_limit == 0
    assert agent.system == system_prompt("letta_v1")
    assert roles((await services.window(agent)).messages) == ["system"]


async def test_system_message_of_a_fresh_agent_has_exactly_these_bytes(
    services: InnerServices,
) -> None:
    blocks = [
        {"label": "persona", "value": "I am Bo.", "description": "Who you are."},
        {"label": "human", "value": "", "description": "Who they are.", "read_only": True},
    ]
    made = await create(
        services, name="Bo", system="Be kind.", blocks=blocks, timezone="Asia/Tokyo"
    )

    changed = max(block.update_time.ToDatetime(tzinfo=UTC) for block in made.blocks)
    window = await services.window(made.agent)
    system = window.messages[0]
    tokyo = ZoneInfo("Asia/Tokyo")
    today = system.create_time.ToDatetime(tzinfo=UTC).astimezone(tokyo)
    assert system.parts[0].text.text == (
        "Be kind.\n"
        "\n"
        "<memory_blocks>\n"
        "The following memory blocks are currently engaged in your core memory unit:\n"
        "\n"
        "<persona>\n"
        "<description>\n"
        "Who you are.\n"
        "</description>\n"
        "<metadata>\n"
        "- chars_current=8\n"
        "- chars_limit=20000\n"
        "</metadata>\n"
        "<value>\n"
        "I am Bo.\n"
        "</value>\n"
        "</persona>\n"
        "\n"
        "<human>\n"
        "<description>\n"
        "Who they are.\n"
        "</description>\n"
        "<metadata>\n"
        "- read_only=true\n"
        "- chars_current=0\n"
        "- chars_limit=20000\n"
        "</metadata>\n"
        "<value>\n"
        "\n"
        "</value>\n"
        "</human>\n"
        "\n"
        "</memory_blocks>\n"
        "\n"
        "<memory_metadata>\n"
        f"- The current system date is: {today:%B %d, %Y}\n"
        "- Memory blocks were last modified:"
        f" {changed.astimezone(tokyo):%Y-%m-%d %I:%M:%S %p} JST+0900\n"
        "- 0 previous messages between you and the user are stored in recall memory"
        " (use tools to access them)\n"
        "</memory_metadata>"
    )


async def test_agent_without_blocks_has_no_memory_section(services: InnerServices) -> None:
    made = await create(services, system="Be kind. {CORE_MEMORY} Always.", without_blocks=True)

    assert list(made.blocks) == []
    text = (await services.window(made.agent)).messages[0].parts[0].text.text
    assert text.startswith("Be kind. <memory_metadata>\n- The current system date is: ")
    assert text.endswith("</memory_metadata> Always.")
    services.model.script(say("Hi."))
    await services.run(made.agent, "Hello.")
    assert services.model.requests[-1].system == text


async def test_initial_messages_follow_the_system_message(services: InnerServices) -> None:
    made = await create(services, initial_messages=[user_message("We met before.")])
    assert roles((await services.window(made.agent)).messages) == ["system", "user"]


async def test_repeated_creation_gives_the_same_agent(services: InnerServices) -> None:
    fields: dict[str, Any] = {"request_id": new_id("request"), "name": "Once", "tags": ["b", "a"]}
    first, second = await asyncio.gather(create(services, **fields), create(services, **fields))
    third = await create(services, **fields)

    assert first.agent == second.agent == third.agent
    assert [b.id for b in first.blocks] == [b.id for b in third.blocks]
    assert list(first.agent.tags) == ["a", "b"]
    with pytest.raises(AlreadyExistsError) as raised:
        await create(services, **{**fields, "name": "Twice"})
    assert raised.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_name_is_unique_and_free_again_after_deletion(services: InnerServices) -> None:
    made = await create(services, name="Bo")
    with pytest.raises(AlreadyExistsError) as raised:
        await create(services, name="Bo")
    assert raised.value.reason is Reason.NAME_TAKEN

    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=made.agent.id))
    await create(services, name="Bo")


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"tools": ["no_such_tool"]}, NotFoundError, Reason.TOOL_NOT_FOUND),
        (
            {"block_ids": ["block-00000000-0000-7000-8000-000000000000"]},
            NotFoundError,
            Reason.BLOCK_NOT_FOUND,
        ),
        (
            {"blocks": [{"label": "x", "value": "abc", "limit": 2}]},
            FailedPreconditionError,
            Reason.BLOCK_LIMIT_EXCEEDED,
        ),
        (
            {"blocks": [{"label": "x"}, {"label": "x"}]},
            StrataError,
            None,
        ),
    ],
)
async def test_failed_creation_leaves_nothing(
    services: InnerServices, fields: dict[str, Any], error: type[StrataError], reason: Reason | None
) -> None:
    with pytest.raises(error) as raised:
        await create(services, name="Bo", request_id="same", **fields)
    if reason is not None:
        assert raised.value.reason is reason

    assert list((await services.agents.ListAgents(pb.ListAgentsRequest())).agents) == []
    with pytest.raises(NotFoundError):
        await services.agents.GetAgent(pb.GetAgentRequest(name="Bo"))
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest())
    assert list(listed.blocks) == []
    await create(services, name="Bo", request_id="same")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 200}, "name"),
        ({"system": "a\0b"}, "system"),
        ({"tools": ["not a name"]}, "tools[0]"),
        ({"tags": [""]}, "tags[0]"),
        ({"model": {"handle": "nohandle"}}, "model.handle"),
        ({"model": {"handle": "nobody/model"}}, "model.handle"),
        ({"model": {"temperature": 3.0}}, "model.temperature"),
        ({"model": {"context_window": 100}}, "model.context_window"),
        ({"model": {"reasoning_effort": "huge"}}, "model.reasoning_effort"),
        (
            {"model": {"enable_reasoner": False, "reasoning_effort": "low"}},
            "model.enable_reasoner",
        ),
        (
            {"model": {"enable_reasoner": False, "max_reasoning_tokens": 9}},
            "model.enable_reasoner",
        ),
        ({"compaction": {"mode": "magic"}}, "compaction.mode"),
        ({"compaction": {"model": "nohandle"}}, "compaction.model"),
        ({"compaction": {"model": "nobody/model"}}, "compaction.model"),
        ({"compaction": {"clip_chars": 10}}, "compaction.clip_chars"),
        (
            {"compaction": {"model_settings": {"temperature": 3.0}}},
            "compaction.model_settings.temperature",
        ),
        (
            {"compaction": {"model_settings": {"handle": "gpt/test-model"}}},
            "compaction.model_settings.handle",
        ),
        (
            {"compaction": {"sliding_window_percentage": 1.5}},
            "compaction.sliding_window_percentage",
        ),
        ({"without_blocks": True, "blocks": [{"label": "x"}]}, "without_blocks"),
        ({"type": 99}, "type"),
        ({"max_files_open": -1}, "max_files_open"),
        ({"external_id": "x" * 201}, "external_id"),
        ({"external_id": "crm\n4711"}, "external_id"),
        ({"request_id": "ü"}, "request_id"),
        ({"metadata": {"k": "v" * 5000}}, "metadata['k']"),
        ({"initial_messages": [{"role": 4}]}, "initial_messages[0].role"),
    ],
)
async def test_wrong_fields_are_named(
    services: InnerServices, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        await create(services, **fields)
    assert field in [violation.field for violation in raised.value.violations]
    assert list((await services.agents.ListAgents(pb.ListAgentsRequest())).agents) == []


async def test_conversation_is_found_by_its_external_id(services: InnerServices) -> None:
    agent = (await create(services, name="Cy")).agent
    request = pb.CreateConversationRequest(
        agent_id=agent.id, title="Ann", external_id="crm/4711", request_id=new_id("r")
    )
    made = (await services.agents.CreateConversation(request)).conversation
    assert (await services.agents.CreateConversation(request)).conversation == made
    assert made.external_id == "crm/4711"
    request.request_id = new_id("r")
    with pytest.raises(AlreadyExistsError) as taken:
        await services.agents.CreateConversation(request)
    assert taken.value.reason is Reason.NAME_TAKEN
    for wanted in (
        pb.GetConversationRequest(conversation_id=made.id),
        pb.GetConversationRequest(agent_id=agent.id, external_id="crm/4711"),
    ):
        assert (await services.agents.GetConversation(wanted)).conversation == made
    by_title = pb.ListConversationsRequest(agent_id=agent.id, title="Ann")
    assert list((await services.agents.ListConversations(by_title)).conversations) == [made]
    forking = pb.ForkConversationRequest(conversation_id=made.id)
    assert not (await services.agents.ForkConversation(forking)).conversation.external_id


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "conversation_id"),
        ({"agent_id": new_id("agent")}, "conversation_id"),
        ({"external_id": "ann"}, "agent_id"),
        ({"agent_id": new_id("agent"), "external_id": "a\nb"}, "external_id"),
        ({"agent_id": new_id("agent"), "external_id": "x" * 201}, "external_id"),
        ({"conversation_id": "mine"}, "conversation_id"),
        ({"conversation_id": new_id("conversation"), "external_id": "ann"}, "external_id"),
    ],
)
async def test_a_conversation_must_be_identified_in_exactly_one_way(
    services: InnerServices, fields: dict[str, str], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.GetConversation(pb.GetConversationRequest(**fields))
    assert [violation.field for violation in raised.value.violations] == [field]


async def test_external_id_is_stored_changed_and_removed(services: InnerServices) -> None:
    longest = "crm/4711 ü" + "x" * 190
    agent = (await create(services, name="Bo", external_id=longest)).agent
    twin = (await create(services, name="Al", external_id=longest)).agent
    assert agent.external_id == twin.external_id == longest
    listed = (await services.agents.ListAgents(pb.ListAgentsRequest())).agents
    assert [item.external_id for item in listed] == [longest, longest]

    unrelated = pb.UpdateAgentRequest(agent_id=agent.id, description="x")
    assert (await services.agents.UpdateAgent(unrelated)).agent.external_id == longest
    for external_id in ("erp-1", ""):
        change = pb.UpdateAgentRequest(agent_id=agent.id, external_id=external_id)
        assert (await services.agents.UpdateAgent(change)).agent.external_id == external_id
        stored = (await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))).agent
        assert stored.external_id == external_id
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(
            pb.UpdateAgentRequest(agent_id=agent.id, external_id="\u202e4711")
        )
    assert [violation.field for violation in raised.value.violations] == ["external_id"]


async def test_autoclear_is_stored_and_changed(services: InnerServices) -> None:
    agent = (await create(services, message_buffer_autoclear=True)).agent
    assert agent.message_buffer_autoclear
    changed = pb.UpdateAgentRequest(agent_id=agent.id, message_buffer_autoclear=False)
    assert not (await services.agents.UpdateAgent(changed)).agent.message_buffer_autoclear
    other = pb.UpdateAgentRequest(agent_id=agent.id, description="x")
    assert not (await services.agents.UpdateAgent(other)).agent.message_buffer_autoclear
    assert not (await create(services)).agent.message_buffer_autoclear


async def test_autoclear_of_a_type_cannot_be_turned_off(
    services: InnerServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    traits = replace(AGENT_TYPES[AgentType.LETTA_V1], autoclears=True)
    for module in ("convert.agents", "agents.lifecycle"):
        name = f"strata.agent_loop.{module}.AGENT_TYPES"
        monkeypatch.setattr(name, {AgentType.LETTA_V1: traits})
    agent = (await create(services)).agent
    assert agent.message_buffer_autoclear
    changed = pb.UpdateAgentRequest(agent_id=agent.id, message_buffer_autoclear=False)
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(changed)
    assert [violation.field for violation in raised.value.violations] == [
        "message_buffer_autoclear"
    ]
    unchanged = (await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))).agent
    assert unchanged.message_buffer_autoclear


async def test_compaction_settings_are_stored_and_replaced_as_a_whole(
    services: InnerServices,
) -> None:
    settings: dict[str, Any] = {
        "model": "test/test-model",
        "mode": "all",
        "sliding_window_percentage": 0.5,
    }
    agent = (await create(services, compaction=settings)).agent
    assert agent.compaction == pb.CompactionSettings(**settings)

    changed = pb.CompactionSettings(
        prompt="Sum up.",
        clip_chars=500,
        model_settings=pb.ModelConfig(temperature=0.0, reasoning_effort="low"),
        prompt_acknowledgement=True,
    )
    request = pb.UpdateAgentRequest(agent_id=agent.id, compaction=changed)
    assert (await services.agents.UpdateAgent(request)).agent.compaction == changed
    request = pb.UpdateAgentRequest(agent_id=agent.id, description="x")
    assert (await services.agents.UpdateAgent(request)).agent.compaction == changed
    unknown = pb.CompactionSettings(model="nobody/model")
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(
            pb.UpdateAgentRequest(agent_id=agent.id, compaction=unknown)
        )
    assert raised.value.violations[0].field == "compaction.model"


async def test_agents_are_listed_by_ids(services: InnerServices) -> None:
    first, second, other = [
        (await create(services, name=name)).agent for name in ("Al", "Bo", "Cy")
    ]
    wanted = [second.id, first.id, first.id, new_id("agent")]

    listed = await services.agents.ListAgents(pb.ListAgentsRequest(agent_ids=wanted))
    assert list(listed.agents) == [first, second], "each known agent once, ordered by id"
    request = pb.ListAgentsRequest(agent_ids=wanted, names_only=True, page_size=1)
    page = await services.agents.ListAgents(request)
    assert list(page.agents) == [pb.Agent(id=first.id, name="Al", create_time=first.create_time)]
    request.page_token = page.next_page_token
    last = await services.agents.ListAgents(request)
    assert [agent.id for agent in last.agents] == [second.id]
    assert last.next_page_token == ""
    request.agent_ids.append(other.id)
    with pytest.raises(InvalidArgumentError) as foreign:
        await services.agents.ListAgents(request)
    assert foreign.value.reason is Reason.INVALID_PAGE_TOKEN

    with services.signed_in():
        hidden = await services.agents.ListAgents(pb.ListAgentsRequest(agent_ids=wanted))
    assert list(hidden.agents) == [], "the ids belong to another project"
    for agent_ids, field in (
        ([new_id("agent")] * 501, "agent_ids"),
        ([first.id, "agent-1"], "agent_ids[1]"),
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            await services.agents.ListAgents(pb.ListAgentsRequest(agent_ids=agent_ids))
        assert [violation.field for violation in refused.value.violations] == [field]


async def test_agents_are_listed_by_pages_tags_and_name(services: InnerServices) -> None:
    for number in range(5):
        tags = ["even"] if number % 2 == 0 else ["odd"]
        await create(services, name=f"Agent {number}", tags=[*tags, "all"])

    names: list[str] = []
    token = ""
    while True:
        request = pb.ListAgentsRequest(page_size=2, page_token=token)
        page = await services.agents.ListAgents(request)
        names += [agent.name for agent in page.agents]
        token = page.next_page_token
        if not token:
            break
    assert names == [f"Agent {number}" for number in range(5)]

    async def listed(**fields: Any) -> list[str]:
        response = await services.agents.ListAgents(pb.ListAgentsRequest(**fields))
        return [agent.name for agent in response.agents]

    assert await listed(tags=["even", "all"]) == ["Agent 0", "Agent 2", "Agent 4"]
    assert await listed(name_contains="AGENT 3") == ["Agent 3"]
    assert await listed(name_contains="%") == []
    with pytest.raises(InvalidArgumentError):
        await listed(page_token="bogus")
    with services.signed_in():
        assert await listed() == []


async def test_agent_is_found_by_id_or_name_and_not_by_both_or_neither(
    services: InnerServices,
) -> None:
    made = await create(services, name="Bo")
    by_id = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=made.agent.id))
    by_name = await services.agents.GetAgent(pb.GetAgentRequest(name="Bo"))
    assert by_id.agent == by_name.agent == made.agent
    for wrong in (pb.GetAgentRequest(), pb.GetAgentRequest(agent_id=made.agent.id, name="Bo")):
        with pytest.raises(InvalidArgumentError):
            await services.agents.GetAgent(wrong)
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.GetAgent(pb.GetAgentRequest(agent_id=new_id("block")))
    assert raised.value.reason is Reason.INVALID_ID
    with services.signed_in(), pytest.raises(NotFoundError):
        await services.agents.GetAgent(pb.GetAgentRequest(agent_id=made.agent.id))


async def test_updates_cannot_exceed_the_number_of_metadata_pairs(services: InnerServices) -> None:
    made = await create(services, name="Bo", metadata={f"a{number}": "1" for number in range(64)})

    async def update(**metadata: str) -> pb.Agent:
        request = pb.UpdateAgentRequest(agent_id=made.agent.id, metadata=metadata)
        return (await services.agents.UpdateAgent(request)).agent

    with pytest.raises(InvalidArgumentError) as raised:
        await update(b="2")
    assert [violation.field for violation in raised.value.violations] == ["metadata"]
    replaced = await update(a0="", b="2")
    assert len(replaced.metadata) == 64
    assert replaced.metadata["b"] == "2"


async def test_an_update_changes_only_the_set_fields_and_only_once(services: InnerServices) -> None:
    made = await create(services, name="Bo", description="old", metadata={"a": "1", "b": "2"})
    request = pb.UpdateAgentRequest(
        request_id="update-1",
        agent_id=made.agent.id,
        name="Boo",
        tools=pb.NameList(names=["conversation_search", "conversation_search"]),
        metadata={"a": "", "c": "3"},
        expected_revision=1,
    )
    changed = (await services.agents.UpdateAgent(request)).agent
    assert (changed.name, changed.description, changed.revision) == ("Boo", "old", 2)
    assert list(changed.tools) == ["conversation_search"]
    assert dict(changed.metadata) == {"b": "2", "c": "3"}

    again = (await services.agents.UpdateAgent(request)).agent
    assert again == changed
    later = pb.UpdateAgentRequest(agent_id=made.agent.id, expected_revision=1, name="Late")
    with pytest.raises(AbortedError) as raised:
        await services.agents.UpdateAgent(later)
    assert raised.value.metadata["current"] == "2"
    await create(services, name="Other")
    clash = pb.UpdateAgentRequest(agent_id=made.agent.id, name="Other")
    with pytest.raises(AlreadyExistsError):
        await services.agents.UpdateAgent(clash)
    unknown = pb.UpdateAgentRequest(agent_id=made.agent.id, tools=pb.NameList(names=["nope"]))
    with pytest.raises(NotFoundError):
        await services.agents.UpdateAgent(unknown)


async def test_a_model_that_its_provider_does_not_have_is_refused(services: InnerServices) -> None:
    name = new_id("agent")
    with pytest.raises(InvalidArgumentError) as refused:
        await create(services, name=name, model={"handle": "listing/nope"})
    assert [violation.field for violation in refused.value.violations] == ["model.handle"]
    assert "listing/test-model" in refused.value.message
    made = await create(services, name=name, model={"handle": "listing/test-model"})
    request = pb.UpdateAgentRequest(
        agent_id=made.agent.id, model=pb.ModelConfig(handle="listing/nope")
    )
    with pytest.raises(InvalidArgumentError):
        await services.agents.UpdateAgent(request)
    shown = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=made.agent.id))
    assert (shown.agent.model.handle, shown.agent.revision) == ("listing/test-model", 1)


async def test_new_base_prompt_is_used_by_the_next_turn(services: InnerServices) -> None:
    made = await create(services)
    request = pb.UpdateAgentRequest(agent_id=made.agent.id, system="Speak like a pirate.")
    await services.agents.UpdateAgent(request)
    services.model.script(say("Arr."))
    await services.run(made.agent, "Hello.")
    assert services.model.requests[-1].system.startswith("Speak like a pirate.\n\n<memory_blocks>")
    window = await services.window(made.agent)
    assert window.messages[0].parts[0].text.text == services.model.requests[-1].system


async def test_deleting_an_agent_deletes_its_data_and_keeps_shared_blocks(
    services: InnerServices,
) -> None:
    shared = await services.blocks.CreateBlock(
        block_pb.CreateBlockRequest(block=block_pb.NewBlock(label="shared", value="ours"))
    )
    made = await create(services, blocks=[{"label": "own"}], block_ids=[shared.block.id])
    services.model.script(say("Hi."))
    await services.run(made.agent, "Hello.")

    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=made.agent.id))

    with pytest.raises(NotFoundError):
        await services.agents.GetAgent(pb.GetAgentRequest(agent_id=made.agent.id))
    with pytest.raises(NotFoundError):
        await services.window(made.agent)
    with pytest.raises(NotFoundError):
        await services.run(made.agent, "Hello?")
    left = await services.blocks.ListBlocks(block_pb.ListBlocksRequest())
    assert [block.id for block in left.blocks] == [shared.block.id]
    with pytest.raises(NotFoundError):
        await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=made.agent.id))


async def test_conversations_are_listed_and_made_once(services: InnerServices) -> None:
    made = await create(services)
    request = pb.CreateConversationRequest(
        request_id="talk-1", agent_id=made.agent.id, title="Work"
    )
    first = (await services.agents.CreateConversation(request)).conversation
    again = (await services.agents.CreateConversation(request)).conversation
    assert first == again

    # A week later the answer is no longer stored beside the conversation.
    connection = await asyncpg.connect(services.urls["agent_loop"].admin_url)
    try:
        await connection.execute("DELETE FROM agent_loop.requests WHERE request_id = 'talk-1'")
    finally:
        await connection.close()
    assert (await services.agents.CreateConversation(request)).conversation == first
    request.title = "Play"
    with pytest.raises(AlreadyExistsError) as raised:
        await services.agents.CreateConversation(request)
    assert raised.value.reason is Reason.REQUEST_ID_REUSED

    listing = pb.ListConversationsRequest(agent_id=made.agent.id)
    listed = await services.agents.ListConversations(listing)
    assert [c.id for c in listed.conversations] == [made.agent.default_conversation_id, first.id]
    assert roles((await services.window(made.agent, first.id)).messages) == ["system"]
    missing = pb.ListConversationsRequest(agent_id=new_id("agent"))
    with pytest.raises(NotFoundError):
        await services.agents.ListConversations(missing)


async def test_context_window_is_returned_by_parts(services: InnerServices) -> None:
    made = await create(services, blocks=[{"label": "human", "value": "Ada"}])
    services.model.script(say("Hi."))
    await services.run(made.agent, "Hello.")

    request = pb.GetContextWindowRequest(agent_id=made.agent.id)
    response = await services.agents.GetContextWindow(request)

    parts = {part.name: part for part in response.parts}
    assert list(parts) == [
        "system",
        "blocks",
        "files",
        "rules",
        "metadata",
        "tools",
        "summary",
        "messages",
    ]
    assert response.context_window == 32000
    assert response.used_tokens == pytest.approx(
        sum(part.tokens for part in response.parts), abs=len(response.parts)
    )
    assert (parts["blocks"].count, parts["tools"].count, parts["messages"].count) == (1, 6, 2)
    assert parts["system"].characters == len(system_prompt("letta_v1"))
    assert parts["files"].tokens == parts["summary"].tokens == 0
    assert parts["metadata"].tokens > 0
    assert response.system_message == services.model.requests[-1].system


async def test_models_are_listed_with_endpoints_and_default(services: InnerServices) -> None:
    listed = await services.models.ListModels(model_pb.ListModelsRequest())

    names = ["blind", "claude", "listing", "studio", "test"]
    handles = [
        "blind/test-model",
        "claude/claude-sonnet-5",
        *(f"{n}/test-model" for n in names[1:]),
    ]
    assert [model.handle for model in listed.models] == handles
    assert [model.is_default for model in listed.models] == [*[False] * 5, True]
    assert [endpoint.name for endpoint in listed.endpoints] == [
        "test",
        "claude",
        "blind",
        "listing",
        "studio",
    ]
    assert all(endpoint.reachable for endpoint in listed.endpoints)
    assert listed.notice == ""
    windows = {m.provider: (m.context_window, m.context_window_source) for m in listed.models}
    # The double lists no windows: a window that is not configured is unknown.
    assert windows["blind"] == (8_000, "settings")
    assert windows["test"] == (0, "")
    assert listed.known_models_date


async def test_unimplemented_methods_return_unimplemented(services: InnerServices) -> None:
    with pytest.raises(UnimplementedError) as raised:
        await services.agents.ImportAgent(iter([pb.ImportAgentRequest()]))
    assert raised.value.reason is Reason.NOT_BUILT


async def test_refused_block_of_a_new_agent_is_named_as_in_the_request(
    services: InnerServices,
) -> None:
    blocks = [block_pb.NewBlock(label="human"), block_pb.NewBlock(label="no label")]
    with pytest.raises(InvalidArgumentError) as refused:
        await create(services, blocks=blocks)
    assert [violation.field for violation in refused.value.violations] == ["blocks[1].label"]
    assert "new_blocks" not in refused.value.message
