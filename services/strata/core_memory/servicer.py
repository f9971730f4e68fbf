"""The services of core memory: convert, ask the domain, convert back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.core_memory.convert import requests, responses
from strata.core_memory.domain.blocks import block_not_found
from strata.core_memory.domain.compilation import compile_memory
from strata.core_memory.domain.core_memory import CoreMemory, Receipt
from strata.core_memory.domain.ports import BlockStore, ReplayedError
from strata.shared.db import Page, decode_page_token, page_limit

Context = Any
MAX_PAGE_SIZE = 500

CommandT = TypeVar("CommandT")
ResultT = TypeVar("ResultT")
ReplyT = TypeVar("ReplyT", bound=Message)


class BlockServicer(pb_grpc.BlockServiceServicer):
    """Blocks, for the API and for the memory tools."""

    def __init__(self, store: BlockStore, memory: CoreMemory) -> None:
        self._store = store
        self._memory = memory

    async def CreateBlock(
        self, request: pb.CreateBlockRequest, context: Context
    ) -> pb.CreateBlockResponse:
        """Creates a block."""
        return await _once(
            request,
            requests.to_create(request),
            self._memory.create,
            lambda block: pb.CreateBlockResponse(block=responses.block_to_proto(block)),
            pb.CreateBlockResponse,
        )

    async def GetBlock(self, request: pb.GetBlockRequest, context: Context) -> pb.GetBlockResponse:
        """Returns a block."""
        block = await self._memory.get(requests.to_get(request))
        return pb.GetBlockResponse(block=responses.block_to_proto(block))

    async def ListBlocks(
        self, request: pb.ListBlocksRequest, context: Context
    ) -> pb.ListBlocksResponse:
        """Lists blocks of an agent or of the project."""
        agent_id, label = requests.to_list(request)
        scope = f"ListBlocks {agent_id} {label}"
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        kind = int if agent_id else str
        (after,) = decode_page_token(scope, request.page_token, [kind]) or (kind(),)
        if isinstance(after, int):
            rows = await self._store.agent_blocks(agent_id, label, after, count + 1)
            page = Page.cut(rows, count, scope, lambda row: [row[0]])
            return _blocks([block for _, block in page.rows], page.next_page_token)
        blocks = await self._store.project_blocks(label, str(after), count + 1)
        cut = Page.cut(blocks, count, scope, lambda block: [block.id])
        return _blocks(cut.rows, cut.next_page_token)

    async def UpdateBlock(
        self, request: pb.UpdateBlockRequest, context: Context
    ) -> pb.UpdateBlockResponse:
        """Changes a block."""
        return await _once(
            request,
            requests.to_update(request),
            self._memory.update,
            lambda block: pb.UpdateBlockResponse(block=responses.block_to_proto(block)),
            pb.UpdateBlockResponse,
        )

    async def DeleteBlock(
        self, request: pb.DeleteBlockRequest, context: Context
    ) -> pb.DeleteBlockResponse:
        """Deletes a block."""
        return await _once(
            request,
            requests.to_block_id(request.block_id),
            self._memory.delete,
            lambda _: pb.DeleteBlockResponse(),
            pb.DeleteBlockResponse,
        )

    async def AttachBlock(
        self, request: pb.AttachBlockRequest, context: Context
    ) -> pb.AttachBlockResponse:
        """Shows a block to an agent."""
        return await _once(
            request,
            requests.to_attachment(request),
            self._memory.attach,
            lambda block: pb.AttachBlockResponse(block=responses.block_to_proto(block)),
            pb.AttachBlockResponse,
        )

    async def DetachBlock(
        self, request: pb.DetachBlockRequest, context: Context
    ) -> pb.DetachBlockResponse:
        """Hides a block from an agent."""
        return await _once(
            request,
            requests.to_attachment(request),
            self._memory.detach,
            lambda _: pb.DetachBlockResponse(),
            pb.DetachBlockResponse,
        )

    async def EditBlock(
        self, request: pb.EditBlockRequest, context: Context
    ) -> pb.EditBlockResponse:
        """Applies a memory verb."""
        return await _once(
            request,
            requests.to_edit_block(request),
            self._memory.edit,
            responses.edited_to_proto,
            pb.EditBlockResponse,
        )

    async def ListBlockVersions(
        self, request: pb.ListBlockVersionsRequest, context: Context
    ) -> pb.ListBlockVersionsResponse:
        """Lists versions of a block, newest first."""
        block_id = requests.to_block_id(request.block_id)
        scope = f"ListBlockVersions {block_id}"
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        (before,) = decode_page_token(scope, request.page_token, [int]) or (0,)
        assert isinstance(before, int)
        versions = await self._store.versions(block_id, before, count + 1)
        if not versions and not request.page_token:
            raise block_not_found(block_id)
        page = Page.cut(versions, count, scope, lambda version: [version.revision])
        return pb.ListBlockVersionsResponse(
            versions=[responses.version_to_proto(version) for version in page.rows],
            next_page_token=page.next_page_token,
        )

    async def DiffBlock(
        self, request: pb.DiffBlockRequest, context: Context
    ) -> pb.DiffBlockResponse:
        """Compares two versions."""
        return pb.DiffBlockResponse(diff=await self._memory.diff(*requests.to_diff(request)))


class ContextServicer(context_grpc.ContextServiceServicer):
    """Core memory as the model sees it, and its life with the agent."""

    def __init__(self, store: BlockStore, memory: CoreMemory) -> None:
        self._store = store
        self._memory = memory

    async def Compile(
        self, request: context_pb.CompileRequest, context: Context
    ) -> context_pb.CompileResponse:
        """Renders the memory section."""
        compiled = await compile_memory(self._store, requests.to_compile(request))
        return responses.compiled_to_proto(compiled)

    async def PrepareAgent(
        self, request: context_pb.PrepareAgentRequest, context: Context
    ) -> context_pb.PrepareAgentResponse:
        """Makes the first blocks of an agent."""
        blocks = await self._memory.prepare_agent(requests.to_prepare(request))
        return responses.prepared_to_proto(blocks)

    async def ReleaseAgent(
        self, request: context_pb.ReleaseAgentRequest, context: Context
    ) -> context_pb.ReleaseAgentResponse:
        """Ends the core memory of an agent."""
        agent_id = requests.to_agent_id(request.agent_id)
        return responses.released_to_proto(await self._memory.release_agent(agent_id))


async def _once(
    request: requests.Mutation,
    command: CommandT,
    action: Callable[[CommandT, Receipt[ResultT]], Awaitable[ResultT]],
    reply: Callable[[ResultT], ReplyT],
    reply_type: type[ReplyT],
) -> ReplyT:
    """Runs a mutation, or gives the answer that the same request got before."""
    receipt: Receipt[ResultT] = Receipt(
        requests.to_request(reply_type.__name__, request),
        lambda result: reply(result).SerializeToString(),
    )
    try:
        return reply(await action(command, receipt))
    except ReplayedError as replayed:
        return reply_type.FromString(replayed.response)


def _blocks(blocks: Any, token: str) -> pb.ListBlocksResponse:
    return pb.ListBlocksResponse(
        blocks=[responses.block_to_proto(block) for block in blocks], next_page_token=token
    )
