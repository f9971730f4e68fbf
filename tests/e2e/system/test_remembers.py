"""Facts stored before `kill -9` are retrieved after the restart, each from its memory tier."""

from __future__ import annotations

import json
import re

import pytest

from chat_messages import roles, text_of
from doubles.script import Call, ModelCall, Reply, Step, call, say
from live import LiveSystem, alive, using
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from whole_system import System

pytestmark = pytest.mark.timeout(240)

IN_BLOCK = "Her name is Ada Lovelace."
IN_ARCHIVE = "Her boat Kestrel lies in the harbour of Whitby."
SAID = "By the way, my favourite colour is teal."
QUESTION = "Who am I, where is my boat, and which colour do I like?"


async def tell(system: System, agent: agent_pb.Agent) -> None:
    """Sends three facts: one for a block, one for archival memory, one that stays in the log."""
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": IN_BLOCK}),
        say("Pleased to meet you."),
        call("archival_memory_insert", {"content": IN_ARCHIVE, "tags": ["boat"]}),
        say("A fine harbour."),
        say("A fine colour."),
    )
    for text in ("I am Ada Lovelace.", "My boat Kestrel lies in the harbour of Whitby.", SAID):
        ran = await system.send(agent, text)
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN


def searching_model(request: ModelCall) -> Step:
    """A model that searches each fact in its tier, and answers only from the results."""
    if not request.answered:
        return Reply(
            calls=(
                Call("conversation_search", {"query": "favourite colour", "roles": ["user"]}),
                Call("archival_memory_search", {"query": "where is the boat moored?"}),
            )
        )
    recalled, archived = (json.loads(text)["message"] for text in request.answered)
    human = re.search(r"<human>.*</human>", request.system, re.DOTALL)
    return say(
        "\n".join(
            (
                f"Block: {_find(r'Her name is (.+?)[.]', human.group() if human else '')}",
                f"Archive: {_find(r'harbour of (.+?)[.]', json.dumps(archived))}",
                f"Said: {_find(r'favourite colour is (.+?)[.]', json.dumps(recalled))}",
            )
        )
    )


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else "unknown"


ANSWER = "Block: Ada Lovelace\nArchive: Whitby\nSaid: teal"


@pytest.mark.asyncio(loop_scope="session")
async def test_three_facts_are_remembered_after_all_processes_are_killed(
    single_live: LiveSystem,
) -> None:
    live = single_live
    system = live.connect()
    agent = await system.make_agent(name="assistant")
    await tell(system, agent)
    before = await system.log(agent)
    await system.channel.close()

    killed = await live.kill()

    assert len(killed) >= 3, "at least the gateway, the database and the vector engine were killed"
    assert alive(killed) == []
    assert using(live.data) == []

    system = await live.start_system()
    agent = (await system.agents.GetAgent(agent_pb.GetAgentRequest(name="assistant"))).agent
    assert await system.log(agent) == before, "every acknowledged message is unchanged"
    live.model.requests.clear()
    live.model.respond(searching_model)

    # Asked in the old conversation, and in a new one whose window has none of these messages.
    created = await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=agent.id)
    )
    for conversation in (agent.default_conversation_id, created.conversation.id):
        ran = await system.send(agent, QUESTION, conversation_id=conversation)
        assert ran.text == ANSWER

    shown = [request.system for request in live.model.requests]
    assert all(f"<value>\n{IN_BLOCK}\n</value>\n</human>" in system for system in shown)
    assert all("- 1 total memories you created are stored" in system for system in shown)
    assert all("- Available archival memory tags: boat" in system for system in shown)
    assert SAID not in json.dumps(live.model.requests[2].body), "the new window is empty"
    assert roles(await system.log(agent))[-4:] == ["user", "assistant", "tool", "assistant"]
    await system.channel.close()
    assert await live.stop() == 0


# Slow only: in CI, tests/faults/test_death_of_the_whole.py kills a Strata in a turn.
@pytest.mark.slow
async def test_a_turn_resumes_after_all_processes_are_killed(
    live: LiveSystem,
) -> None:
    system = await live.start_system()
    agent = await system.make_agent(name="assistant")
    live.model.script(Reply(text="Never said in full.", piece=1, pause=0.2))
    stream = system.begin(agent, "Are you there?")
    await stream.until("text_delta")
    run_id = stream.run_id
    await live.kill()
    stream.leave()
    await system.channel.close()

    live.model.script(say("Yes, I am."))
    system = await live.start_system()
    ran = await system.follow(run_id)

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert (await system.run(run_id)).attempt == 2
    log = await system.log(agent)
    assert roles(log) == ["system", "user", "assistant"]
    assert text_of(log[-1]) == "Yes, I am."
    live.model.script(say("As ever."))
    assert (await system.send(agent, "And now?")).text == "As ever."
    await system.channel.close()
