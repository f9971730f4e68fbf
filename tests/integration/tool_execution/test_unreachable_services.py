"""Built-in tools while the service behind them is away: over real sockets that are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from callers import TokenKeys
from cut_proxy import CutProxy
from strata.api.archival.v1 import agent_archive_service_pb2 as agent_pb
from strata.api.archival.v1 import agent_archive_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import message_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as pb_grpc
from strata.archival import main as archival
from strata.archival.migrations import MIGRATIONS as ARCHIVAL
from strata.archival.settings import ArchivalSettings
from strata.client.channel import open_gateway_channel
from strata.shared.channels import services_of
from strata.shared.ids import new_id
from strata.shared.server import serving
from strata.tool_execution import main as tool_execution
from strata.tool_execution.migrations import MIGRATIONS as TOOL_EXECUTION
from strata.tool_execution.settings import ToolExecutionSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")
TIMEOUT_S = 4.0


@dataclass
class Split:
    """Archival memory and the tools, each on a socket, with a proxy between them."""

    proxy: CutProxy
    execution: Any
    passages: Any
    archives: Any
    agent_id: str

    async def call(self, tool: str, key: str, **arguments: Any) -> message_pb2.ToolReturnPart:
        """Runs one call as the loop does."""
        request = pb.ExecuteToolsRequest(
            agent_id=self.agent_id,
            conversation_id=new_id("conversation"),
            run_id=new_id("run"),
            step_id="step-1",
            calls=[
                pb.ToolCall(
                    tool_call_id="call-1",
                    name=tool,
                    arguments=json.dumps(arguments),
                    idempotency_key=key,
                )
            ],
            allowed_tools=[tool],
        )
        stream = self.execution.ExecuteTools(request)
        [finished] = [
            response.finished async for response in stream if response.HasField("finished")
        ]
        tool_return: message_pb2.ToolReturnPart = finished.tool_return
        assert (
            json.loads(tool_return.content)["status"]
            == {
                message_pb2.TOOL_STATUS_OK: "OK",
                message_pb2.TOOL_STATUS_FAILED: "Failed",
                message_pb2.TOOL_STATUS_UNKNOWN: "Unknown",
            }[tool_return.status]
        )
        return tool_return

    async def insert(self, text: str) -> message_pb2.ToolReturnPart:
        """Inserts a passage."""
        return await self.call("archival_memory_insert", new_id("key"), content=text)

    async def stored(self) -> list[str]:
        """The texts of the agent's passages."""
        request = passage_pb.ListPassagesRequest(agent_id=self.agent_id)
        return [passage.text for passage in (await self.passages.ListPassages(request)).passages]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def parts(databases: Any, vectors: Any) -> AsyncIterator[Split]:
    keys = TokenKeys.generate()
    common: dict[str, Any] = {
        "port": 0,
        "token_public_keys": keys.public,
        "drain_s": 0.0,
        "grace_s": 0.2,
    }
    urls = {
        name: await databases.of(migrations)
        for name, migrations in {"archival": ARCHIVAL, "tool_execution": TOOL_EXECUTION}.items()
    }

    def of(name: str) -> dict[str, Any]:
        return {
            "database_url": urls[name].service_url,
            "worker_database_url": urls[name].worker_url,
            **common,
        }

    async with AsyncExitStack() as stack:
        settings = ArchivalSettings(
            qdrant_url=vectors.url, qdrant_api_key=vectors.api_key, **of("archival")
        )
        behind = await stack.enter_async_context(serving(archival.build, settings))
        proxy = await stack.enter_async_context(CutProxy(behind.address))
        away = "127.0.0.1:1"
        targets = {
            "archival": proxy.address,
            "core_memory": away,
            "recall": away,
            "gateway": away,
            "tool_runner": away,
        }
        tools = await stack.enter_async_context(
            serving(
                tool_execution.build,
                ToolExecutionSettings(
                    targets=targets,
                    tool_timeout_s=TIMEOUT_S,
                    agent_reply_timeout_s=2.0,
                    **of("tool_execution"),
                ),
            )
        )
        scopes = ["read", "write", "run"]
        token = keys.signer.mint("org-1", new_id("project"), "key-1", scopes)
        channel = await stack.enter_async_context(
            open_gateway_channel(tools.address, token, services_of("tool_execution"))
        )
        direct = await stack.enter_async_context(
            open_gateway_channel(behind.address, token, services_of("archival"))
        )
        yield Split(
            proxy,
            pb_grpc.ExecutionServiceStub(channel),
            passage_grpc.PassageServiceStub(direct),
            agent_grpc.AgentArchiveServiceStub(direct),
            "",
        )


