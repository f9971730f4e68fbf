"""``search_memory``: the newest message of the user is the query, over both memories."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio

from doubles.script import call, say
from inner_services import InnerServices
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def agent(services: InnerServices) -> agent_pb.Agent:
    """An agent with a message about a restaurant, and a fact in its archive."""
    made = await services.make_agent(tools=["search_memory"])
    services.model.script(say("Lovely."), say("Bless you."))
    await services.run(made, "We had dinner at the restaurant Trattoria Zanetti yesterday.")
    await services.run(made, "My cat is called Mirko.")
    passage = passage_pb.NewPassage(text="The restaurant that Ada likes best serves risotto.")
    await services.passages.InsertPassage(
        passage_pb.InsertPassageRequest(agent_id=made.id, passage=passage)
    )
    return made


async def ask(
    services: InnerServices, agent: agent_pb.Agent, text: str, **arguments: Any
) -> tuple[bool, Any, RunEvents]:
    """Runs a turn with a search; returns whether it succeeded, the return, and the turn."""
    services.model.script(call("search_memory", arguments), say("There it is."))
    ran = await services.run(agent, text)
    (tool_return,) = ran.tool_returns
    assert (tool_return.status == message_pb2.TOOL_STATUS_OK) == (
        json.loads(tool_return.content)["status"] == "OK"
    )
    message = json.loads(tool_return.content)["message"]
    return tool_return.status == message_pb2.TOOL_STATUS_OK, message, ran


def contents(messages: list[dict[str, Any]]) -> str:
    return "\n".join(message["content"] for message in messages)


async def test_it_finds_the_subject_of_the_user_without_a_query(
    services: InnerServices, agent: agent_pb.Agent
) -> None:
    ok, content, _ = await ask(services, agent, "What was that restaurant called again?")
    assert ok
    assert "Zanetti" in contents(content["conversation"])
    assert "risotto" in contents(content["archival"])
    # The question itself is in the window, so it is no result.
    assert "called again" not in contents(content["conversation"])


async def test_keywords_are_searched_too_and_no_result_is_repeated(
    services: InnerServices, agent: agent_pb.Agent
) -> None:
    keywords = ["Mirko", "Zanetti", " ", "Mirko"]
    _, content, _ = await ask(services, agent, "The restaurant?", convo_keyword_queries=keywords)
    texts = [message["content"] for message in content["conversation"]]
    assert "Mirko" in contents(content["conversation"])
    assert len(
        {(message["content"], message["timestamp"]) for message in content["conversation"]}
    ) == len(texts)


async def test_the_time_frame_bounds_both_memories(
    services: InnerServices, agent: agent_pb.Agent
) -> None:
    ok, content, _ = await ask(services, agent, "The restaurant?", end_minutes_ago=60)
    assert ok
    assert (content["conversation"], content["archival"]) == ([], [])
    _, content, _ = await ask(services, agent, "The restaurant?", start_minutes_ago=60)
    assert "Zanetti" in contents(content["conversation"])
    assert "risotto" in contents(content["archival"])
    ok, content, _ = await ask(services, agent, "And?", start_minutes_ago=5, end_minutes_ago=10)
    assert not ok
    assert "further back" in content
