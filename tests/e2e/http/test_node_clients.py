"""The HTTP port with clients of Node: OpenAI's SDK, Connect and gRPC-Web."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.rpc import error_details_pb2
from grpc_tools import protoc

from doubles.script import say
from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.gateway.v1 import run_service_pb2
from whole_system import System

_NODE = shutil.which("node")
_PROGRAMS = Path(__file__).parents[2] / "node"
_PROTOS = Path(__file__).parents[3] / "protos"
_PROTOS_OF_PROTOBUF = Path(protoc.__file__).parent / "_proto"
_PROTOS_OF_GOOGLE = Path(error_details_pb2.__file__).parents[2]

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.child_process,
    pytest.mark.skipif(_NODE is None, reason="needs Node"),
]


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the descriptors that the clients use."""
    path = tmp_path_factory.mktemp("descriptors") / "api.binpb"
    # With the JSON names of fields, which descriptors of Python's generated code lack.
    status = protoc.main(
        [
            "protoc",
            *(f"-I{folder}" for folder in (_PROTOS, _PROTOS_OF_PROTOBUF, _PROTOS_OF_GOOGLE)),
            "--include_imports",
            f"--descriptor_set_out={path}",
            *(
                module.DESCRIPTOR.name
                for module in (agent_service_pb2, run_service_pb2, error_details_pb2)
            ),
        ]
    )
    assert status == 0
    return path


@pytest_asyncio.fixture(loop_scope="session")
async def ann(system: System) -> agent_service_pb2.Agent:
    """A new agent with a fixed reply."""
    system.model.respond(lambda _: say("Hello from the agent."))
    return await system.make_agent()


async def report_of(system: System, program: str, *arguments: str) -> Any:
    """Runs a program of Node; returns the report that it prints."""
    assert _NODE is not None
    assert (_PROGRAMS / "node_modules/openai").exists(), "run `make test` once: it fetches the SDKs"
    process = await asyncio.create_subprocess_exec(
        *(_NODE, str(_PROGRAMS / program), *arguments),
        env={
            "PATH": os.defpath,
            "STRATA_URL": system.http_url,
            "STRATA_API_KEY": system.key,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


async def test_the_sdk_of_openai_talks_to_an_agent(
    system: System, ann: agent_service_pb2.Agent
) -> None:
    seen = await report_of(system, "openai_client.mjs", ann.name)
    text = "Hello from the agent."
    assert ann.name in seen["models"]
    assert seen["chat"]["message"]["content"] == text
    assert seen["chat"]["finish_reason"] == "stop"
    assert seen["streamedChat"]["text"] == text
    assert seen["streamedChat"]["tokens"] > 0
    assert seen["response"] == {"text": text, "status": "completed"}
    assert seen["streamedResponse"]["text"] == text
    events = seen["streamedResponse"]["events"]
    assert events[:2] == ["response.created", "response.in_progress"]
    assert events[-1] == "response.completed"
    assert seen["stored"] == {"text": text, "id": True}
    assert seen["conversations"] == [ann.default_conversation_id] * 2
    assert seen["refused"] == {"status": 404, "code": "model_not_found", "param": "model"}
    # Two chats and two responses, each a message of the user and a reply.
    assert len(await system.log(ann)) == 1 + 4 * 2


@pytest.mark.parametrize(
    "transport",
    [
        "connect-json",
        "connect-binary",
        "connect-get",
        "grpc-web",
        "fetch-connect",
        "fetch-grpc-web",
    ],
)
async def test_connect_and_grpc_web_call_and_stream(
    system: System, ann: agent_service_pb2.Agent, descriptors: Path, transport: str
) -> None:
    seen = await report_of(system, "connect_client.mjs", transport, str(descriptors), ann.id)
    assert seen["agent"] == {"id": ann.id, "name": ann.name}
    assert seen["text"] == "Hello from the agent."
    assert (seen["kinds"][0], seen["kinds"][-1]) == ("runStarted", "runFinished")
    assert reasons(seen["refused"]) == ("NotFound", ["AGENT_NOT_FOUND"])
    assert seen["refused"]["message"]
    # The gRPC status of a stream comes after the HTTP status.
    assert reasons(seen["refusedStream"]) == ("InvalidArgument", ["INVALID_FIELD"])
    violations = [
        violation["field"]
        for detail in seen["refusedStream"]["details"]
        if detail["type"] == "google.rpc.BadRequest"
        for violation in detail["value"]["fieldViolations"]
    ]
    assert violations == ["messages"]


def reasons(failure: Any) -> tuple[str, list[str]]:
    """The code of a failure, and the reasons in its details."""
    reasons_in_details = [
        detail["value"]["reason"]
        for detail in failure["details"]
        if detail["type"] == "google.rpc.ErrorInfo"
    ]
    return failure["code"], reasons_in_details
