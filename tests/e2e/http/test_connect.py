"""The Connect protocol and gRPC-Web in front of the gateway."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2

from doubles.script import say
from e2e.http.conftest import PAGE
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.gateway.registry import public_services
from strata.protocol.errors import Reason
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

GET_AGENT = "/strata.api.agent_loop.v1.AgentService/GetAgent"
LIST_AGENTS = "/strata.api.agent_loop.v1.AgentService/ListAgents"
CREATE_AGENT = "/strata.api.agent_loop.v1.AgentService/CreateAgent"
SEND_MESSAGE = "/strata.api.gateway.v1.RunService/SendMessage"
UPLOAD_PASSAGES = "/strata.api.archival.v1.PassageService/UploadPassages"
METHODS = [
    pytest.param(method, id=f"{service.name}.{method.name}")
    for service in public_services()
    for method in service.methods
]
_END = 0x02
_WEB_TRAILERS = 0x80


def framed(*messages: bytes) -> bytes:
    """Returns messages as the frames of a stream."""
    return b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)


def frames(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns the flags and the content of each frame."""
    while body:
        flags, size = struct.unpack(">BI", body[:5])
        yield flags, body[5 : 5 + size]
        body = body[5 + size :]


def sending(agent: agent_pb.Agent, text: str) -> run_pb.SendMessageRequest:
    part = message_pb2.Part(text=message_pb2.TextPart(text=text))
    return run_pb.SendMessageRequest(
        agent_id=agent.id, messages=[message_pb2.MessageInput(parts=[part])]
    )


def text_of_events(responses: list[run_pb.SendMessageResponse]) -> str:
    return "".join(response.event.text_delta.text for response in responses)


@pytest.mark.parametrize("codec", ["proto", "json"])
async def test_unary_call_returns_the_message(
    system: System, http: httpx2.AsyncClient, codec: str
) -> None:
    agent = await system.make_agent()
    request = agent_pb.GetAgentRequest(agent_id=agent.id)
    body = (
        request.SerializeToString()
        if codec == "proto"
        else json.dumps({"agentId": agent.id}).encode()
    )
    response = await http.post(
        GET_AGENT, content=body, headers={"content-type": f"application/{codec}"}
    )
    assert response.status_code == 200
    assert response.headers["x-request-id"].startswith("req-")
    if codec == "proto":
        assert agent_pb.GetAgentResponse.FromString(response.content).agent == agent
    else:
        assert response.json()["agent"]["id"] == agent.id


async def test_read_only_method_can_be_called_with_get(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    query = {"connect": "v1", "encoding": "json", "message": json.dumps({"agentId": agent.id})}
    response = await http.get(GET_AGENT, params=query)
    assert response.json()["agent"]["id"] == agent.id
    create = GET_AGENT.replace("GetAgent", "CreateAgent")
    assert (await http.get(create, params={**query, "message": "{}"})).status_code == 405


@pytest.mark.parametrize("codec", ["proto", "json"])
async def test_stream_of_a_turn_ends_without_an_error(
    system: System, http: httpx2.AsyncClient, codec: str
) -> None:
    system.model.script(say("Good morning to you."))
    request = sending(await system.make_agent(), "Good morning.")
    body = request.SerializeToString()
    if codec == "json":
        text = request.messages[0].parts[0].text.text
        body = json.dumps(
            {"agentId": request.agent_id, "messages": [{"parts": [{"text": {"text": text}}]}]}
        ).encode()
    response = await http.post(
        SEND_MESSAGE,
        content=framed(body),
        headers={"content-type": f"application/connect+{codec}"},
    )
    assert response.headers["content-type"] == f"application/connect+{codec}"
    *messages, (flags, end) = list(frames(response.content))
    assert flags == _END
    assert "error" not in json.loads(end)
    if codec == "proto":
        responses = [run_pb.SendMessageResponse.FromString(content) for _, content in messages]
        assert text_of_events(responses) == "Good morning to you."
        assert responses[-1].event.HasField("run_finished")
    else:
        assert "runFinished" in json.loads(messages[-1][1])["event"]


async def test_grpc_web_stream_ends_with_the_status(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.script(say("From the web."))
    request = sending(await system.make_agent(), "Hello.")
    headers = {"content-type": "application/grpc-web+proto", "x-grpc-web": "1"}
    response = await http.post(
        SEND_MESSAGE, content=framed(request.SerializeToString()), headers=headers
    )
    *messages, (flags, trailers) = list(frames(response.content))
    responses = [run_pb.SendMessageResponse.FromString(content) for _, content in messages]
    assert text_of_events(responses) == "From the web."
    assert flags == _WEB_TRAILERS
    assert b"grpc-status: 0" in trailers.lower().replace(b":0", b": 0")


def decoded(text: bytes) -> bytes:
    """Returns the bytes of parts in base64 that are joined, each with its padding."""
    return b"".join(base64.b64decode(part) for part in re.findall(rb"[^=]+={0,2}", text))


@pytest.mark.parametrize("suffix", ["", "+proto"])
@pytest.mark.parametrize("part", [1, 3, 7, 1000])
async def test_text_form_of_grpc_web_streams(
    system: System, http: httpx2.AsyncClient, suffix: str, part: int
) -> None:
    system.model.script(say("From the web.", piece=4, pause=0.01))
    request = framed(sending(await system.make_agent(), "Hello.").SerializeToString())
    content_type = f"application/grpc-web-text{suffix}"

    async def parts() -> AsyncIterator[bytes]:
        # Parts of the text that are not whole groups of four characters, and padding within it.
        text = base64.b64encode(request[:7]) + base64.b64encode(request[7:])
        for start in range(0, len(text), part):
            yield text[start : start + part]

    response = await http.post(
        SEND_MESSAGE, content=parts(), headers={"content-type": content_type}
    )
    assert response.headers["content-type"].startswith("application/grpc-web-text")
    *messages, (flags, trailers) = list(frames(decoded(response.content)))
    responses = [run_pb.SendMessageResponse.FromString(content) for _, content in messages]
    assert text_of_events(responses) == "From the web."
    assert flags == _WEB_TRAILERS
    assert b"grpc-status: 0" in trailers.lower().replace(b":0", b": 0")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (base64.b64encode(framed(agent_pb.GetAgentRequest(name="nobody").SerializeToString())), 5),
        (
            base64.encodebytes(framed(agent_pb.GetAgentRequest(name="n" * 90).SerializeToString())),
            5,
        ),
        (b"not base64!", 12),
        (b"", 12),
        (base64.b64encode(b"\0\0\0"), 3),
    ],
)
async def test_errors_in_the_text_form_are_trailers_in_base64(
    http: httpx2.AsyncClient, text: bytes, status: int
) -> None:
    headers = {"content-type": "application/grpc-web-text+proto"}
    response = await http.post(GET_AGENT, content=text, headers=headers)
    assert response.status_code == 200
    [(flags, trailers)] = list(frames(decoded(response.content)))
    assert flags == _WEB_TRAILERS
    assert f"grpc-status: {status}\r\n".encode() in trailers


