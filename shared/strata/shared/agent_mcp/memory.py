"""The agent whose memory the MCP server offers, and connections to its gateway."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from zoneinfo import ZoneInfo

from strata.api.archival.v1 import passage_service_pb2_grpc
from strata.api.core_memory.v1 import file_service_pb2_grpc
from strata.api.recall.v1 import message_service_pb2_grpc
from strata.protocol.errors import StrataError
from strata.shared.agent_mcp.blocks import BlockServices


class MemoryServices(BlockServices, Protocol):
    """The stubs of the memory tiers."""

    @property
    def files(self) -> file_service_pb2_grpc.FileServiceStub:
        """The stub of the FileService."""
        ...

    @property
    def passages(self) -> passage_service_pb2_grpc.PassageServiceStub:
        """The stub of the PassageService."""
        ...

    @property
    def messages(self) -> message_service_pb2_grpc.MessageServiceStub:
        """The stub of the MessageService."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectedAgent:
    """One agent with the gateway and the permissions of an API key.

    Attributes:
        connected: Returns a connection to the gateway, for one call. It is asked before each call,
            because an MCP server may run for days, and Strata may be restarted elsewhere or with
            another key.
        explained: Returns the message of an error for the user of the client.
        agent_id: The agent.
        agent_name: Its name.
        timezone: Time zone of the agent.
        may_write: Whether the key may change anything.
        editor: Name of a client that does not introduce itself.
    """

    connected: Callable[[], AbstractAsyncContextManager[MemoryServices]]
    explained: Callable[[StrataError], str]
    agent_id: str
    agent_name: str
    timezone: ZoneInfo
    may_write: bool
    editor: str = "a client without a name"
