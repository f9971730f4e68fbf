"""A gateway with scripted answers: real gRPC on a real socket, with the real interceptors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from e2e.cli.scripted_approvals import Approvals
from e2e.cli.scripted_mcp import McpServers
from strata.agent_loop.prompts.library import PromptLibrary
from strata.agent_loop.servicers.prompts import PromptServicer
from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
    prompt_service_pb2,
    prompt_service_pb2_grpc,
)
from strata.api.archival.v1 import (
    archive_service_pb2,
    archive_service_pb2_grpc,
    passage_service_pb2,
    passage_service_pb2_grpc,
)
from strata.api.common.v1 import message_pb2, run_event_pb2, search_pb2, usage_pb2
from strata.api.core_memory.v1 import block_service_pb2, block_service_pb2_grpc
from strata.api.gateway.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
)
from strata.api.recall.v1 import message_service_pb2, message_service_pb2_grpc
from strata.api.tool_execution.v1 import (
    mcp_service_pb2,
    mcp_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import (
    AbortedError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnauthenticatedError,
    UnimplementedError,
)
from strata.shared.context import Caller
from strata.shared.ids import new_id
from strata.shared.interceptors.auth import bearer
from strata.shared.server import GrpcServer
from strata.shared.service import GrpcService, Service
from strata.standalone.ports import ReservedPort

KEY = "strata-test-key"
RUN_ID = new_id("run")

RunEvent = run_event_pb2.RunEvent
Script = Callable[[Any], AsyncIterator[run_event_pb2.RunEvent]]


class OneKey:
    """Accepts one API key."""

    async def authenticate(self, method: Any, metadata: Any) -> Caller:
        if bearer(metadata) != KEY:
            raise UnauthenticatedError("The API key is not valid.")
        return Caller("organization-1", "project-1", "key-1")


class Runs(Approvals, run_service_pb2_grpc.RunServiceServicer):
    """Streams what `on_send` and `on_stream` yield."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[run_service_pb2.SendMessageRequest] = []
        self.streamed: list[run_service_pb2.StreamRunRequest] = []
        self.cancelled: list[str] = []
        self.cancel_asked = asyncio.Event()
        self.on_send: Script = reply("Hello!")
        self.on_stream: Script = reply("Hello!")
        self.on_answer: Script = reply("Thank you.")
        self.runs: list[run_service_pb2.Run] = []
        self.explained = run_service_pb2.ExplainRunResponse()
        self.recording = b""
        self.steps: list[run_service_pb2.RunStep] = []
        self.memory = run_service_pb2.GetMemoryStatusResponse()
        self.memory_run = run_service_pb2.StartMemoryRunResponse()
        self.ingested = run_service_pb2.IngestFilesResponse()

    async def SendMessage(self, request: Any, context: Any) -> Any:
        self.sent.append(request)
        async for event in self.on_send(request):
            yield run_service_pb2.SendMessageResponse(event=event)

    async def StreamRun(self, request: Any, context: Any) -> Any:
        self.streamed.append(request)
        async for event in self.on_stream(request):
            yield run_service_pb2.StreamRunResponse(event=event)

    async def CancelRun(self, request: Any, context: Any) -> Any:
        self.cancelled.append(request.run_id)
        self.cancel_asked.set()
        run = run_service_pb2.Run(id=request.run_id, state=run_service_pb2.RUN_STATE_CANCELLING)
        return run_service_pb2.CancelRunResponse(run=run)

    async def ExplainRun(self, request: Any, context: Any) -> Any:
        return self.explained

    async def RecordRun(self, request: Any, context: Any) -> Any:
        for start in range(0, len(self.recording), 100):
            piece = self.recording[start : start + 100]
            yield run_service_pb2.RecordRunResponse(piece=piece)

    async def GetMemoryStatus(self, request: Any, context: Any) -> Any:
        return self.memory

    async def StartMemoryRun(self, request: Any, context: Any) -> Any:
        return self.memory_run

    async def IngestFiles(self, request: Any, context: Any) -> Any:
        return self.ingested

    async def ListSteps(self, request: Any, context: Any) -> Any:
        return run_service_pb2.ListStepsResponse(steps=self.steps)

    async def ListRuns(self, request: Any, context: Any) -> Any:
        start = int(request.page_token or 0)
        end = start + min(request.page_size, 2)
        more = str(end) if end < len(self.runs) else ""
        return run_service_pb2.ListRunsResponse(runs=self.runs[start:end], next_page_token=more)

    async def GetRun(self, request: Any, context: Any) -> Any:
        for run in self.runs:
            if run.id == request.run_id:
                return run_service_pb2.GetRunResponse(run=run)
        raise NotFoundError("There is no such run.", reason=Reason.RUN_NOT_FOUND)


