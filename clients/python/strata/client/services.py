"""The services of a gateway, as generated stubs on one channel."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property

import grpc.aio

from strata.api.agent_loop.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    group_service_pb2,
    group_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
    prompt_service_pb2,
    prompt_service_pb2_grpc,
)
from strata.api.archival.v1 import (
    archive_service_pb2,
    archive_service_pb2_grpc,
    passage_index_service_pb2,
    passage_index_service_pb2_grpc,
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
    schedule_service_pb2,
    schedule_service_pb2_grpc,
    webhook_service_pb2,
    webhook_service_pb2_grpc,
)
from strata.api.recall.v1 import (
    message_index_service_pb2,
    message_index_service_pb2_grpc,
    message_service_pb2,
    message_service_pb2_grpc,
)
from strata.api.tool_execution.v1 import (
    mcp_service_pb2,
    mcp_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from strata.client.channel import CALL_S, open_gateway_channel
from strata.protocol.status import DETAILS_KEY
from strata.protocol.tls import ClientTls

_FILES = (
    agent_service_pb2,
    group_service_pb2,
    model_service_pb2,
    prompt_service_pb2,
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
    schedule_service_pb2,
    webhook_service_pb2,
    admin_service_pb2,
)


class Services:
    """Stubs of the services of one gateway.

    Calls raise `strata.protocol.errors`.

    Args:
        channel: Channel to the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    @cached_property
    def agents(self) -> agent_service_pb2_grpc.AgentServiceStub:
        """Agents."""
        return agent_service_pb2_grpc.AgentServiceStub(self.channel)

    @cached_property
    def groups(self) -> group_service_pb2_grpc.GroupServiceStub:
        """Groups of agents."""
        return group_service_pb2_grpc.GroupServiceStub(self.channel)

    @cached_property
    def models(self) -> model_service_pb2_grpc.ModelServiceStub:
        """Chat models."""
        return model_service_pb2_grpc.ModelServiceStub(self.channel)

    @cached_property
    def prompts(self) -> prompt_service_pb2_grpc.PromptServiceStub:
        """System prompts."""
        return prompt_service_pb2_grpc.PromptServiceStub(self.channel)

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
    def message_index(self) -> message_index_service_pb2_grpc.MessageIndexServiceStub:
        """The index of recall memory."""
        return message_index_service_pb2_grpc.MessageIndexServiceStub(self.channel)

    @cached_property
    def archives(self) -> archive_service_pb2_grpc.ArchiveServiceStub:
        """Archives."""
        return archive_service_pb2_grpc.ArchiveServiceStub(self.channel)

    @cached_property
    def passages(self) -> passage_service_pb2_grpc.PassageServiceStub:
        """Archival memory."""
        return passage_service_pb2_grpc.PassageServiceStub(self.channel)

    @cached_property
    def passage_index(self) -> passage_index_service_pb2_grpc.PassageIndexServiceStub:
        """The indexes of archival memory and of files."""
        return passage_index_service_pb2_grpc.PassageIndexServiceStub(self.channel)

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
    def schedules(self) -> schedule_service_pb2_grpc.ScheduleServiceStub:
        """Schedules."""
        return schedule_service_pb2_grpc.ScheduleServiceStub(self.channel)

    @cached_property
    def webhooks(self) -> webhook_service_pb2_grpc.WebhookServiceStub:
        """Webhooks."""
        return webhook_service_pb2_grpc.WebhookServiceStub(self.channel)

    @cached_property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceStub:
        """Projects and keys."""
        return admin_service_pb2_grpc.AdminServiceStub(self.channel)


@asynccontextmanager
async def open_channel(
    address: str,
    api_key: str,
    *,
    tls: ClientTls | None = None,
    timeout_s: float | None = CALL_S,
) -> AsyncIterator[grpc.aio.Channel]:
    """Opens a channel to a gateway for the length of the block; it connects at the first call.

    Unary calls that the API declares repeatable are retried while the gateway is unavailable.
    Streams have no deadline.

    Args:
        address: A gRPC target.
        api_key: Sent with each call.
        tls: TLS settings; None for no TLS.
        timeout_s: Deadline of a unary call in seconds; None for none.
    """
    services = [service for file in _FILES for service in file.DESCRIPTOR.services_by_name.values()]
    async with open_gateway_channel(
        address, api_key, services, tls=tls, timeout_s=timeout_s
    ) as channel:
        yield channel


def is_transport_failure(error: BaseException) -> bool:
    """Whether a call failed in transport; an error of the gateway itself carries details."""
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError):
        return False
    return all(key != DETAILS_KEY for key, _ in cause.trailing_metadata() or ())


def new_request_id(prefix: str = "py") -> str:
    """Returns a new idempotency key, so that a call that the channel retries takes effect once."""
    return f"{prefix}-{uuid.uuid4()}"
