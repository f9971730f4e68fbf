"""Lists and searches of an agent, a conversation, an archive or a folder that does not exist.

A wrong id must not look like an empty memory. Ids in filters of lists of the project match nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2 as message
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import NotFoundError
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

OF_AGENT = [
    ("archives", archive_pb.ListArchivesRequest()),
    ("passages", passage_pb.ListPassagesRequest()),
    ("passages", passage_pb.SearchPassagesRequest(query="x")),
    ("passages", passage_pb.ListTagsRequest()),
    ("messages", message_pb.ListMessagesRequest()),
    ("messages", message_pb.ListMessagesRequest(roles=[message.ROLE_SUMMARY])),
    ("messages", message_pb.SearchMessagesRequest(query="x")),
    ("messages", message_pb.ExportMessagesRequest()),
    ("blocks", block_pb.ListBlocksRequest()),
    ("files", file_pb.ListFoldersRequest()),
    ("files", file_pb.ListFilesRequest()),
    ("files", file_pb.SearchFilesRequest(query="x")),
    ("files", file_pb.GrepFilesRequest(pattern="x")),
]
OTHERS = [
    ("passages", passage_pb.ListPassagesRequest(archive_id=new_id("archive")), "ARCHIVE"),
    ("passages", passage_pb.SearchPassagesRequest(archive_ids=[new_id("archive")]), "ARCHIVE"),
    ("messages", message_pb.ListMessagesRequest(conversation_id=new_id("conversation")), "CONV"),
    ("messages", message_pb.ExportMessagesRequest(conversation_id=new_id("conversation")), "CONV"),
    ("files", file_pb.ListFilesRequest(folder_id=new_id("folder")), "FILE"),
]


async def answer(system: System, service: str, request: Any) -> None:
    """Makes the call of a request."""
    method = type(request).__name__.removesuffix("Request")
    call = getattr(getattr(system, service), method)(request)
    if method.startswith("Export"):
        assert [response async for response in call]
    else:
        await call


@pytest.mark.parametrize(
    ("service", "request_"), OF_AGENT, ids=[type(r).__name__ for _, r in OF_AGENT]
)
async def test_memory_of_an_agent_that_does_not_exist_is_refused(
    system: System, service: str, request_: Any
) -> None:
    request = type(request_).FromString(request_.SerializeToString())
    request.agent_id = new_id("agent")
    with pytest.raises(NotFoundError) as refused:
        await answer(system, service, request)
    assert refused.value.reason == "AGENT_NOT_FOUND"
    assert refused.value.metadata == {"id": request.agent_id}
    # A new agent has an empty memory.
    request.agent_id = (await system.make_agent(include_base_tools=False)).id
    await answer(system, service, request)


@pytest.mark.parametrize(
    ("service", "request_", "reason"), OTHERS, ids=[type(r).__name__ for _, r, _ in OTHERS]
)
async def test_an_owner_that_does_not_exist_is_refused(
    system: System, service: str, request_: Any, reason: str
) -> None:
    request = type(request_).FromString(request_.SerializeToString())
    if isinstance(request, passage_pb.SearchPassagesRequest):
        request.query = "x"
    with pytest.raises(NotFoundError) as refused:
        await answer(system, service, request)
    assert refused.value.reason.startswith(reason)


async def test_a_search_in_a_conversation_of_another_agent_is_refused(system: System) -> None:
    agent, other = [await system.make_agent() for _ in range(2)]
    request = message_pb.SearchMessagesRequest(
        agent_id=agent.id, conversation_id=other.default_conversation_id, query="x"
    )
    with pytest.raises(NotFoundError) as refused:
        await system.messages.SearchMessages(request)
    assert refused.value.reason == "CONVERSATION_NOT_FOUND"


async def test_memory_of_a_deleted_agent_is_refused(system: System) -> None:
    agent = await system.make_agent()
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    for service, request_ in OF_AGENT:
        request: Any = type(request_).FromString(request_.SerializeToString())
        request.agent_id = agent.id
        with pytest.raises(NotFoundError):
            await answer(system, service, request)


async def test_a_filter_of_a_list_of_the_project_may_match_nothing(system: System) -> None:
    listed = await system.runs.ListRuns(run_pb.ListRunsRequest(agent_id=new_id("agent")))
    assert not listed.runs
