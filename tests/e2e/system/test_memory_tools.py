"""Memory tools in whole turns: their returns, the next prompt, and the stored memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doubles.script import Call, ModelCall, Reply, call, say
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERY_TOOL = (
    "core_memory_append",
    "core_memory_replace",
    "memory",
    "memory_apply_patch",
    "memory_insert",
    "memory_replace",
    "memory_rethink",
    "memory_finish_edits",
)
FACTS = "Name: Ada\nCity: Graz"


async def remembering_agent(system: System, model: str = "", **fields: Any) -> agent_pb.Agent:
    """An agent with every memory tool and one block of two lines."""
    fields.setdefault("blocks", [block_pb.NewBlock(label="human", value=FACTS)])
    return await system.make_agent(model, tools=EVERY_TOOL, include_base_tools=False, **fields)


def edits_of(ran: RunEvents) -> list[event_pb.MemoryEdit]:
    """The memory edits in the events of a client."""
    return [
        edit
        for event in ran.events
        if event.HasField("tool_finished")
        for edit in event.tool_finished.memory_edits
    ]


def returned(request: ModelCall) -> list[dict[str, Any]]:
    """The returns of the last calls, as sent to the model."""
    return [json.loads(text) for text in request.answered]


@pytest.mark.parametrize(
    ("tool", "arguments", "operation", "human"),
    [
        (
            "core_memory_append",
            {"label": "human", "content": "Likes tea"},
            "append",
            f"{FACTS}\nLikes tea",
        ),
        (
            "core_memory_replace",
            {"label": "human", "old_content": "Graz", "new_content": "Linz"},
            "replace",
            "Name: Ada\nCity: Linz",
        ),
        (
            "memory_insert",
            {"label": "human", "new_str": "Age: 36", "insert_line": 1},
            "insert",
            "Name: Ada\nAge: 36\nCity: Graz",
        ),
        (
            "memory_replace",
            {"label": "human", "old_str": "Graz", "new_str": "Linz"},
            "string_replace",
            "Name: Ada\nCity: Linz",
        ),
        (
            "memory_rethink",
            {"label": "human", "new_memory": "Ada of Graz"},
            "rethink",
            "Ada of Graz",
        ),
        (
            "memory_apply_patch",
            {"label": "human", "patch": "@@\n Name: Ada\n-City: Graz\n+City: Linz"},
            "patch",
            "Name: Ada\nCity: Linz",
        ),
        (
            "memory",
            {"command": "str_replace", "path": "human", "old_str": "Graz", "new_str": "Linz"},
            "string_replace",
            "Name: Ada\nCity: Linz",
        ),
        (
            "memory",
            {"command": "insert", "path": "/memories/human", "insert_text": "Age: 36"},
            "insert",
            f"{FACTS}\nAge: 36",
        ),
    ],
)
async def test_edit_is_returned_shown_in_the_prompt_and_stored(
    system: System, tool: str, arguments: dict[str, Any], operation: str, human: str
) -> None:
    agent = await remembering_agent(system)
    system.model.script(call(tool, arguments), say("Noted."))
    ran = await system.send(agent, "Listen.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    (edit,) = edits_of(ran)
    assert (edit.label, edit.revision, edit.operation) == ("human", 2, operation)
    assert edit.diff.startswith("@@")
    asked, answered = system.model.requests
    assert set(asked.tool_names) == set(EVERY_TOOL)
    assert returned(answered)[0]["status"] == "OK"
    assert f"<value>\n{FACTS}\n</value>" in asked.system
    assert f"<value>\n{human}\n</value>" in answered.system
    assert (await system.block(agent, "human")).value == human
    assert await system.system_message(agent) == answered.system


async def test_creating_renaming_and_deleting_blocks_changes_the_prompt(system: System) -> None:
    agent = await remembering_agent(system)
    system.model.script(
        call("memory", {"command": "create", "path": "plans", "file_text": "1. Rest"}),
        call("memory", {"command": "rename", "old_path": "plans", "new_path": "ideas"}),
        call("memory", {"command": "delete", "path": "ideas"}),
        say("Done."),
    )
    ran = await system.send(agent, "Make plans.")

    assert [(edit.label, edit.operation) for edit in edits_of(ran)] == [
        ("plans", "create"),
        ("ideas", "rename"),
        ("ideas", "delete"),
    ]
    prompts = [request.system for request in system.model.requests]
    assert ["<plans>" in prompt for prompt in prompts] == [False, True, False, False]
    assert ["<ideas>" in prompt for prompt in prompts] == [False, False, True, False]


async def test_finishing_edits_ends_the_turn_as_the_prompt_states(system: System) -> None:
    agent = await remembering_agent(system)
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": "Age: 36"}),
                Call("memory_finish_edits"),
            )
        )
    )
    ran = await system.send(agent, "Tidy up.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_TOOL_RULE
    assert ran.finished.step_count == 1
    (request,) = system.model.requests
    assert (
        "<tool_rule>\nmemory_finish_edits ends your response (yields control) when called\n"
        "</tool_rule>"
    ) in request.system
    assert (await system.block(agent, "human")).value == f"{FACTS}\nAge: 36"
    # The conversation continues, and its prompt shows the edit.
    system.model.script(say("36."))
    assert (await system.send(agent, "How old am I?")).text == "36."
    assert f"{FACTS}\nAge: 36" in system.model.requests[1].system


async def test_agent_without_the_finishing_tool_has_no_rule_about_it(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."))
    await system.send(agent, "Hello.")
    assert "<tool_usage_rules>" not in system.model.requests[0].system


async def test_two_agents_rewrite_a_shared_block_and_nothing_is_lost(system: System) -> None:
    """The error of the second edit contains the text of the first; the edit is then repeated."""
    first = await remembering_agent(system)
    shared = await system.block(first, "human")
    second = await remembering_agent(system, blocks=[], block_ids=[shared.id])
    theirs = "Name: Countess of Lovelace\nCity: London"
    mine = "Name: Mrs King\nCity: Graz"
    agreed = "Name: Countess of Lovelace, or Mrs King\nCity: London"

    async def other_agent(request: ModelCall) -> None:
        # While the first agent's model has not replied, the second agent has a whole turn.
        system.model.meanwhile = None
        await system.send(second, "She is the Countess of Lovelace, of London.")

    system.model.meanwhile = other_agent
    system.model.script(
        call("memory_rethink", {"label": "human", "new_memory": theirs}),
        say("Noted."),
        call("memory_rethink", {"label": "human", "new_memory": mine}),
        call("memory_rethink", {"label": "human", "new_memory": agreed}),
        say("Noted, too."),
    )
    ran = await system.send(first, "She is Mrs King.")

    assert ran.text == "Noted, too."
    refused = returned(system.model.requests[3])[0]
    assert refused["status"] == "Failed"
    assert "changed by others" in refused["message"]
    assert theirs in refused["message"]
    # By then the prompt shows the other edit, too, so that the next edit can include it.
    assert theirs in system.model.requests[3].system
    assert returned(system.model.requests[4])[0]["status"] == "OK"
    assert (await system.block(first, "human")).value == agreed
    versions = (
        await system.blocks.ListBlockVersions(block_pb.ListBlockVersionsRequest(block_id=shared.id))
    ).versions
    assert [version.value for version in versions] == [agreed, theirs, FACTS]
    assert [version.origin.agent_id for version in versions[:2]] == [first.id, second.id]


async def test_two_agents_rewrite_different_lines_of_a_shared_block(system: System) -> None:
    first = await remembering_agent(system)
    shared = await system.block(first, "human")
    second = await remembering_agent(system, blocks=[], block_ids=[shared.id])

    async def other_agent(request: ModelCall) -> None:
        system.model.meanwhile = None
        await system.send(second, "She moved to Linz.")

    system.model.meanwhile = other_agent
    system.model.script(
        call("memory_rethink", {"label": "human", "new_memory": "Name: Ada\nCity: Linz"}),
        say("Noted."),
        call("memory_rethink", {"label": "human", "new_memory": "Name: Ada King\nCity: Graz"}),
        say("Noted, too."),
    )
    await system.send(first, "She is Ada King.")

    merged = "Name: Ada King\nCity: Linz"
    assert (await system.block(first, "human")).value == merged
    assert merged in system.model.requests[3].system


async def test_conflict_in_line_numbered_form_is_reported_too(system: System) -> None:
    """Anthropic models see numbered lines; the edits are merged without the numbers."""
    agent = await remembering_agent(system, "anthropic/test-model")
    block = await system.block(agent, "human")

    async def somebody(request: ModelCall) -> None:
        system.model.meanwhile = None
        await system.blocks.UpdateBlock(
            block_pb.UpdateBlockRequest(block_id=block.id, value=f"Title: Countess\n{FACTS}")
        )

    system.model.meanwhile = somebody
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Age: 36", "insert_line": 1}),
        say("Noted."),
    )
    await system.send(agent, "I am 36.")

    assert "1→ Name: Ada\n2→ City: Graz" in system.model.requests[0].system
    assert (await system.block(agent, "human")).value == (
        "Title: Countess\nName: Ada\nAge: 36\nCity: Graz"
    )


async def test_a_passage_names_the_message_that_stored_it(system: System) -> None:
    agent = await system.make_agent()
    facts = ("Her boat is called Kestrel.", "Her sister lives in Whitby.", "Taxes are due in May.")
    system.model.script(
        Reply(calls=tuple(Call("archival_memory_insert", {"content": f}) for f in facts[:2])),
        call("archival_memory_insert", {"content": facts[2]}),
        say("Kept."),
    )
    ran = await system.send(agent, "Keep this.")

    first, second = [m for m in ran.messages if any(p.HasField("tool_call") for p in m.parts)]
    for message, texts in ((first, facts[:2]), (second, facts[2:])):
        request = passage_pb.ListPassagesRequest(agent_id=agent.id, message_id=message.id)
        passages = (await system.passages.ListPassages(request)).passages
        assert {passage.text for passage in passages} == set(texts)
        asked = {part.tool_call.tool_call_id for part in message.parts if part.tool_call.name}
        assert {passage.origin.tool_call_id for passage in passages} == asked
        assert {(passage.origin.run_id, passage.origin.agent_id) for passage in passages} == {
            (ran.run_id, agent.id)
        }


async def test_tools_are_offered_in_the_order_in_which_they_were_written(system: System) -> None:
    """Tools are at the beginning of a provider's prompt cache, so their order must be stable."""
    written = ("memory_replace", "archival_memory_search", "memory_insert", "conversation_search")
    agent = await system.make_agent(tools=(*written, *reversed(written)), include_base_tools=False)
    other = await system.make_agent(tools=sorted(written), include_base_tools=False)
    assert tuple(agent.tools) == written

    for one_agent in (agent, other, agent):
        system.model.script(call("conversation_search", {"query": "tea"}), say("No."))
        await system.send(one_agent, "Do I like tea?")
    # Changing another field keeps the order, and so does writing the same tools again.
    for change in ({"description": "Likes tea."}, {"tools": agent_pb.NameList(names=written)}):
        request = agent_pb.UpdateAgentRequest(agent_id=agent.id, **change)
        assert tuple((await system.agents.UpdateAgent(request)).agent.tools) == written
        system.model.script(say("Yes."))
        await system.send(agent, "And now?")

    orders = [tuple(request.tool_names) for request in system.model.requests]
    assert orders == [written, written, *[tuple(sorted(written))] * 2, *[written] * 4]

    names = agent_pb.NameList(names=tuple(reversed(written)))
    await system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, tools=names))
    system.model.script(say("Yes."))
    await system.send(agent, "And now?")
    assert tuple(system.model.requests[-1].tool_names) == tuple(reversed(written))


