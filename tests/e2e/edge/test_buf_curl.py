"""A client without code of Strata: ``buf curl``, with server reflection."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from e2e.edge.contract import public_methods
from faults.live import Client, Live

pytestmark = pytest.mark.asyncio(loop_scope="session")

_BUF = Path(sys.executable).with_name("buf")
_INFRASTRUCTURE = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}


async def _curl(live: Live, *arguments: str, method: str = "") -> tuple[int, str, str]:
    url = f"http://{live.runtime.address}/{method}".rstrip("/")
    process = await asyncio.create_subprocess_exec(
        *(str(_BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--reflect"),
        *arguments,
        url,
        env={"HOME": str(live.folder.path.parent), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_services_are_listed_without_a_key(live: Live) -> None:
    code, out, err = await _curl(live, "--list-services")
    assert code == 0, err
    public = {m.descriptor.containing_service.full_name for m in public_methods().values()}
    assert set(out.split()) - _INFRASTRUCTURE == public


async def test_methods_are_listed_without_a_key(live: Live) -> None:
    code, out, err = await _curl(live, "--list-methods")
    assert code == 0, err
    assert {m.path.lstrip("/") for m in public_methods().values()} <= set(out.split())


async def test_a_message_is_sent_with_the_key(live: Live, client: Client) -> None:
    agent = await client.new_agent()
    request = {"agentId": agent.id, "messages": [{"parts": [{"text": {"text": "hello"}}]}]}
    code, out, err = await _curl(
        live,
        *("--header", f"authorization: Bearer {live.key}", "--data", json.dumps(request)),
        method="strata.api.gateway.v1.RunService/SendMessage",
    )
    assert code == 0, err
    decoder, events, text = json.JSONDecoder(), [], out.strip()
    while text:
        event, end = decoder.raw_decode(text)
        events.append(event["event"])
        text = text[end:].lstrip()
    reply = "".join(event["textDelta"]["text"] for event in events if "textDelta" in event)
    assert reply == "You said: hello"
    assert events[-1]["runFinished"]["stopReason"] == "STOP_REASON_END_TURN"


async def test_an_error_is_readable_with_its_details(live: Live) -> None:
    code, _, err = await _curl(
        live,
        *("--header", f"authorization: Bearer {live.key}", "--data", '{"agentId": "block-1"}'),
        method="strata.api.agent_loop.v1.AgentService/GetAgent",
    )
    assert code != 0
    error = json.loads(err)
    assert error["code"] == "invalid_argument"
    details = {detail["type"].rpartition(".")[2]: detail for detail in error["details"]}
    assert set(details) == {"ErrorInfo", "BadRequest"}


async def test_without_a_key_only_the_list_of_services_is_readable(live: Live) -> None:
    code, _, err = await _curl(
        live, "--data", "{}", method="strata.api.agent_loop.v1.AgentService/ListAgents"
    )
    assert code != 0
    assert json.loads(err)["code"] == "unauthenticated"
