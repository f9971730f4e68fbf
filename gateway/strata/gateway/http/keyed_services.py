"""The public services, called with the credentials of one HTTP request."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import grpc.aio

from strata.api.agent_loop.v1 import (
    agent_service_pb2_grpc,
    group_service_pb2_grpc,
    model_service_pb2_grpc,
    prompt_service_pb2_grpc,
)
from strata.api.archival.v1 import archive_service_pb2_grpc, passage_service_pb2_grpc
from strata.api.core_memory.v1 import block_service_pb2_grpc, file_service_pb2_grpc
from strata.api.gateway.v1 import (
    admin_service_pb2_grpc,
    run_service_pb2_grpc,
    schedule_service_pb2_grpc,
    webhook_service_pb2_grpc,
)
from strata.api.recall.v1 import message_service_pb2_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc, tool_service_pb2_grpc
from strata.protocol.shapes import ClientMethod, WrappedChannel
from strata.shared.interceptors.client import ClientChannel


class KeyedServices:
    """Stubs with the credentials of a request; their calls raise `strata.protocol.errors`.

    Args:
        channel: Calls the gateway.
        metadata: The credentials, see `metadata_of`.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = ClientChannel(_KeyedChannel(channel, metadata))

    @cached_property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceStub:
        """Projects, keys and usage."""
        return admin_service_pb2_grpc.AdminServiceStub(self._channel)

    @cached_property
    def agents(self) -> agent_service_pb2_grpc.AgentServiceStub:
        """Agents and their conversations."""
        return agent_service_pb2_grpc.AgentServiceStub(self._channel)

    @cached_property
    def groups(self) -> group_service_pb2_grpc.GroupServiceStub:
        """Groups of agents."""
        return group_service_pb2_grpc.GroupServiceStub(self._channel)

    @cached_property
    def models(self) -> model_service_pb2_grpc.ModelServiceStub:
        """Chat models."""
        return model_service_pb2_grpc.ModelServiceStub(self._channel)

    @cached_property
    def prompts(self) -> prompt_service_pb2_grpc.PromptServiceStub:
        """System prompts."""
        return prompt_service_pb2_grpc.PromptServiceStub(self._channel)

    @cached_property
    def blocks(self) -> block_service_pb2_grpc.BlockServiceStub:
        """Core memory."""
        return block_service_pb2_grpc.BlockServiceStub(self._channel)

    @cached_property
    def files(self) -> file_service_pb2_grpc.FileServiceStub:
        """Folders and files."""
        return file_service_pb2_grpc.FileServiceStub(self._channel)

    @cached_property
    def messages(self) -> message_service_pb2_grpc.MessageServiceStub:
        """Recall memory."""
        return message_service_pb2_grpc.MessageServiceStub(self._channel)

    @cached_property
    def archives(self) -> archive_service_pb2_grpc.ArchiveServiceStub:
        """Archives."""
        return archive_service_pb2_grpc.ArchiveServiceStub(self._channel)

    @cached_property
    def passages(self) -> passage_service_pb2_grpc.PassageServiceStub:
        """Archival memory."""
        return passage_service_pb2_grpc.PassageServiceStub(self._channel)

    @cached_property
    def tools(self) -> tool_service_pb2_grpc.ToolServiceStub:
        """Tools."""
        return tool_service_pb2_grpc.ToolServiceStub(self._channel)

    @cached_property
    def mcp(self) -> mcp_service_pb2_grpc.McpServiceStub:
        """MCP servers."""
        return mcp_service_pb2_grpc.McpServiceStub(self._channel)

    @cached_property
    def runs(self) -> run_service_pb2_grpc.RunServiceStub:
        """Runs and approvals."""
        return run_service_pb2_grpc.RunServiceStub(self._channel)

    @cached_property
    def schedules(self) -> schedule_service_pb2_grpc.ScheduleServiceStub:
        """Schedules."""
        return schedule_service_pb2_grpc.ScheduleServiceStub(self._channel)

    @cached_property
    def webhooks(self) -> webhook_service_pb2_grpc.WebhookServiceStub:
        """Webhooks."""
        return webhook_service_pb2_grpc.WebhookServiceStub(self._channel)


class _KeyedChannel(WrappedChannel):
    """A channel whose calls carry the credentials of a request."""

    def __init__(self, inner: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        super().__init__(inner)
        self._metadata = metadata

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        return partial(_call_with, method.open_on(self._inner), self._metadata)


def _call_with(
    call: Any,
    credentials: tuple[tuple[str, str], ...],
    *arguments: Any,
    metadata: Any = None,
    **options: Any,
) -> Any:
    return call(*arguments, metadata=(*credentials, *(metadata or ())), **options)