@pytest_asyncio.fixture(loop_scope="session")
async def split(parts: Split) -> Split:
    """The services with a new agent and an open connection."""
    parts.proxy.mode, parts.proxy.after_loss = "pass", "pass"
    parts.agent_id = new_id("agent")
    await parts.archives.PrepareAgent(agent_pb.PrepareAgentRequest(agent_id=parts.agent_id))
    assert (await parts.insert("Warm.")).status == message_pb2.TOOL_STATUS_OK
    return parts


async def test_calls_wait_for_a_service_that_comes_back(split: Split) -> None:
    split.proxy.mode = "refuse"
    split.proxy.cut()
    calls = [
        asyncio.create_task(split.insert("Ada lives in Graz.")),
        asyncio.create_task(split.call("archival_memory_search", new_id("key"), query="Warm")),
    ]
    await asyncio.sleep(1.5)
    assert not any(call.done() for call in calls)
    split.proxy.mode = "pass"
    for call in calls:
        assert (await call).status == message_pb2.TOOL_STATUS_OK
    assert sorted(await split.stored()) == ["Ada lives in Graz.", "Warm."]


async def test_a_call_whose_answer_is_lost_is_repeated_and_takes_effect_once(split: Split) -> None:
    split.proxy.mode, before = "lose", split.proxy.lost
    assert (await split.insert("Ada likes green.")).status == message_pb2.TOOL_STATUS_OK
    assert split.proxy.lost == before + 1
    assert sorted(await split.stored()) == ["Ada likes green.", "Warm."]


async def test_a_change_without_an_answer_is_unknown_and_never_failed(split: Split) -> None:
    split.proxy.mode, split.proxy.after_loss = "lose", "refuse"
    tool_return = await split.insert("Ada has two cats.")
    assert tool_return.status == message_pb2.TOOL_STATUS_UNKNOWN
    assert "unknown" in tool_return.content
    # The insertion was carried out.
    assert sorted(await split.stored()) == ["Ada has two cats.", "Warm."]


async def test_a_search_without_an_answer_is_failed(split: Split) -> None:
    split.proxy.mode = "refuse"
    split.proxy.cut()
    tool_return = await split.call("archival_memory_search", new_id("key"), query="Warm")
    assert tool_return.status == message_pb2.TOOL_STATUS_FAILED


EVERY_PEER: dict[str, dict[str, Any]] = {
    "archival_memory_insert": {"content": "x"},
    "archival_memory_search": {"query": "x"},
    "conversation_search": {"query": "x"},
    "core_memory_append": {"label": "human", "content": "x"},
    "open_files": {"file_requests": [{"file_name": "a.txt"}]},
    "grep_files": {"pattern": "x"},
    "send_message_to_agent_async": {"message": "x", "other_agent_id": new_id("agent")},
    "send_message_to_agent_and_wait_for_reply": {
        "message": "x",
        "other_agent_id": new_id("agent"),
    },
    "send_message_to_agents_matching_tags": {
        "message": "x",
        "match_all": ["a"],
        "match_some": [],
    },
}


async def test_errors_for_the_model_contain_no_address(split: Split) -> None:
    split.proxy.mode = "refuse"
    split.proxy.cut()
    returns = await asyncio.gather(
        *(split.call(tool, new_id("key"), **arguments) for tool, arguments in EVERY_PEER.items())
    )
    for tool_return in returns:
        assert tool_return.status != message_pb2.TOOL_STATUS_OK
        for part in ("127.0.0.1", "ipv4", "ipv6", "connect", "port", split.proxy.address):
            assert part not in tool_return.content, tool_return.content
