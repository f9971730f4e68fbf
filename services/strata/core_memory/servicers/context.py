"""The gRPC servicer of `ContextService`: the core memory of agents for the agent loop."""

from __future__ import annotations

from typing import Any

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.core_memory.convert import context as convert
from strata.core_memory.domain.core_memory import CoreMemory
from strata.core_memory.domain.ports import BlockStore
from strata.core_memory.domain.prompt.compilation import compile_memory
from strata.core_memory.files.file_windows import Windows

Context = Any


class ContextServicer(context_grpc.ContextServiceServicer):
    """Serves the core memory of agents to the agent loop: rendering, limits, life cycle."""

    def __init__(self, store: BlockStore, memory: CoreMemory, windows: Windows) -> None:
        self._store = store
        self._memory = memory
        self._windows = windows

    async def Compile(
        self, request: context_pb.CompileRequest, context: Context
    ) -> context_pb.CompileResponse:
        """Renders the memory section."""
        query = convert.to_compile(request)
        compiled = await compile_memory(self._store, query)
        return convert.compiled_to_proto(compiled)

    async def CloseFilesToFit(
        self, request: context_pb.CloseFilesToFitRequest, context: Context
    ) -> context_pb.CloseFilesToFitResponse:
        """Closes files until the memory section fits, and renders it."""
        query, max_bytes, preview = convert.to_fit(request)
        compiled = await compile_memory(self._store, query)
        closed: list[str] = []
        if compiled.size > max_bytes:
            excess = compiled.size - max_bytes
            closed = await self._windows.close_to_fit(
                query.agent_id, query.limits, excess, preview=preview
            )
        if closed and not preview:
            compiled = await compile_memory(self._store, query)
        return context_pb.CloseFilesToFitResponse(
            compiled=convert.compiled_to_proto(compiled), closed_files=closed
        )

    async def PrepareAgent(
        self, request: context_pb.PrepareAgentRequest, context: Context
    ) -> context_pb.PrepareAgentResponse:
        """Creates and attaches the first blocks of an agent."""
        blocks = await self._memory.prepare_agent(convert.to_prepare(request))
        return convert.prepared_to_proto(blocks)

    async def LimitPrompt(
        self, request: context_pb.LimitPromptRequest, context: Context
    ) -> context_pb.LimitPromptResponse:
        """Sets how large the memory of an agent may become."""
        before = await self._memory.limit_prompt(convert.to_limit_prompt(request))
        return convert.limited_to_proto(before)

    async def ShareBlocks(
        self, request: context_pb.ShareBlocksRequest, context: Context
    ) -> context_pb.ShareBlocksResponse:
        """Attaches blocks to several agents."""
        await self._memory.share(convert.to_share(request))
        return context_pb.ShareBlocksResponse()

    async def ReleaseAgent(
        self, request: context_pb.ReleaseAgentRequest, context: Context
    ) -> context_pb.ReleaseAgentResponse:
        """Deletes the core memory of an agent."""
        command = convert.to_release(request)
        return convert.released_to_proto(await self._memory.release_agent(command))