async def test_requests_of_a_stream_reach_the_method(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    requests = [
        passage_pb.UploadPassagesRequest(
            agent_id=agent.id, passages=[passage_pb.NewPassage(text="The boat is in Lisbon.")]
        ),
        passage_pb.UploadPassagesRequest(
            passages=[passage_pb.NewPassage(text="The car is in Rome.")]
        ),
    ]
    response = await http.post(
        UPLOAD_PASSAGES,
        content=framed(*(request.SerializeToString() for request in requests)),
        headers={"content-type": "application/connect+proto"},
    )
    *_, (flags, end) = list(frames(response.content))
    assert flags == _END
    assert "error" not in json.loads(end), end
    listed = await system.passages.ListPassages(passage_pb.ListPassagesRequest(agent_id=agent.id))
    texts = {passage.text for passage in listed.passages}
    assert texts == {"The boat is in Lisbon.", "The car is in Rome."}


async def test_malformed_request_in_a_stream_ends_the_call(
    system: System, http: httpx2.AsyncClient
) -> None:
    agent = await system.make_agent()
    first = json.dumps({"agentId": agent.id, "passages": [{"text": "one"}]}).encode()
    response = await http.post(
        UPLOAD_PASSAGES,
        content=framed(first, b'{"passages": 7}'),
        headers={"content-type": "application/connect+json"},
    )
    *_, (_, end) = list(frames(response.content))
    assert json.loads(end)["error"]["code"] == "invalid_argument"


async def test_error_has_its_details(system: System, http: httpx2.AsyncClient) -> None:
    response = await http.post(GET_AGENT, json={"agentId": "somebody"})
    assert response.status_code == 400
    error = response.json()
    assert error["code"] == "invalid_argument"
    first = error["details"][0]
    assert first["type"] == "google.rpc.ErrorInfo"
    padded = first["value"] + "=" * (-len(first["value"]) % 4)
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(padded))
    assert info.reason == Reason.INVALID_ID.value == first["debug"]["reason"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("credentials", ["", "Bearer nobody"])
async def test_every_method_requires_a_key(system: System, method: Any, credentials: str) -> None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    message = GetMessageClass(method.input_type)().SerializeToString()
    streams = method.client_streaming or method.server_streaming
    async with httpx2.AsyncClient(base_url=system.http_url) as client:
        response = await client.post(
            path,
            content=framed(message) if streams else message,
            headers={
                "content-type": f"application/{'connect+' if streams else ''}proto",
                "authorization": credentials,
            },
        )
    if streams:
        [(_, end)] = list(frames(response.content))
        assert json.loads(end)["error"]["code"] == "unauthenticated"
    else:
        assert response.status_code == 401
        assert response.json()["code"] == "unauthenticated"


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"\xff\xfe", 400),
        ("application/json", b"[]", 400),
        ("application/json", b"[" * 100_000, 400),
        ("application/json", b'{"agentId": 7}', 400),
        ("application/json", b'{"nobody": 7}', 400),
        ("application/json", b"null", 400),
        ("application/json", rb'{"\ud800": 7}', 400),
        ("application/json", rb'{"agentId": "\ud800"}', 400),
        ("application/json", b'{"agentId": "a", "agentId": "a"}', 400),
        ("application/json", b'{"agentId": 1e309}', 400),
        ("application/proto", b"\xff\xff\xff", 400),
        ("application/grpc", b"", 415),
        ("application/grpc+proto", b"", 415),
        ("text/html", b"<p>", 415),
        ("application/json", b'{"agentId": "' + b"a" * 5_000_000 + b'"}', 429),
    ],
)
async def test_bad_body_is_refused(
    http: httpx2.AsyncClient, content_type: str, body: bytes, status: int
) -> None:
    response = await http.post(GET_AGENT, content=body, headers={"content-type": content_type})
    assert response.status_code == status, response.text


