"""A thin client of the gateway."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass

import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import admin_service_pb2_grpc as admin_grpc
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc

Credentials = tuple[tuple[str, str], ...]

_SECONDS = 120.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as seen by the client; times in milliseconds since it was sent.

    Attributes:
        total: Time until the end of the run.
        first_text: Time until the first piece of the reply; 0 if there was none.
        tools: Number of tool calls.
    """

    total: float
    first_text: float
    tools: int


class Client:
    """Calls the gateway with an API key."""

    def __init__(self, channel: grpc.aio.Channel, credentials: Credentials) -> None:
        self._metadata = credentials
        self._admin = admin_grpc.AdminServiceStub(channel)
        self._agents = agent_grpc.AgentServiceStub(channel)
        self._runs = run_grpc.RunServiceStub(channel)
        self._messages = message_grpc.MessageServiceStub(channel)
        self._passages = passage_grpc.PassageServiceStub(channel)
        self._files = file_grpc.FileServiceStub(channel)
        self._tools = tool_grpc.ToolServiceStub(channel)
        self._tool_ids: dict[str, str] = {}

    async def who_am_i(self) -> admin_pb.WhoAmIResponse:
        """Makes a call that the gateway answers itself."""
        return await self._admin.WhoAmI(
            admin_pb.WhoAmIRequest(), metadata=self._metadata, timeout=_SECONDS
        )

    async def new_agent(self, *, context_window: int = 0, sleeptime_frequency: int = 0) -> str:
        """Creates an agent with default settings and returns its id.

        Args:
            context_window: Tokens of the window; 0 for the model's default.
            sleeptime_frequency: Turns after which its memory agent runs; 0 for none.
        """
        request = agent_pb.CreateAgentRequest(
            name=f"bench-{uuid.uuid4().hex[:12]}",
            request_id=uuid.uuid4().hex,
            model=agent_pb.ModelConfig(context_window=context_window),
            enable_sleeptime=sleeptime_frequency > 0,
            sleeptime_agent_frequency=sleeptime_frequency,
        )
        response = await self._agents.CreateAgent(
            request, metadata=self._metadata, timeout=_SECONDS
        )
        return response.agent.id

    async def list_agents(self) -> None:
        """Reads the first page of agents."""
        await self._agents.ListAgents(
            agent_pb.ListAgentsRequest(), metadata=self._metadata, timeout=_SECONDS
        )

    async def get_agent(self, agent_id: str) -> None:
        """Makes a call that the gateway forwards to a service."""
        await self._agents.GetAgent(
            agent_pb.GetAgentRequest(agent_id=agent_id), metadata=self._metadata, timeout=_SECONDS
        )

    async def turn(self, agent_id: str, text: str) -> Turn:
        """Sends a message and follows the run to its end.

        Raises:
            RuntimeError: The run did not complete.
        """
        part = message_pb2.Part(text=message_pb2.TextPart(text=text))
        request = run_pb.SendMessageRequest(
            agent_id=agent_id, messages=[message_pb2.MessageInput(parts=[part])]
        )
        first_text, tools = 0.0, 0
        finished: run_event_pb2.RunFinished | None = None
        started = time.perf_counter()
        stream = self._runs.SendMessage(request, metadata=self._metadata, timeout=_SECONDS)
        async for response in stream:
            match response.event.WhichOneof("event"):
                case "text_delta" if not first_text:
                    first_text = (time.perf_counter() - started) * 1000
                case "tool_finished":
                    tools += 1
                case "run_finished":
                    finished = response.event.run_finished
                case _:
                    pass
        total = (time.perf_counter() - started) * 1000
        if finished is None or finished.stop_reason != run_event_pb2.STOP_REASON_END_TURN:
            raise RuntimeError(f"the run did not end its turn: {finished}")
        return Turn(total, first_text, tools)

    async def put_tool(self, source_code: str) -> None:
        """Stores a tool."""
        await self._tools.UpsertTool(
            tool_pb.UpsertToolRequest(request_id=uuid.uuid4().hex, source_code=source_code),
            metadata=self._metadata,
            timeout=_SECONDS,
        )

    async def run_tool(self, name: str, arguments_json: str) -> str:
        """Runs a tool once and returns its return value as text."""
        response = await self._run_tool(name, arguments_json)
        packed = json.loads(response.tool_return.content)
        return str(packed["message"])

    async def isolation(self, name: str, arguments_json: str) -> str:
        """Runs a tool once and returns the kind of isolation that it ran in."""
        return (await self._run_tool(name, arguments_json)).isolation

    async def _run_tool(self, name: str, arguments_json: str) -> tool_pb.RunToolResponse:
        if name not in self._tool_ids:
            response = await self._tools.GetTool(
                tool_pb.GetToolRequest(name=name), metadata=self._metadata, timeout=_SECONDS
            )
            self._tool_ids[name] = response.tool.id
        return await self._tools.RunTool(
            tool_pb.RunToolRequest(tool_id=self._tool_ids[name], arguments_json=arguments_json),
            metadata=self._metadata,
            timeout=_SECONDS,
        )

    async def search_messages(self, agent_id: str, query: str) -> int:
        """Searches recall memory; returns the number of hits."""
        response = await self._messages.SearchMessages(
            message_pb.SearchMessagesRequest(agent_id=agent_id, query=query),
            metadata=self._metadata,
            timeout=_SECONDS,
        )
        return len(response.hits)

    async def insert_passage(self, agent_id: str, text: str) -> None:
        """Stores a passage in the agent's archival memory."""
        await self._passages.InsertPassage(
            passage_pb.InsertPassageRequest(
                request_id=uuid.uuid4().hex,
                agent_id=agent_id,
                passage=passage_pb.NewPassage(text=text),
            ),
            metadata=self._metadata,
            timeout=_SECONDS,
        )

    async def upload_file(self, folder_id: str, name: str, text: str) -> str:
        """Stores a text file; returns its id. It is read and indexed afterwards."""
        header = file_pb.UploadFileHeader(
            request_id=uuid.uuid4().hex, folder_id=folder_id, name=name
        )
        data = text.encode()
        parts = [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]
        requests = [
            file_pb.UploadFileRequest(header=header),
            *(file_pb.UploadFileRequest(chunk=part) for part in parts),
        ]
        response = await self._files.UploadFile(
            iter(requests), metadata=self._metadata, timeout=_SECONDS
        )
        return response.file.id

    async def new_folder(self) -> str:
        """Creates a folder and returns its id."""
        request = file_pb.CreateFolderRequest(
            request_id=uuid.uuid4().hex, name=f"bench-{uuid.uuid4().hex[:12]}"
        )
        response = await self._files.CreateFolder(
            request, metadata=self._metadata, timeout=_SECONDS
        )
        return response.folder.id

    async def follow_file(self, file_id: str, share: float) -> float:
        """Waits until more than a share of a file is indexed, or all; returns the share.

        Raises:
            RuntimeError: The file cannot be read.
        """
        reached = 0.0
        stream = self._files.WatchFile(
            file_pb.WatchFileRequest(file_id=file_id), metadata=self._metadata
        )
        async for response in stream:
            if response.file.error:
                raise RuntimeError(f"the file was not indexed: {response.file.error}")
            reached = response.file.index_progress
            if share < reached < 1:
                stream.cancel()
                break
        return reached

    async def delete_folder(self, folder_id: str) -> None:
        """Deletes a folder with its files."""
        await self._files.DeleteFolder(
            file_pb.DeleteFolderRequest(folder_id=folder_id),
            metadata=self._metadata,
            timeout=_SECONDS,
        )

    async def search_passages(self, agent_id: str, query: str) -> list[passage_pb.PassageHit]:
        """Searches the agent's archival memory."""
        response = await self._passages.SearchPassages(
            passage_pb.SearchPassagesRequest(agent_id=agent_id, query=query),
            metadata=self._metadata,
            timeout=_SECONDS,
        )
        return list(response.hits)
