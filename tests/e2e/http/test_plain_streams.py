"""Streams for clients that send plain JSON, such as curl."""

from __future__ import annotations

import json

import httpx2
import pytest

from doubles.script import say
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEND_MESSAGE = "/strata.api.gateway.v1.RunService/SendMessage"
FORM = {"content-type": "application/x-www-form-urlencoded"}


def body_of(agent_id: str, text: str = "Hello.") -> bytes:
    parts = [{"text": {"text": text}}]
    return json.dumps({"agentId": agent_id, "messages": [{"parts": parts}]}).encode()


async def test_turn_streams_as_lines(system: System, http: httpx2.AsyncClient) -> None:
    system.model.script(say("Hello to you. It is a fine day.", pause=0.05))
    agent = await system.make_agent()
    pieces = 0
    lines = b""
    # What curl prints about the body of -d.
    async with http.stream(
        "POST", SEND_MESSAGE, content=body_of(agent.id), headers=FORM
    ) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        async for piece in response.aiter_raw():
            lines += piece
            pieces += 1
    assert pieces > 2, "the events come one by one"
    events = [json.loads(line)["event"] for line in lines.splitlines()]
    text = "".join(event.get("textDelta", {}).get("text", "") for event in events)
    assert text == "Hello to you. It is a fine day."
    assert events[-1]["runFinished"]["stopReason"] == "STOP_REASON_END_TURN"


async def test_turn_streams_as_server_sent_events(system: System, http: httpx2.AsyncClient) -> None:
    system.model.script(say("Hello."))
    agent = await system.make_agent()
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    response = await http.post(SEND_MESSAGE, content=body_of(agent.id), headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert "runFinished" in json.loads(events[-1].removeprefix("data: "))["event"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_argument"),
        (b"nothing", 400, "invalid_argument"),
        (b'{"agent": 1}', 400, "invalid_argument"),
        (rb'{"messages": "\ud800"}', 400, "invalid_argument"),
        (
            body_of("agent-00000000-0000-7000-8000-000000000000"),
            404,
            "not_found",
        ),
        (b" " * 5_000_000, 413, "resource_exhausted"),
    ],
)
async def test_error_before_the_first_message_has_a_status(
    http: httpx2.AsyncClient, body: bytes, status: int, code: str
) -> None:
    response = await http.post(SEND_MESSAGE, content=body, headers=FORM)
    assert (response.status_code, response.json()["code"]) == (status, code)


async def test_stream_needs_a_key(system: System) -> None:
    async with httpx2.AsyncClient(base_url=system.http_url) as client:
        response = await client.post(SEND_MESSAGE, content=body_of("agent"), headers=FORM)
    assert response.status_code == 401


async def test_unary_call_needs_no_content_type(system: System, http: httpx2.AsyncClient) -> None:
    agent = await system.make_agent()
    path = "/strata.api.agent_loop.v1.AgentService/GetAgent"
    content = json.dumps({"agentId": agent.id}).encode()
    response = await http.post(path, content=content, headers=FORM)
    assert response.json()["agent"]["name"] == agent.name