class Agents(agent_service_pb2_grpc.AgentServiceServicer):
    """Keeps agents in a list."""

    def __init__(self) -> None:
        self.agents: list[agent_service_pb2.Agent] = []
        self.deleted: list[str] = []
        self.failure: StrataError | None = None
        self.created: list[agent_service_pb2.CreateAgentRequest] = []
        self.compaction_due = False
        self.previews: list[agent_service_pb2.PreviewCompactionRequest] = []
        self.preview = agent_service_pb2.PreviewCompactionResponse()

    def add(self, name: str) -> agent_service_pb2.Agent:
        agent = agent_service_pb2.Agent(id=new_id("agent"), name=name, revision=1)
        agent.model.handle = "local/tiny"
        agent.model.max_output_tokens = 99
        agent.default_conversation_id = agent.id.replace("agent-", "conversation-")
        self.agents.append(agent)
        return agent

    async def GetAgent(self, request: Any, context: Any) -> Any:
        for agent in self.agents:
            if request.agent_id == agent.id or (request.name and request.name == agent.name):
                return agent_service_pb2.GetAgentResponse(agent=agent)
        raise NotFoundError("There is no such agent.", reason=Reason.AGENT_NOT_FOUND)

    async def ListAgents(self, request: Any, context: Any) -> Any:
        matches = [agent for agent in self.agents if request.name_contains in agent.name]
        return agent_service_pb2.ListAgentsResponse(agents=matches)

    async def CreateAgent(self, request: Any, context: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        assert request.request_id
        self.created.append(request)
        agent = self.add(request.name)
        agent.type = request.type
        agent.tools.extend(request.tools)
        return agent_service_pb2.CreateAgentResponse(agent=agent)

    async def UpdateAgent(self, request: Any, context: Any) -> Any:
        [agent] = [agent for agent in self.agents if agent.id == request.agent_id]
        if request.HasField("name"):
            agent.name = request.name
        if request.HasField("model"):
            assert request.expected_revision == agent.revision
            agent.model.CopyFrom(request.model)
        if request.HasField("packaging"):
            assert request.expected_revision == agent.revision
            agent.packaging.CopyFrom(request.packaging)
        if request.HasField("response_format"):
            agent.response_format.CopyFrom(request.response_format)
        if request.HasField("message_buffer_autoclear"):
            agent.message_buffer_autoclear = request.message_buffer_autoclear
        if request.HasField("external_id"):
            agent.external_id = request.external_id
        for name in ("tools", "tags"):
            if request.HasField(name):
                assert request.expected_revision == agent.revision
                present = getattr(agent, name)
                del present[:]
                present.extend(getattr(request, name).names)
        agent.revision += 1
        return agent_service_pb2.UpdateAgentResponse(agent=agent)

    async def DeleteAgent(self, request: Any, context: Any) -> Any:
        self.deleted.append(request.agent_id)
        return agent_service_pb2.DeleteAgentResponse()

    async def GetContextWindow(self, request: Any, context: Any) -> Any:
        part = agent_service_pb2.ContextWindowPart(name="blocks", tokens=120, characters=480)
        return agent_service_pb2.GetContextWindowResponse(
            context_window=1000,
            used_tokens=250,
            parts=[part],
            system_message="You remember.",
            compaction_due=self.compaction_due,
        )

    async def PreviewCompaction(self, request: Any, context: Any) -> Any:
        self.previews.append(request)
        return self.preview


class Blocks(block_service_pb2_grpc.BlockServiceServicer):
    """Keeps one block."""

    def __init__(self) -> None:
        self.block = block_service_pb2.Block(
            id=new_id("block"), label="human", value="Name: Ann\nCity: Rome", limit=500, revision=3
        )
        self.before_update: Callable[[], None] = lambda: None

    async def GetBlock(self, request: Any, context: Any) -> Any:
        if request.label != self.block.label and request.block_id != self.block.id:
            raise NotFoundError("The agent has no such block.", reason=Reason.BLOCK_NOT_FOUND)
        return block_service_pb2.GetBlockResponse(block=self.block)

    async def ListBlocks(self, request: Any, context: Any) -> Any:
        return block_service_pb2.ListBlocksResponse(blocks=[self.block])

    async def RenderMemory(self, request: Any, context: Any) -> Any:
        text = f"<{self.block.label}>{self.block.value}</{self.block.label}>"
        return block_service_pb2.RenderMemoryResponse(blocks=[self.block], text=text)

    async def UpdateBlock(self, request: Any, context: Any) -> Any:
        self.before_update()
        if request.base_revision != self.block.revision:
            raise AbortedError("The block was changed meanwhile.", reason=Reason.EDIT_CONFLICT)
        self.block.value = request.value
        self.block.revision += 1
        return block_service_pb2.UpdateBlockResponse(block=self.block)


class Messages(message_service_pb2_grpc.MessageServiceServicer):
    """Finds one message."""

    def __init__(self) -> None:
        self.message = message_pb2.Message(
            id=new_id("message"),
            role=message_pb2.ROLE_USER,
            parts=[text_part("I live in Rome.\x1b[2J")],
        )

    async def GetMessage(self, request: Any, context: Any) -> Any:
        if request.message_id == self.message.id:
            return message_service_pb2.GetMessageResponse(message=self.message)
        raise NotFoundError("There is no such message.", reason=Reason.MESSAGE_NOT_FOUND)

    async def SearchMessages(self, request: Any, context: Any) -> Any:
        if not request.query.strip():
            raise InvalidArgumentError(
                "The query is empty.", violations=[FieldViolation("query", "must not be blank")]
            )
        hit = message_service_pb2.MessageHit(message=self.message)
        return message_service_pb2.SearchMessagesResponse(hits=[hit])

    async def ListMessages(self, request: Any, context: Any) -> Any:
        assert request.conversation_id.startswith("conversation-")
        return message_service_pb2.ListMessagesResponse(messages=[self.message])


class Passages(passage_service_pb2_grpc.PassageServiceServicer):
    """Keeps passages in a list."""

    def __init__(self) -> None:
        self.passages: list[passage_service_pb2.Passage] = []
        self.searched: list[passage_service_pb2.SearchPassagesRequest] = []

    async def InsertPassage(self, request: Any, context: Any) -> Any:
        passage = passage_service_pb2.Passage(
            id=new_id("passage"), text=request.passage.text, tags=request.passage.tags
        )
        self.passages.append(passage)
        return passage_service_pb2.InsertPassageResponse(passage=passage)

    async def SearchPassages(self, request: Any, context: Any) -> Any:
        self.searched.append(request)
        relevance = search_pb2.Relevance(
            explanation="Found by its words at rank 1." if request.explain else ""
        )
        hits = [
            passage_service_pb2.PassageHit(passage=p, relevance=relevance) for p in self.passages
        ]
        response = passage_service_pb2.SearchPassagesResponse(hits=hits)
        if request.explain:
            response.exclusions.add(condition="tags", count=2, best_id="passage-other")
            response.spoken_times.add(words="last March")
        return response

    async def GetPassage(self, request: Any, context: Any) -> Any:
        [passage] = [passage for passage in self.passages if passage.id == request.passage_id]
        return passage_service_pb2.GetPassageResponse(passage=passage)

    async def ListPassages(self, request: Any, context: Any) -> Any:
        return passage_service_pb2.ListPassagesResponse(passages=self.passages)


class Archives(archive_service_pb2_grpc.ArchiveServiceServicer):
    """Has one archive."""

    async def ListArchives(self, request: Any, context: Any) -> Any:
        archive = archive_service_pb2.Archive(id=new_id("archive"), name="Ann's", passage_count=7)
        return archive_service_pb2.ListArchivesResponse(archives=[archive])


class Models(model_service_pb2_grpc.ModelServiceServicer):
    """Has one model, and an endpoint that is down."""

    def __init__(self) -> None:
        self.keys: list[model_service_pb2.PutModelKeyRequest] = []
        self.models = [
            model_service_pb2.Model(handle="local/tiny", is_default=True, context_window=8192)
        ]
        self.probed: list[model_service_pb2.ProbeModelRequest] = []
        self.findings = model_service_pb2.ProbeModelResponse()

    async def ProbeModel(self, request: Any, context: Any) -> Any:
        self.probed.append(request)
        return self.findings

    async def PutModelKey(self, request: Any, context: Any) -> Any:
        self.keys.append(request)
        return model_service_pb2.PutModelKeyResponse()

    async def ListModels(self, request: Any, context: Any) -> Any:
        down = model_service_pb2.ModelEndpoint(name="far", error="connection refused")
        here = model_service_pb2.ModelEndpoint(name="local", reachable=True)
        return model_service_pb2.ListModelsResponse(
            models=self.models, endpoints=[here, down], known_models_date="2026-01-31"
        )


class Admin(admin_service_pb2_grpc.AdminServiceServicer):
    """AdminService that returns the caller."""

    async def WhoAmI(self, request: Any, context: Any) -> Any:
        return admin_service_pb2.WhoAmIResponse(
            project=admin_service_pb2.Project(name="default"), server_version="9.9.9"
        )

    async def GetUsageSeries(self, request: Any, context: Any) -> Any:
        usage = admin_service_pb2.GetUsageResponse(
            run_count=2, prompt_tokens=request.bucket_seconds
        )
        bucket = admin_service_pb2.UsageBucket(start_time=request.start_time, usage=usage)
        return admin_service_pb2.GetUsageSeriesResponse(buckets=[bucket], total=usage)


class Tools(tool_service_pb2_grpc.ToolServiceServicer):
    """Service without methods: each call fails with UNIMPLEMENTED or with the scripted error."""

    failure: StrataError | None = None
    runner_failure: StrataError | None = None
    ran: tool_service_pb2.RunToolResponse | StrataError = UnimplementedError("Nothing runs here.")

    def __init__(self) -> None:
        self.runs: list[tool_service_pb2.RunToolRequest] = []

    async def GetTool(self, request: Any, context: Any) -> Any:
        tool = tool_service_pb2.Tool(id=f"tool-{request.name}", name=request.name)
        return tool_service_pb2.GetToolResponse(tool=tool)

    async def RunTool(self, request: Any, context: Any) -> Any:
        self.runs.append(request)
        if isinstance(self.ran, StrataError):
            raise self.ran
        return self.ran

    async def ListTools(self, request: Any, context: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return tool_service_pb2.ListToolsResponse()

    async def GetToolRunner(self, request: Any, context: Any) -> Any:
        if self.runner_failure is not None:
            raise self.runner_failure
        return tool_service_pb2.GetToolRunnerResponse(isolation="none")


@dataclass
class ScriptedGateway:
    """The servicers, and the server in front of them."""

    runs: Runs = field(default_factory=Runs)
    agents: Agents = field(default_factory=Agents)
    blocks: Blocks = field(default_factory=Blocks)
    messages: Messages = field(default_factory=Messages)
    passages: Passages = field(default_factory=Passages)
    models: Models = field(default_factory=Models)
    tools: Tools = field(default_factory=Tools)
    mcp: McpServers = field(default_factory=McpServers)
    prompts: PromptServicer = field(default_factory=lambda: PromptServicer(PromptLibrary()))
    port: ReservedPort = field(default_factory=ReservedPort)
    server: GrpcServer | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port.number}"

    async def start(self) -> None:
        """Starts to listen; after `stop` again on the same port, which stays reserved."""
        self.server = GrpcServer(
            Service("gateway", self._services()),
            GatewaySettings(
                port=self.port.number, reuse_port=True, log_level="ERROR", **self.settings
            ),
            OneKey(),
        )
        await self.server.start()

    async def stop(self) -> None:
        """Breaks every call and closes the port."""
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def _services(self) -> list[GrpcService]:
        return [
            _service(
                run_service_pb2, run_service_pb2_grpc.add_RunServiceServicer_to_server, self.runs
            ),
            _service(
                agent_service_pb2,
                agent_service_pb2_grpc.add_AgentServiceServicer_to_server,
                self.agents,
            ),
            _service(
                block_service_pb2,
                block_service_pb2_grpc.add_BlockServiceServicer_to_server,
                self.blocks,
            ),
            _service(
                message_service_pb2,
                message_service_pb2_grpc.add_MessageServiceServicer_to_server,
                self.messages,
            ),
            _service(
                passage_service_pb2,
                passage_service_pb2_grpc.add_PassageServiceServicer_to_server,
                self.passages,
            ),
            _service(
                archive_service_pb2,
                archive_service_pb2_grpc.add_ArchiveServiceServicer_to_server,
                Archives(),
            ),
            _service(
                model_service_pb2,
                model_service_pb2_grpc.add_ModelServiceServicer_to_server,
                self.models,
            ),
            _service(
                prompt_service_pb2,
                prompt_service_pb2_grpc.add_PromptServiceServicer_to_server,
                self.prompts,
            ),
            _service(
                admin_service_pb2,
                admin_service_pb2_grpc.add_AdminServiceServicer_to_server,
                Admin(),
            ),
            _service(
                tool_service_pb2,
                tool_service_pb2_grpc.add_ToolServiceServicer_to_server,
                self.tools,
            ),
            _service(
                mcp_service_pb2,
                mcp_service_pb2_grpc.add_McpServiceServicer_to_server,
                self.mcp,
            ),
        ]


def _service(file: Any, add: Any, servicer: object) -> GrpcService:
    [descriptor] = file.DESCRIPTOR.services_by_name.values()
    return GrpcService(descriptor.full_name, add, servicer)


def event(sequence: int, **content: Any) -> run_event_pb2.RunEvent:
    return RunEvent(sequence=sequence, run_id=RUN_ID, **content)


def started(sequence: int = 1) -> run_event_pb2.RunEvent:
    return event(sequence, run_started=run_event_pb2.RunStarted(attempt=1))


def step(sequence: int = 2, number: int = 1) -> run_event_pb2.RunEvent:
    return event(sequence, step_started=run_event_pb2.StepStarted(step=number, model="tiny"))


def delta(text: str, sequence: int = 2) -> run_event_pb2.RunEvent:
    return event(sequence, text_delta=run_event_pb2.TextDelta(message_id="m", text=text))


def thought(text: str, sequence: int = 2) -> run_event_pb2.RunEvent:
    return event(sequence, reasoning_delta=run_event_pb2.ReasoningDelta(message_id="m", text=text))


def snapshot(text: str, sequence: int = 2) -> run_event_pb2.RunEvent:
    return event(sequence, text_snapshot=run_event_pb2.TextSnapshot(message_id="m", text=text))


def stored(text: str, sequence: int = 3) -> run_event_pb2.RunEvent:
    message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, parts=[text_part(text)])
    return event(sequence, message_stored=run_event_pb2.MessageStored(message=message))


