"""Large JSON bodies do not block other calls."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from loop_watch import assert_never_held
from strata.standalone.ports import pick_port
from whole_system import Shape, System, open_system

LONGEST_MS = 25.0
CREATE_AGENT = "/strata.api.agent_loop.v1.AgentService/CreateAgent"
SEND_MESSAGE = "/strata.api.gateway.v1.RunService/SendMessage"
# Its last field is unknown: the body is parsed whole, and nothing is created.
MISSPELLED = json.dumps({"tags": ["a"] * 500_000, "naem": "x"}).encode()
MANY_PARTS = json.dumps(
    {"messages": [{"parts": [{"text": {"text": "x"}}]}] * 60_000, "naem": "x"}
).encode()
MANY_MESSAGES = json.dumps(
    {"model": 7, "messages": [{"role": "user", "content": "x"}] * 100_000}
).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_world(databases: Any, vectors: Any) -> Any:
    # The event loop of the session has the tasks of other systems, and `loop_watch` would count
    # them.
    async with open_system(databases, vectors, Shape.IN_PROCESS, http_port=pick_port()) as system:
        yield system


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CREATE_AGENT, MISSPELLED),
        (SEND_MESSAGE, MANY_PARTS),
        ("/v1/chat/completions", MANY_MESSAGES),
        ("/v1/responses", MANY_MESSAGES.replace(b'"messages"', b'"input"')),
    ],
    ids=["unary", "stream", "chat", "responses"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_large_json_is_parsed_without_blocking_other_calls(
    small_world: System, path: str, body: bytes
) -> None:
    headers = {"x-api-key": small_world.key, "content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=small_world.http_url, timeout=60.0) as client:
        # The first request loads modules that later ones use.
        await client.post(path, content=b"{}", headers=headers)

        async def send() -> None:
            response = await client.post(path, content=body, headers=headers)
            assert response.status_code == 400, response.text

        await assert_never_held(send, LONGEST_MS)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CREATE_AGENT, MISSPELLED),
        (SEND_MESSAGE, MANY_PARTS),
        ("/v1/chat/completions", MANY_MESSAGES),
        ("/v1/responses", MANY_MESSAGES.replace(b'"messages"', b'"input"')),
    ],
    ids=["unary", "stream", "chat", "responses"],
)
@pytest.mark.asyncio(loop_scope="session")
async def test_large_json_without_a_key_is_not_parsed(
    system: System, path: str, body: bytes
) -> None:
    headers = {"content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=system.http_url) as client:
        # A body that is parsed gets 400, as above.
        response = await client.post(path, content=body, headers=headers)
    assert response.status_code == 401
