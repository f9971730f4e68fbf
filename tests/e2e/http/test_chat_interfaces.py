"""Chat interfaces for servers with OpenAI's API, by the requests that Open WebUI 0.12 sends.

It sends the whole chat with each request, its own tools, and requests for titles in the background.
Its connection is configured with the header for the conversation, as in docs/guides/http.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from chat_messages import text_of
from doubles.script import ModelCall, say
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT_ID = "1e37a5a8-9602-4fc3-aa34-66b6248b1cce"
CONVERSATION = "x-strata-conversation"
HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate, br",
    "User-Agent": "Python/3.11 aiohttp/3.14.5",
}
# Two of the 36 interfaces that it offers.
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_current_timestamp",
            "description": "Get the current Unix timestamp in seconds.",
            "parameters": {"properties": {}, "type": "object"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search_memories",
            "description": "Search the user's stored memories for relevant information.",
            "parameters": {
                "properties": {"query": {"description": "What to find", "type": "string"}},
                "required": ["query"],
                "type": "object",
            },
        },
    },
]
TOOL_NAMES = ["get_current_timestamp", "search_memories"]
TITLE_PROMPT = """### Task:
Generate a concise title summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Where do I live?
ASSISTANT:
</chat_history>"""


def chat_request(agent: pb.Agent, messages: Sequence[tuple[str, str]]) -> dict[str, Any]:
    sent = [{"role": role, "content": content} for role, content in messages]
    return {"stream": True, "model": agent.name, "messages": sent, "tools": TOOLS}


def title_request(agent: pb.Agent) -> dict[str, Any]:
    message = {"role": "user", "content": TITLE_PROMPT}
    return {"model": agent.name, "messages": [message], "stream": False, "max_tokens": 1000}


async def post(
    http: httpx2.AsyncClient, body: dict[str, Any], conversation: str = CHAT_ID
) -> httpx2.Response:
    headers = {**HEADERS, CONVERSATION: conversation}
    return await http.post("/v1/chat/completions", json=body, headers=headers)


def chunks_of(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1] if not line.startswith(":")]


def text_in(chunks: Sequence[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def texts(system: System, agent: pb.Agent, conversation_id: str = "") -> list[str]:
    """Returns what the user and the agent wrote in a conversation."""
    log = await system.log(agent, conversation_id)
    roles = (message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT)
    return [text_of(message) for message in log if message.role in roles]


async def test_a_chat_is_one_conversation_without_duplicate_messages(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.script(say("You live in Lisbon."), say("Your name is Ada."))
    agent = await system.make_agent()
    before = await texts(system, agent)
    first = chunks_of(await post(http, chat_request(agent, [("user", "Where do I live?")])))
    chat = [("user", "Where do I live?"), ("assistant", text_in(first)), ("user", "And my name?")]
    second = chunks_of(await post(http, chat_request(agent, chat)))
    assert text_in(second) == "Your name is Ada."
    assert first[0]["conversation_id"] == second[0]["conversation_id"]
    conversation = (
        await system.agents.GetConversation(
            pb.GetConversationRequest(agent_id=agent.id, external_id=CHAT_ID)
        )
    ).conversation
    assert conversation.id == first[0]["conversation_id"]
    assert await texts(system, agent, conversation.id) == [
        "Where do I live?",
        "You live in Lisbon.",
        "And my name?",
        "Your name is Ada.",
    ]
    assert await texts(system, agent) == before


async def test_tools_of_the_interface_are_ignored_and_listed(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.respond(lambda _: say("Here I am."))
    agent = await system.make_agent()
    request = chat_request(agent, [("user", "Hello.")])
    streamed = chunks_of(await post(http, request))
    assert streamed[0]["ignored_tools"] == TOOL_NAMES
    assert not any("ignored_tools" in chunk for chunk in streamed[1:])
    whole = (await post(http, {**request, "stream": False})).json()
    assert whole["ignored_tools"] == TOOL_NAMES
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    asked = {"model": agent.name, "input": "Hello.", "tools": flat}
    response = await http.post("/v1/responses", json=asked)
    assert response.json()["ignored_tools"] == TOOL_NAMES
    without_tools = {name: value for name, value in request.items() if name != "tools"}
    assert "ignored_tools" not in chunks_of(await post(http, without_tools))[0]
    offered = {name for call in system.model.requests for name in call.tool_names}
    assert offered
    assert offered.isdisjoint(TOOL_NAMES)


async def test_titles_come_from_an_agent_that_clears_its_window(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    before = await texts(system, agent)
    titles = await system.make_agent(type=pb.AGENT_TYPE_WORKFLOW, tools=[])

    def title(call: ModelCall) -> Any:
        prompts = [message for message in call.messages if "### Task:" in str(message)]
        return say(f'{{ "title": "{len(prompts)}" }}')

    system.model.respond(title)
    for _ in range(2):
        reply = (await post(http, title_request(titles))).json()
        assert reply["choices"][0]["message"]["content"] == '{ "title": "1" }'
    assert await texts(system, agent) == before


async def test_header_names_the_conversation_before_the_user_does(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.respond(lambda _: say("Here I am."))
    agent = await system.make_agent()
    request = {**chat_request(agent, [("user", "Hello.")]), "stream": False}

    async def conversation_of(header: str, **fields: str) -> str:
        return str((await post(http, {**request, **fields}, header)).json()["conversation_id"])

    of_chat = await conversation_of(CHAT_ID)
    assert await conversation_of(CHAT_ID, user="ann") == of_chat
    of_user = await conversation_of("", user="ann")
    assert of_user != of_chat
    # Requests that belong to no chat, such as those of its other pages, have an empty header.
    assert await conversation_of("") == agent.default_conversation_id
    headers = {CONVERSATION: "ann"}
    response = await http.post(
        "/v1/responses", json={"model": agent.name, "input": "Hello."}, headers=headers
    )
    assert response.json()["conversation"]["id"] == of_user


async def test_header_in_utf_8_and_user_of_the_same_name_have_one_conversation(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.respond(lambda _: say("Here I am."))
    agent = await system.make_agent()
    body = {"model": agent.name, "input": "Hello."}
    by_user = await http.post("/v1/responses", json={**body, "user": "Zoë"})
    headers = {CONVERSATION.encode(): "Zoë".encode()}
    by_header = await http.post("/v1/responses", json=body, headers=headers)
    assert by_header.json()["conversation"] == by_user.json()["conversation"]


async def test_a_header_that_is_not_a_valid_external_id_is_refused(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    refused = await post(http, chat_request(agent, [("user", "Hello.")]), "x" * 2000)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == CONVERSATION
