"""Concurrent calls with one request id: equal ones have one answer, different ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from chat_messages import user_message
from doubles.script import call, say
from gated_inserts import GATE, INSERT
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2, tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as schedule_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.gateway.registry import public_services
from strata.protocol.errors import AlreadyExistsError, Reason
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

_NOT_HERE = {
    "ImportAgent": "not built",
    "EraseSubject": "not built",
    "CreateWebhook": "tests/contract/idempotency, since this system keeps no secrets",
    "StartReindex": "tests/contract/archival/test_reindex.py: it rebuilds an index of all projects",
}
"""Methods with a request id that have no case here, with the reason."""

Send = Callable[[str, str], Awaitable[object]]
"""Sends a request with an id and one of two bodies, "one" or "two"; returns what repetitions must
return as well.
"""


class Cases:
    """One method per case, named after the RPC; a suffix tells cases of the same RPC apart.

    Each makes what the calls change, and returns how to send them.
    """

    def __init__(self, system: System, operator: System, agents: list[agent_pb.Agent]) -> None:
        self.system = system
        self.operator = operator
        self.agent, self.other_agent = agents

    def _agent_of(self, body: str) -> str:
        return (self.agent if body == "one" else self.other_agent).id

    async def _block(self, *later_values: str) -> str:
        new = block_pb.NewBlock(label=f"notes-{new_id('x')[-8:]}", value="a")
        block = (await self.system.blocks.CreateBlock(block_pb.CreateBlockRequest(block=new))).block
        for value in later_values:
            await self.system.blocks.UpdateBlock(
                block_pb.UpdateBlockRequest(block_id=block.id, value=value)
            )
        return str(block.id)

    async def _archive(self) -> str:
        request = archive_pb.CreateArchiveRequest(name=new_id("x"))
        return str((await self.system.archives.CreateArchive(request)).archive.id)

    async def _passage(self) -> str:
        request = passage_pb.InsertPassageRequest(
            agent_id=self.agent.id, passage=passage_pb.NewPassage(text=new_id("x"))
        )
        return str((await self.system.passages.InsertPassage(request)).passage.id)

    async def _folder(self) -> str:
        request = file_pb.CreateFolderRequest(name=new_id("x"))
        return str((await self.system.files.CreateFolder(request)).folder.id)

    async def _upload(
        self, request_id: str, folder_id: str, content: str
    ) -> file_pb.UploadFileResponse:
        header = file_pb.UploadFileHeader(
            request_id=request_id, folder_id=folder_id, name="notes.txt"
        )
        requests = [
            file_pb.UploadFileRequest(header=header),
            file_pb.UploadFileRequest(chunk=content.encode()),
        ]
        response: file_pb.UploadFileResponse = await self.system.files.UploadFile(iter(requests))
        return response

    async def SendMessage(self) -> Send:
        async def send(request_id: str, body: str) -> object:
            request = run_pb.SendMessageRequest(
                request_id=request_id, agent_id=self.agent.id, messages=[user_message(body)]
            )
            return {event.event.run_id async for event in self.system.runs.SendMessage(request)}

        return send

    async def StartRun(self) -> Send:
        async def send(request_id: str, body: str) -> object:
            request = run_pb.StartRunRequest(
                request_id=request_id, agent_id=self.agent.id, messages=[user_message(body)]
            )
            return (await self.system.runs.StartRun(request)).run.id

        return send

    async def RespondToApproval(self) -> Send:
        agent = await self.system.make_agent(tool_rules=[GATE])
        self.system.model.script(call("memory_insert", INSERT), say("Noted."))
        asked = (await self.system.send(agent, "I like rowing.")).approval

        async def send(request_id: str, body: str) -> object:
            decision = message_pb2.ApprovalDecision(
                tool_call_id=asked.tool_calls[0].tool_call_id, approve=body == "one"
            )
            request = run_pb.RespondToApprovalRequest(
                request_id=request_id, approval_id=asked.approval_id, decisions=[decision]
            )
            events = self.system.runs.RespondToApproval(request)
            return {event.event.run_id async for event in events}

        return send

    async def CreateSchedule(self) -> Send:
        stub = schedule_grpc.ScheduleServiceStub(self.system.channel)
        return lambda request_id, body: stub.CreateSchedule(
            schedule_pb.CreateScheduleRequest(
                request_id=request_id,
                name=request_id,
                agent_id=self.agent.id,
                cron="0 0 1 1 *",
                messages=[user_message(body)],
            )
        )

    async def CreateOrganization(self) -> Send:
        return lambda request_id, body: self.operator.admin.CreateOrganization(
            admin_pb.CreateOrganizationRequest(request_id=request_id, name=f"{request_id} {body}")
        )

    async def CreateProject(self) -> Send:
        return lambda request_id, body: self.operator.admin.CreateProject(
            admin_pb.CreateProjectRequest(request_id=request_id, name=f"{request_id} {body}")
        )

    async def CreateAgent(self) -> Send:
        return lambda request_id, body: self.system.agents.CreateAgent(
            agent_pb.CreateAgentRequest(request_id=request_id, name=request_id, description=body)
        )

    async def UpdateAgent(self) -> Send:
        return lambda request_id, body: self.system.agents.UpdateAgent(
            agent_pb.UpdateAgentRequest(
                request_id=request_id, agent_id=self.agent.id, description=body
            )
        )

    async def UpdateAgent_of_other_agents(self) -> Send:
        return lambda request_id, body: self.system.agents.UpdateAgent(
            agent_pb.UpdateAgentRequest(
                request_id=request_id, agent_id=self._agent_of(body), description="new"
            )
        )

    async def CreateConversation(self) -> Send:
        return lambda request_id, body: self.system.agents.CreateConversation(
            agent_pb.CreateConversationRequest(
                request_id=request_id, agent_id=self.agent.id, title=body, external_id=request_id
            )
        )

    async def ForkConversation(self) -> Send:
        return lambda request_id, body: self.system.agents.ForkConversation(
            agent_pb.ForkConversationRequest(
                request_id=request_id,
                conversation_id=self.agent.default_conversation_id,
                title=body,
            )
        )

    async def CreateGroup(self) -> Send:
        return lambda request_id, body: self.system.groups.CreateGroup(
            group_pb.CreateGroupRequest(
                request_id=request_id, agent_ids=[self.agent.id], description=body
            )
        )

    async def UpdateGroup(self) -> Send:
        made = await self.system.groups.CreateGroup(
            group_pb.CreateGroupRequest(agent_ids=[self.agent.id], description="old")
        )
        return lambda request_id, body: self.system.groups.UpdateGroup(
            group_pb.UpdateGroupRequest(
                request_id=request_id, group_id=made.group.id, description=body
            )
        )

    async def CreateBlock(self) -> Send:
        return lambda request_id, body: self.system.blocks.CreateBlock(
            block_pb.CreateBlockRequest(
                request_id=request_id,
                agent_id=self.agent.id,
                block=block_pb.NewBlock(label=f"block-{request_id[-8:]}", value=body),
            )
        )

    async def UpdateBlock(self) -> Send:
        block_id = await self._block()
        return lambda request_id, body: self.system.blocks.UpdateBlock(
            block_pb.UpdateBlockRequest(request_id=request_id, block_id=block_id, value=body)
        )

    async def UpdateBlock_of_other_blocks(self) -> Send:
        block_ids = {"one": await self._block(), "two": await self._block()}
        return lambda request_id, body: self.system.blocks.UpdateBlock(
            block_pb.UpdateBlockRequest(
                request_id=request_id, block_id=block_ids[body], value="new"
            )
        )

    async def DeleteBlock(self) -> Send:
        block_id = await self._block()
        return lambda request_id, body: self.system.blocks.DeleteBlock(
            block_pb.DeleteBlockRequest(request_id=request_id, block_id=block_id, reason=body)
        )

    async def DeleteBlock_that_purges(self) -> Send:
        block_id = await self._block()
        return lambda request_id, body: self.system.blocks.DeleteBlock(
            block_pb.DeleteBlockRequest(
                request_id=request_id, block_id=block_id, reason=body, purge=True
            )
        )

    async def AttachBlock(self) -> Send:
        block_id = await self._block()
        return lambda request_id, body: self.system.blocks.AttachBlock(
            block_pb.AttachBlockRequest(
                request_id=request_id, block_id=block_id, agent_id=self._agent_of(body)
            )
        )

    async def DetachBlock(self) -> Send:
        block_id = await self._block()
        for body in ("one", "two"):
            await self.system.blocks.AttachBlock(
                block_pb.AttachBlockRequest(block_id=block_id, agent_id=self._agent_of(body))
            )
        return lambda request_id, body: self.system.blocks.DetachBlock(
            block_pb.DetachBlockRequest(
                request_id=request_id, block_id=block_id, agent_id=self._agent_of(body)
            )
        )

    async def EditBlock(self) -> Send:
        return lambda request_id, body: self.system.blocks.EditBlock(
            block_pb.EditBlockRequest(
                request_id=request_id,
                agent_id=self.agent.id,
                label="human",
                append=block_pb.AppendEdit(content=body),
            )
        )

    async def EditBlock_that_creates(self) -> Send:
        return lambda request_id, body: self.system.blocks.EditBlock(
            block_pb.EditBlockRequest(
                request_id=request_id,
                agent_id=self.agent.id,
                label=f"block-{request_id[-8:]}",
                create=block_pb.CreateEdit(description="Notes.", file_text=body),
            )
        )

    async def RevertBlock(self) -> Send:
        block_id = await self._block("b", "c")
        return lambda request_id, body: self.system.blocks.RevertBlock(
            block_pb.RevertBlockRequest(
                request_id=request_id, block_id=block_id, to_revision=1, reason=body
            )
        )

    async def CreateFolder(self) -> Send:
        return lambda request_id, body: self.system.files.CreateFolder(
            file_pb.CreateFolderRequest(request_id=request_id, name=request_id, description=body)
        )

    async def UploadFile(self) -> Send:
        folder_id = await self._folder()

        async def send(request_id: str, body: str) -> object:
            return await self._upload(request_id, folder_id, f"{body} {request_id}")

        return send

    async def OpenFiles(self) -> Send:
        folder_name = new_id("x")
        folder = await self.system.files.CreateFolder(file_pb.CreateFolderRequest(name=folder_name))
        folder_id = folder.folder.id
        uploaded = await self._upload("", folder_id, "text")
        await self.system.files.AttachFolder(
            file_pb.AttachFolderRequest(agent_id=self.agent.id, folder_id=folder_id)
        )
        watch = file_pb.WatchFileRequest(file_id=uploaded.file.id)
        assert [state async for state in self.system.files.WatchFile(watch)]
        return lambda request_id, body: self.system.files.OpenFiles(
            file_pb.OpenFilesRequest(
                request_id=request_id,
                agent_id=self.agent.id,
                windows=[file_pb.FileWindow(file_name=f"{folder_name}/notes.txt")],
                close_all_others=body == "one",
            )
        )

    async def CreateArchive(self) -> Send:
        return lambda request_id, body: self.system.archives.CreateArchive(
            archive_pb.CreateArchiveRequest(
                request_id=request_id, name=request_id, description=body
            )
        )

    async def UpdateArchive(self) -> Send:
        archive_id = await self._archive()
        return lambda request_id, body: self.system.archives.UpdateArchive(
            archive_pb.UpdateArchiveRequest(
                request_id=request_id, archive_id=archive_id, description=body
            )
        )

    async def ReindexArchive(self) -> Send:
        archive_ids = {"one": await self._archive(), "two": await self._archive()}

        async def send(request_id: str, body: str) -> object:
            request = archive_pb.ReindexArchiveRequest(
                request_id=request_id,
                archive_id=archive_ids[body],
                action=archive_pb.REINDEX_ACTION_START,
            )
            return (await self.system.archives.ReindexArchive(request)).reindex.id

        return send

    async def _insertion(self, **passages: passage_pb.NewPassage) -> Send:
        async def send(request_id: str, body: str) -> object:
            request = passage_pb.InsertPassageRequest(
                request_id=request_id, agent_id=self.agent.id, passage=passages[body]
            )
            response = await self.system.passages.InsertPassage(request)
            return response.passage.id, response.duplicate

        return send

    async def InsertPassage(self) -> Send:
        return await self._insertion(
            one=passage_pb.NewPassage(text=new_id("x")), two=passage_pb.NewPassage(text=new_id("x"))
        )

    async def InsertPassage_with_other_tags(self) -> Send:
        text = new_id("x")
        return await self._insertion(
            one=passage_pb.NewPassage(text=text, tags=["one"]),
            two=passage_pb.NewPassage(text=text, tags=["two"]),
        )

    async def InsertPassage_into_other_archives(self) -> Send:
        places = {"one": {"agent_id": self.agent.id}, "two": {"archive_id": await self._archive()}}

        async def send(request_id: str, body: str) -> object:
            request = passage_pb.InsertPassageRequest(
                request_id=request_id,
                passage=passage_pb.NewPassage(text=request_id),
                **places[body],
            )
            return (await self.system.passages.InsertPassage(request)).passage.id

        return send

    async def UploadPassages(self) -> Send:
        async def send(request_id: str, body: str) -> object:
            requests = [
                passage_pb.UploadPassagesRequest(
                    request_id=request_id,
                    agent_id=self.agent.id,
                    passages=[passage_pb.NewPassage(text=f"{request_id} {body} {number}")],
                )
                for number in range(2)
            ]
            progress = [
                response async for response in self.system.passages.UploadPassages(iter(requests))
            ]
            return progress[-1]

        return send

    async def UpdatePassage(self) -> Send:
        passage_id = await self._passage()
        return lambda request_id, body: self.system.passages.UpdatePassage(
            passage_pb.UpdatePassageRequest(
                request_id=request_id, passage_id=passage_id, text=f"{request_id} {body}"
            )
        )

    async def UpdatePassage_of_other_passages(self) -> Send:
        passage_ids = {"one": await self._passage(), "two": await self._passage()}
        return lambda request_id, body: self.system.passages.UpdatePassage(
            passage_pb.UpdatePassageRequest(
                request_id=request_id, passage_id=passage_ids[body], text=f"{request_id} {body}"
            )
        )

    async def RestorePassage(self) -> Send:
        passage_id = await self._passage()
        await self.system.passages.UpdatePassage(
            passage_pb.UpdatePassageRequest(passage_id=passage_id, text=new_id("x"))
        )
        return lambda request_id, body: self.system.passages.RestorePassage(
            passage_pb.RestorePassageRequest(
                request_id=request_id, passage_id=passage_id, revision=1, reason=body
            )
        )

    async def PurgePassage(self) -> Send:
        passage_ids = {"one": await self._passage(), "two": await self._passage()}
        return lambda request_id, body: self.system.passages.PurgePassage(
            passage_pb.PurgePassageRequest(request_id=request_id, passage_id=passage_ids[body])
        )

    async def UpsertTool(self) -> Send:
        name = f"tool_{new_id('x')[-8:]}"
        return lambda request_id, body: self.system.tools.UpsertTool(
            tool_pb.UpsertToolRequest(
                request_id=request_id,
                type=tool_pb2.TOOL_TYPE_CLIENT,
                name=name,
                description=body,
                parameters_json='{"type": "object", "properties": {}, "required": []}',
            )
        )

    async def AddMcpServer(self) -> Send:
        stub = mcp_grpc.McpServiceStub(self.system.channel)
        name = f"server_{new_id('x')[-8:]}"

        async def send(request_id: str, body: str) -> object:
            server = mcp_pb.McpServer(
                name=name,
                transport=mcp_pb.MCP_TRANSPORT_STREAMABLE_HTTP,
                url=f"https://mcp.invalid/{body}",
            )
            request = mcp_pb.AddMcpServerRequest(request_id=request_id, server=server)
            return (await stub.AddMcpServer(request)).server.id

        return send


_CASES = sorted(name for name in vars(Cases) if name[0].isupper())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agents(running_system: System) -> list[agent_pb.Agent]:
    """Two agents of all cases: what a case stores in them has a name of its own."""
    return [await running_system.make_agent() for _ in range(2)]


@pytest_asyncio.fixture(loop_scope="session")
async def cases(system: System, agents: list[agent_pb.Agent]) -> AsyncIterator[Cases]:
    operator: Any = system.client(system.organization_key)
    system.model.respond(lambda _: say("Noted."))
    yield Cases(system, operator, agents)
    await operator.channel.close()


async def _outcome(send: Send, request_id: str, body: str) -> object:
    try:
        answer = await send(request_id, body)
    except AlreadyExistsError as error:
        if error.reason is not Reason.REQUEST_ID_REUSED:
            raise
        return error.reason
    if isinstance(answer, Message):
        if "passage" in answer.DESCRIPTOR.fields_by_name:
            # The state at the time of the answer: the passage may have been indexed since.
            answer.passage.ClearField("index_state")  # type: ignore[attr-defined]
        return body, answer.SerializeToString(deterministic=True)
    return body, answer


@pytest.mark.parametrize("case", _CASES)
async def test_concurrent_equal_requests_have_one_answer(cases: Cases, case: str) -> None:
    send: Send = await getattr(cases, case)()
    request_id = new_id("request")

    outcomes = await asyncio.gather(*(_outcome(send, request_id, "one") for _ in range(4)))

    assert outcomes[0] is not Reason.REQUEST_ID_REUSED
    assert outcomes == [outcomes[0]] * 4


@pytest.mark.parametrize("case", _CASES)
async def test_concurrent_different_requests_with_one_id_are_refused_but_one(
    cases: Cases, case: str
) -> None:
    send: Send = await getattr(cases, case)()
    request_id = new_id("request")

    outcomes = await asyncio.gather(
        *(_outcome(send, request_id, body) for body in ("one", "two") * 2)
    )

    answers = [outcome for outcome in outcomes if outcome is not Reason.REQUEST_ID_REUSED]
    assert len(answers) == 2
    assert answers[0] == answers[1]


async def test_every_method_with_a_request_id_has_a_case() -> None:
    methods = {
        method.name
        for service in public_services()
        for method in service.methods
        if "request_id" in _field_names(method.input_type)
    }
    assert methods == {name.partition("_")[0] for name in _CASES} | set(_NOT_HERE)


def _field_names(message: Descriptor | None) -> Iterator[str]:
    assert message is not None
    for field in message.fields:
        yield field.name
        if field.name == "header":
            yield from _field_names(field.message_type)