def tool_started(arguments: str, sequence: int = 3) -> run_event_pb2.RunEvent:
    call = run_event_pb2.ToolStarted(
        tool_call_id="call-1", name="memory_insert", arguments=arguments
    )
    return event(sequence, tool_started=call)


def tool_finished(
    message: str,
    *,
    status: Any = message_pb2.TOOL_STATUS_OK,
    diff: str = "",
    operation: str = "insert",
    sequence: int = 4,
) -> run_event_pb2.RunEvent:
    tool_return = message_pb2.ToolReturnPart(
        tool_call_id="call-1",
        name="memory_insert",
        status=status,
        content=f'{{"status": "OK", "message": "{message}"}}',
    )
    edit = run_event_pb2.MemoryEdit(label="human", revision=4, diff=diff, operation=operation)
    edits = [edit] if diff or operation != "insert" else []
    return event(
        sequence,
        tool_finished=run_event_pb2.ToolFinished(tool_return=tool_return, memory_edits=edits),
    )


def finished(
    sequence: int = 9,
    stop: Any = run_event_pb2.STOP_REASON_END_TURN,
    error: run_event_pb2.RunError | None = None,
) -> run_event_pb2.RunEvent:
    return event(
        sequence,
        run_finished=run_event_pb2.RunFinished(
            stop_reason=stop,
            usage=usage_pb2.Usage(prompt_tokens=1234, completion_tokens=56, total_tokens=1290),
            step_count=1,
            error=error,
        ),
    )


def asks_approval(arguments: str, sequence: int = 3) -> run_event_pb2.RunEvent:
    call = message_pb2.ToolCallPart(tool_call_id="c1", name="pay", arguments=arguments)
    request = message_pb2.ApprovalRequestPart(
        approval_id="approval-1",
        tool_calls=[call],
        bindings=[message_pb2.ApprovalBinding(tool_call_id="c1", arguments_hash="h")],
    )
    return event(sequence, approval_requested=run_event_pb2.ApprovalRequested(approval=request))


def text_part(text: str) -> message_pb2.Part:
    return message_pb2.Part(text=message_pb2.TextPart(text=text))


def play(*events: run_event_pb2.RunEvent) -> Script:
    """Returns a script that yields these events."""

    async def script(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        for event in events:
            yield event

    return script


def reply(text: str) -> Script:
    """Returns a script that answers with a text, in two deltas."""
    half = len(text) // 2
    return play(started(), step(), delta(text[:half]), delta(text[half:]), stored(text), finished())
