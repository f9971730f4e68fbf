"""Forks of conversations, and summaries that the agent opens, through the real services."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Reply, call, say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


def text(message: message_pb2.Message) -> str:
    return "".join(part.text.text for part in message.parts)


async def talked(services: InnerServices, *pairs: tuple[str, str], **fields: Any) -> pb.Agent:
    agent = await services.make_agent(**fields)
    for question, answer in pairs:
        services.model.script(say(answer))
        await services.run(agent, question)
    return agent


async def fork(
    services: InnerServices, agent: pb.Agent, until: str = "", **fields: Any
) -> pb.Conversation:
    fields.setdefault("conversation_id", agent.default_conversation_id)
    request = pb.ForkConversationRequest(until_message_id=until, **fields)
    made: pb.Conversation = (await services.agents.ForkConversation(request)).conversation
    return made


async def expand(
    services: InnerServices, agent: pb.Agent, arguments: dict[str, Any], conversation: str = ""
) -> Any:
    """Runs a turn that calls the tool; returns the shown return and the complete one."""
    services.model.script(call("expand_summary", arguments), say("Thanks."))
    await services.run(
        agent, "Look it up.", conversation_id=conversation or agent.default_conversation_id
    )
    [shown] = [m for m in services.model.requests[-1].body["messages"] if m["role"] == "tool"][-1:]
    return json.loads(shown["content"])["message"]


async def test_a_fork_continues_from_a_message_in_another_direction(
    services: InnerServices,
) -> None:
    agent = await talked(services, ("red or blue?", "Red."), ("why?", "It is warm."))
    before = await services.window(agent)
    made = await fork(services, agent, before.messages[2].id, title="blue", request_id="r1")
    assert (made.agent_id, made.title) == (agent.id, "blue")
    assert made.forked_from_id == agent.default_conversation_id

    services.model.script(say("Then blue."))
    ran = await services.run(agent, "no, blue!", conversation_id=made.id)
    assert ran.text == "Then blue."
    texts = [
        m["content"] for m in services.model.requests[-1].body["messages"] if m["role"] != "system"
    ]
    assert texts == ["red or blue?", "Red.", "no, blue!"]
    assert await services.window(agent) == before
    listed = await services.messages.ListMessages(
        message_pb.ListMessagesRequest(conversation_id=made.id)
    )
    assert [text(m) for m in listed.messages][1:] == [
        "red or blue?",
        "Red.",
        "no, blue!",
        "Then blue.",
    ]
    assert [m.copied_from_id for m in listed.messages][1:3] == [m.id for m in before.messages[1:3]]

    assert await fork(services, agent, before.messages[2].id, title="blue", request_id="r1") == made
    with pytest.raises(AlreadyExistsError) as reused:
        await fork(services, agent, request_id="r1")
    assert reused.value.reason is Reason.REQUEST_ID_REUSED
    conversations = await services.agents.ListConversations(
        pb.ListConversationsRequest(agent_id=agent.id)
    )
    assert [c.id for c in conversations.conversations] == [agent.default_conversation_id, made.id]


async def test_invalid_forks_are_refused(services: InnerServices) -> None:
    agent = await talked(services, ("one", "two"))
    other = await talked(services, ("three", "four"))
    foreign = (await services.window(other)).messages[1].id
    for until in (foreign, new_id("message")):
        with pytest.raises(NotFoundError) as raised:
            await fork(services, agent, until)
        assert raised.value.reason is Reason.MESSAGE_NOT_FOUND
    with pytest.raises(NotFoundError) as raised:
        await fork(services, agent, conversation_id=new_id("conversation"))
    assert raised.value.reason is Reason.CONVERSATION_NOT_FOUND
    with services.signed_in(), pytest.raises(NotFoundError):
        await fork(services, agent)
    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=agent.id))
    with pytest.raises(NotFoundError):
        await fork(services, agent)


async def test_a_fork_while_tools_run_has_whole_pairs_and_continues(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    services.model.script(
        Reply(
            calls=[
                Call("conversation_search", {"query": "tea"}),
                Call("archival_memory_search", {"query": "tea"}),
            ]
        ),
        say("Nothing about tea."),
    )
    await services.run(agent, "tea?")
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool", "assistant"]
    made = await fork(services, agent, window.messages[2].id)
    assert roles((await services.window(agent, made.id)).messages) == roles(window.messages)[:4]
    services.model.script(say("Coffee, then."))
    assert (await services.run(agent, "coffee?", conversation_id=made.id)).text == "Coffee, then."


async def test_concurrent_forks_of_a_continuing_conversation_are_equal(
    services: InnerServices,
) -> None:
    agent = await talked(services, *((f"q{n}", f"a{n}") for n in range(3)))
    until = (await services.window(agent)).messages[4].id
    services.model.respond(lambda asked: say("Go on."))
    made = await asyncio.gather(
        *(fork(services, agent, until) for _ in range(4)), services.run(agent, "meanwhile")
    )
    services.model._responder = None
    for conversation in made[:4]:
        assert isinstance(conversation, pb.Conversation)
        window = await services.window(agent, conversation.id)
        assert [text(m) for m in window.messages[1:]] == ["q0", "a0", "q1", "a1"]
    matches = await services.messages.SearchMessages(
        message_pb.SearchMessagesRequest(agent_id=agent.id, query="q1")
    )
    assert [text(hit.message) for hit in matches.hits].count("q1") == 1


async def test_without_a_summary_there_is_nothing_to_expand(services: InnerServices) -> None:
    agent = await talked(services, ("one", "two"))
    assert await expand(services, agent, {}) == {
        "message": "There is no summary: nothing has left your view.",
        "messages": [],
    }


async def test_agent_reads_the_messages_that_its_summary_replaced(services: InnerServices) -> None:
    agent = await talked(
        services,
        ("The code of the vault is 7-Alpha-93.", "Noted."),
        ("And my cat is called Mimi.", "A fine name."),
        ("What a day.", "Indeed."),
        compaction={"mode": "all"},
    )
    assert "expand_summary" in agent.tools
    services.model.script(say("- They talked of a vault and a cat."))
    compacted = await services.agents.CompactConversation(
        pb.CompactConversationRequest(agent_id=agent.id)
    )
    assert compacted.HasField("summary")

    page = await expand(services, agent, {"limit": 3})
    assert page["message"] == (
        "Showing 3 of the messages that the summary replaces (numbers 1 to 4)."
        " Continue with first_number 4."
    )
    assert [(m["number"], m["role"], m["content"]) for m in page["messages"]] == [
        (1, "user", "The code of the vault is 7-Alpha-93."),
        (2, "assistant", "Noted."),
        (3, "user", "And my cat is called Mimi."),
    ]
    rest = await expand(services, agent, {"first_number": page["next_number"]})
    assert [m["number"] for m in rest["messages"]] == [4]
    assert rest["next_number"] is None
    assert (await expand(services, agent, {"start_date": "2001-01-01"}))["messages"][0][
        "number"
    ] == 1
    assert (await expand(services, agent, {"start_date": "2999-01-01"}))["messages"] == []
    assert "Invalid start_date format" in await expand(services, agent, {"start_date": "last week"})
    # In a fork the summary represents the earlier messages.
    made = await fork(services, agent)
    there = await expand(services, agent, {"limit": 1}, made.id)
    assert there["messages"][0]["content"] == "The code of the vault is 7-Alpha-93."


async def test_a_page_of_a_summary_fits_into_a_small_window(services: InnerServices) -> None:
    long = 'Ø"\n' * 900
    agent = await talked(
        services,
        *((f"Number {n}. {long}", f"Answer {n}.") for n in range(4)),
        compaction={"mode": "all"},
        model={"handle": "test/test-model", "context_window": 16_000},
    )
    await services.agents.UpdateAgent(
        pb.UpdateAgentRequest(
            agent_id=agent.id,
            model=pb.ModelConfig(handle="test/test-model", context_window=8192),
        )
    )
    services.model.respond(lambda asked: say("- Numbers."))
    await services.agents.CompactConversation(pb.CompactConversationRequest(agent_id=agent.id))
    services.model._responder = None
    seen: list[str] = []
    number = 0
    for _ in range(12):
        page = await expand(services, agent, {"first_number": number})
        assert isinstance(page, dict), "the text is cut in the middle"
        seen += [m["content"][:9] for m in page["messages"]]
        if page["next_number"] is None:
            break
        number = page["next_number"]
    expected = [f"{word} {n}." for n in range(4) for word in ("Number", "Answer")]
    assert [content.rstrip(" ") for content in seen] == expected[: len(seen)]
    assert len(seen) >= 6
    [alone] = (await expand(services, agent, {"limit": 1}))["messages"]
    assert "[truncated" in alone["content"]
    assert len(alone["content"]) > 1_500


async def test_a_search_covers_all_conversations_unless_one_is_named(
    services: InnerServices,
) -> None:
    agent = await talked(services, ("The heron is called Olga.", "A grey bird."))
    other = (
        await services.agents.CreateConversation(pb.CreateConversationRequest(agent_id=agent.id))
    ).conversation
    services.model.script(say("A white bird."))
    await services.run(agent, "The egret is called Olga too.", conversation_id=other.id)

    async def matching_texts(conversation: str = "") -> set[str]:
        request = message_pb.SearchMessagesRequest(
            agent_id=agent.id, conversation_id=conversation, query='"Olga"', limit=10
        )
        response = await services.messages.SearchMessages(request)
        return {text(hit.message) for hit in response.hits}

    heron, egret = "The heron is called Olga.", "The egret is called Olga too."
    assert await matching_texts() == {heron, egret}
    assert await matching_texts(other.id) == {egret}
    assert await matching_texts(agent.default_conversation_id) == {heron}
    # The agent's own search covers all of them.
    services.model.script(call("conversation_search", {"query": '"Olga"'}), say("Two."))
    await services.run(agent, "Who is she?", conversation_id=other.id)
    shown = [
        m["content"] for m in services.model.requests[-1].body["messages"] if m["role"] == "tool"
    ][-1]
    assert heron in shown
    assert egret in shown


async def test_a_manual_compaction_can_have_its_own_settings(services: InnerServices) -> None:
    agent = await talked(
        services, *((f"q{n}", f"a{n}") for n in range(4)), compaction={"prompt": "Mine."}
    )
    services.model.script(say("- Short."))
    request = pb.CompactConversationRequest(
        agent_id=agent.id, compaction=pb.CompactionSettings(mode="all", prompt="For once.")
    )
    done = await services.agents.CompactConversation(request)
    assert services.model.requests[-1].system == "For once."
    assert done.summary.parts[0].summary.message_count == 6
    shown = (await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))).agent
    assert (shown.compaction.mode, shown.compaction.prompt) == ("", "Mine.")
    for wrong in (
        pb.CompactionSettings(mode="some"),
        pb.CompactionSettings(clip_chars=3),
        pb.CompactionSettings(model="nobody/knows"),
    ):
        with pytest.raises(InvalidArgumentError):
            await services.agents.CompactConversation(
                pb.CompactConversationRequest(agent_id=agent.id, compaction=wrong)
            )


async def test_an_export_has_all_messages_in_order(services: InnerServices) -> None:
    agent = await talked(services, *((f"q{n}", f"a{n}") for n in range(3)))
    made = await fork(services, agent, (await services.window(agent)).messages[2].id)
    services.model.script(say("there"))
    await services.run(agent, "here", conversation_id=made.id)

    async def exported(**which: str) -> list[message_pb2.Message]:
        stream = services.messages.ExportMessages(message_pb.ExportMessagesRequest(**which))
        return [message async for response in stream for message in response.messages]

    of_fork = await exported(conversation_id=made.id)
    assert [text(m) for m in of_fork][1:] == ["q0", "a0", "here", "there"]
    of_agent = [m for m in await exported(agent_id=agent.id) if m.role != message_pb2.ROLE_SYSTEM]
    assert [text(m) for m in of_agent] == [
        *(f"{w}{n}" for n in range(3) for w in "qa"),
        "here",
        "there",
    ]
    with pytest.raises(NotFoundError):
        await exported(agent_id=new_id("agent"))
    for wrong in ({}, {"agent_id": agent.id, "conversation_id": made.id}):
        with pytest.raises(InvalidArgumentError):
            await exported(**wrong)


async def test_retention_is_set_through_the_api(services: InnerServices) -> None:
    kept = (await services.messages.GetRetention(message_pb.GetRetentionRequest())).retention
    assert (kept.days, kept.HasField("update_time")) == (0, False)
    done = await services.messages.SetRetention(message_pb.SetRetentionRequest(days=90))
    assert (done.retention.days, done.retention.HasField("update_time")) == (90, True)
    again = await services.messages.GetRetention(message_pb.GetRetentionRequest())
    assert again.retention == done.retention
    for days in (-1, 36_501):
        with pytest.raises(InvalidArgumentError):
            await services.messages.SetRetention(message_pb.SetRetentionRequest(days=days))