async def test_tags_are_sorted_by_use_in_the_metadata(system: System) -> None:
    agent = await system.make_agent()
    inserts = (
        Call("archival_memory_insert", {"content": "Ada likes tea.", "tags": ["zoo", "apple"]}),
        Call("archival_memory_insert", {"content": "Ada rows.", "tags": ["Äpfel", "zoo", "9"]}),
        Call("archival_memory_insert", {"content": "Ada sings.", "tags": ["Zebra", "10", "zoo"]}),
    )
    system.model.script(Reply(calls=inserts), say("Kept."), say("Yes."))
    await system.send(agent, "Keep this.")
    await system.send(agent, "Did you?")
    tags = "- Available archival memory tags: zoo, 10, 9, Zebra, apple, Äpfel\n"
    assert tags in system.model.requests[-1].system
    assert tags in await system.system_message(agent)


async def test_tool_errors_have_readable_messages(system: System) -> None:
    agent = await remembering_agent(system)
    system.model.script(
        Reply(
            calls=(
                Call("memory", {"command": "view", "path": "human"}),
                Call("memory_insert", {"label": "human"}),
                Call("memory_replace", {"label": "nobody", "old_str": "a", "new_str": "b"}),
                Call("memory", {"command": "delete", "path": "nobody"}),
            )
        ),
        say("Sorry."),
    )
    ran = await system.send(agent, "Try this.")

    tool_returns = returned(system.model.requests[1])
    assert [tool_return["status"] for tool_return in tool_returns] == ["Failed"] * 4
    assert tool_returns[0]["message"].startswith(
        "Error: Unknown command 'view'. Supported commands:"
    )
    assert "missing 'new_str'" in tool_returns[1]["message"]
    assert all("human" in tool_return["message"] for tool_return in tool_returns[2:])
    assert edits_of(ran) == []
