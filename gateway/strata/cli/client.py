"""The public API of a gateway, as commands call it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Protocol, TypeVar

import grpc.aio

from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
)
from strata.api.archival.v1 import (
    archive_service_pb2,
    archive_service_pb2_grpc,
    passage_index_service_pb2,
    passage_service_pb2,
    passage_service_pb2_grpc,
)
from strata.api.core_memory.v1 import (
    block_service_pb2,
    block_service_pb2_grpc,
    file_service_pb2,
    file_service_pb2_grpc,
)
from strata.api.gateway.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    run_service_pb2,
    run_service_pb2_grpc,
)
from strata.api.recall.v1 import (
    message_index_service_pb2,
    message_service_pb2,
    message_service_pb2_grpc,
)
from strata.api.tool_execution.v1 import (
    mcp_service_pb2,
    mcp_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from strata.cli.connection import Target
from strata.cli.failures import UnreachableError
from strata.shared.channels import ChannelFactory, ChannelOptions
from strata.shared.context import Caller, RequestContext, use
from strata.shared.errors import NotFoundError, Reason, UnavailableError
from strata.shared.interceptors.client import CallPolicy
from strata.shared.status import DETAILS_KEY

ResultT = TypeVar("ResultT")

_CALL_S = 30.0
_ATTEMPTS = 3
_PAGE = 500
_FILES = (
    agent_service_pb2,
    model_service_pb2,
    block_service_pb2,
    file_service_pb2,
    message_service_pb2,
    archive_service_pb2,
    passage_service_pb2,
    passage_index_service_pb2,
    message_index_service_pb2,
    tool_service_pb2,
    mcp_service_pb2,
    run_service_pb2,
    admin_service_pb2,
)


class Client:
    """The services of one gateway.

    Calls raise `strata.shared.errors`; identity comes from the context of `connected`.

    Args:
        channel: To the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    @cached_property
    def agents(self) -> agent_service_pb2_grpc.AgentServiceStub:
        """Agents."""
        return agent_service_pb2_grpc.AgentServiceStub(self.channel)

    @cached_property
    def models(self) -> model_service_pb2_grpc.ModelServiceStub:
        """Chat models."""
        return model_service_pb2_grpc.ModelServiceStub(self.channel)

    @cached_property
    def blocks(self) -> block_service_pb2_grpc.BlockServiceStub:
        """Core memory."""
        return block_service_pb2_grpc.BlockServiceStub(self.channel)

    @cached_property
    def files(self) -> file_service_pb2_grpc.FileServiceStub:
        """Folders and files."""
        return file_service_pb2_grpc.FileServiceStub(self.channel)

    @cached_property
    def messages(self) -> message_service_pb2_grpc.MessageServiceStub:
        """Recall memory."""
        return message_service_pb2_grpc.MessageServiceStub(self.channel)

    @cached_property
    def archives(self) -> archive_service_pb2_grpc.ArchiveServiceStub:
        """Archives."""
        return archive_service_pb2_grpc.ArchiveServiceStub(self.channel)

    @cached_property
    def passages(self) -> passage_service_pb2_grpc.PassageServiceStub:
        """Archival memory."""
        return passage_service_pb2_grpc.PassageServiceStub(self.channel)

    @cached_property
    def tools(self) -> tool_service_pb2_grpc.ToolServiceStub:
        """Tools."""
        return tool_service_pb2_grpc.ToolServiceStub(self.channel)

    @cached_property
    def mcp(self) -> mcp_service_pb2_grpc.McpServiceStub:
        """MCP servers."""
        return mcp_service_pb2_grpc.McpServiceStub(self.channel)

    @cached_property
    def runs(self) -> run_service_pb2_grpc.RunServiceStub:
        """Runs."""
        return run_service_pb2_grpc.RunServiceStub(self.channel)

    @cached_property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceStub:
        """Projects and keys."""
        return admin_service_pb2_grpc.AdminServiceStub(self.channel)

    async def agent(self, name_or_id: str) -> agent_service_pb2.Agent:
        """Returns an agent by id or by name.

        Raises:
            NotFoundError: There is none (``AGENT_NOT_FOUND``).
        """
        by_id = is_agent_id(name_or_id)
        request = agent_service_pb2.GetAgentRequest(
            agent_id=name_or_id if by_id else "", name="" if by_id else name_or_id
        )
        try:
            response = await self.agents.GetAgent(request)
        except NotFoundError as error:
            raise NotFoundError(
                f'There is no agent "{name_or_id}". List them with: strata agents list',
                reason=Reason.AGENT_NOT_FOUND,
            ) from error
        return response.agent

    async def agent_id(self, name_or_id: str) -> str:
        """Returns the id of an agent; an id is not looked up.

        Raises:
            NotFoundError: There is no agent of that name (``AGENT_NOT_FOUND``).
        """
        return name_or_id if is_agent_id(name_or_id) else (await self.agent(name_or_id)).id


class Page(Protocol):
    """The response of a listing."""

    next_page_token: str


PageT = TypeVar("PageT", bound=Page)


async def first_of(
    call: Callable[[Any], Awaitable[PageT]], request: Any, items: str, limit: int
) -> PageT:
    """Reads pages until there are `limit` items, and returns them as one response.

    Args:
        call: The method of a stub.
        request: With the filters; its page fields are set here.
        items: Name of the repeated field.
        limit: How many at most.
    """
    whole: PageT | None = None
    while True:
        have = len(getattr(whole, items)) if whole is not None else 0
        request.page_size = min(_PAGE, limit - have)
        page = await call(request)
        if whole is None:
            whole = page
        else:
            getattr(whole, items).extend(getattr(page, items))
            whole.next_page_token = page.next_page_token
        request.page_token = page.next_page_token
        if not page.next_page_token or len(getattr(whole, items)) >= limit:
            return whole


def is_agent_id(text: str) -> bool:
    """Whether the text has the form of an agent's id; a name may also begin with ``agent-``."""
    try:
        return text == f"agent-{uuid.UUID(text.removeprefix('agent-'))}"
    except ValueError:
        return False


def new_request_id() -> str:
    """Returns a new idempotency key: a call that is repeated by the channel counts once."""
    return f"cli-{uuid.uuid4()}"


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Client]:
    """Talks to a gateway while the block lasts.

    Raises:
        UnreachableError: Nothing answers there.
    """
    services = [each for file in _FILES for each in file.DESCRIPTOR.services_by_name.values()]
    factory = ChannelFactory(
        ChannelOptions(max_attempts=_ATTEMPTS, local_subchannels=True),
        CallPolicy(unary_timeout_s=_CALL_S, stream_timeout_s=None),
    )
    # The channel sends the token of the caller that the context names: here, the key.
    caller = Caller(organization_id="", project_id="", principal="", token=target.api_key)
    try:
        with use(RequestContext(caller=caller)):
            yield Client(factory.channel(target.address, services))
    except UnavailableError as error:
        if not is_transport_failure(error):
            raise
        raise UnreachableError(
            f"No gateway answers at {target.address}. {target.advice}"
        ) from error
    finally:
        await factory.close()


def is_transport_failure(error: BaseException) -> bool:
    """Whether a call failed on its way; an answer of the gateway carries details."""
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError):
        return False
    return all(key != DETAILS_KEY for key, _ in cause.trailing_metadata() or ())


def talk(target: Target, work: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
    """Runs `work` against a gateway, to its end."""

    async def main() -> ResultT:
        async with connected(target) as client:
            return await work(client)

    return asyncio.run(main())