@pytest.mark.parametrize("body", [rb'{"model": "\ud800"}', b'{"type": 1e309}'])
async def test_the_message_about_a_bad_body_has_no_internals(
    http: httpx2.AsyncClient, body: bytes
) -> None:
    response = await http.post(
        CREATE_AGENT, content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert not re.search(r"Error|google|object|method", response.json()["message"])


async def test_a_json_list_as_request_is_refused(http: httpx2.AsyncClient) -> None:
    response = await http.post(
        LIST_AGENTS, content=b"[]", headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert "is not a JSON object" in response.json()["message"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/", "not_found"),
        ("/v1", "not_found"),
        ("/strata.api.recall.v1.Nobody/GetAgent", "not_found"),
        (GET_AGENT + "s", "unimplemented"),
    ],
)
async def test_unknown_path_is_not_found(http: httpx2.AsyncClient, path: str, code: str) -> None:
    response = await http.post(path, json={})
    assert (response.status_code, response.json()["code"]) == (404, code)
    assert path in response.json()["message"]


async def test_header_may_be_in_latin_1(system: System, http: httpx2.AsyncClient) -> None:
    agent = await system.make_agent()
    response = await http.post(
        GET_AGENT, json={"agentId": agent.id}, headers={b"user-agent": b"caf\xe9"}
    )
    assert response.status_code == 200, response.text
    assert response.json()["agent"]["id"] == agent.id


async def test_internal_service_is_not_reachable(http: httpx2.AsyncClient) -> None:
    for path in (
        "/strata.api.gateway.v1.RunFollowService/FollowRun",
        "/strata.api.recall.v1.WindowService/BeginTurn",
        "/strata.api.core_memory.v1.CoreMemoryService/Compile",
    ):
        assert (await http.post(path, json={})).status_code == 404


async def test_deadline_of_the_client_ends_the_call(
    system: System, http: httpx2.AsyncClient
) -> None:
    system.model.script(say("Too late. " * 50, piece=4, pause=0.1))
    request = sending(await system.make_agent(), "Hello.")
    response = await http.post(
        SEND_MESSAGE,
        content=framed(request.SerializeToString()),
        headers={"content-type": "application/connect+proto", "connect-timeout-ms": "1000"},
    )
    *_, (_, end) = list(frames(response.content))
    assert json.loads(end)["error"]["code"] == "deadline_exceeded"


async def test_only_configured_origins_may_call(http: httpx2.AsyncClient) -> None:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,connect-protocol-version,content-type",
    }
    allowed = await http.options(GET_AGENT, headers={**asked, "origin": PAGE})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    refused = await http.options(GET_AGENT, headers={**asked, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/chat/completions", "authorization,idempotency-key,user-agent,x-stainless-lang"),
        ("/mcp/assistant", "authorization,content-type,mcp-protocol-version,mcp-method"),
        ("/a2a/assistant", "authorization,content-type,a2a-version"),
    ],
)
async def test_pages_may_send_the_headers_of_the_sdks(
    http: httpx2.AsyncClient, path: str, headers: str
) -> None:
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }
    allowed = await http.options(path, headers=asked)
    assert allowed.status_code == 200, allowed.text
    assert set(headers.split(",")) <= set(
        allowed.headers["access-control-allow-headers"].lower().replace(" ", "").split(",")
    )
    refused = await http.post("/v1/chat/completions", json={}, headers={"origin": PAGE})
    assert "x-should-retry" in refused.headers["access-control-expose-headers"]


async def test_health_is_shown_without_a_key(system: System) -> None:
    async with httpx2.AsyncClient(base_url=system.http_url) as client:
        assert (await client.get("/healthz")).json() == {"status": "SERVING"}
