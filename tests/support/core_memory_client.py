"""A client of the core memory service, over a socket or inside the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from callers import TokenKeys
from service_channels import service_channel
from strata.api.core_memory.v1 import (
    block_service_pb2_grpc,
    context_service_pb2_grpc,
    file_service_pb2_grpc,
)
from strata.core_memory.main import build
from strata.core_memory.settings import CoreMemorySettings


@dataclass
class Client:
    """The stubs of the service, and the keys to call them with."""

    blocks: Any
    context: Any
    files: Any
    keys: TokenKeys


@asynccontextmanager
async def open_client(
    transport: str, settings: CoreMemorySettings, keys: TokenKeys
) -> AsyncIterator[Client]:
    """Starts the service, and yields a client of it.

    Args:
        transport: See `service_channel`.
        settings: Settings of the service.
        keys: The service accepts tokens signed with these keys.
    """
    async with service_channel(transport, build, settings, keys.verifier) as channel:
        yield Client(
            block_service_pb2_grpc.BlockServiceStub(channel),
            context_service_pb2_grpc.ContextServiceStub(channel),
            file_service_pb2_grpc.FileServiceStub(channel),
            keys,
        )
