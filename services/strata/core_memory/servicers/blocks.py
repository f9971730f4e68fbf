"""The gRPC servicers of core memory: convert requests, call the domain, convert results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.core_memory.convert import blocks as requests
from strata.core_memory.convert import history, responses, views
from strata.core_memory.domain.blocks import agent_not_found, block_not_found
from strata.core_memory.domain.commands import GetBlock
from strata.core_memory.domain.core_memory import CoreMemory, Receipt
from strata.core_memory.domain.lint import lint
from strata.core_memory.domain.ports import BlockStore, ReplayedError
from strata.core_memory.domain.prompt.compilation import compile_memory
from strata.core_memory.domain.versions.history import History
from strata.core_memory.files.file_windows import Windows
from strata.shared.db import Page, decode_page_token, page_limit

Context = Any
MAX_PAGE_SIZE = 500

CommandT = TypeVar("CommandT")
ResultT = TypeVar("ResultT")
ReplyT = TypeVar("ReplyT", bound=Message)


class BlockServicer(pb_grpc.BlockServiceServicer):
    """Serves blocks, to the API and to the memory tools."""

    def __init__(self, store: BlockStore, memory: CoreMemory) -> None:
        self._store = store
        self._memory = memory
        self._history = History(store)

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
        query = requests.to_list(request)
        scope = query.scope
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        kind = int if query.agent_id else str
        (after,) = decode_page_token(scope, request.page_token, [kind]) or (kind(),)
        if isinstance(after, int):
            rows = await self._store.agent_blocks(
                query.agent_id, query.label, after, count + 1, query.as_of
            )
            page = Page.cut(rows, count, scope, lambda row: [row[0]])
            return _blocks([block for _, block in page.rows], page.next_page_token)
        blocks = await self._store.project_blocks(
            query.label, str(after), count + 1, deleted=query.deleted
        )
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
            responses.updated_to_proto,
            pb.UpdateBlockResponse,
        )

    async def DeleteBlock(
        self, request: pb.DeleteBlockRequest, context: Context
    ) -> pb.DeleteBlockResponse:
        """Deletes a block."""
        return await _once(
            request,
            requests.to_delete(request),
            self._memory.delete,
            lambda _: pb.DeleteBlockResponse(),
            pb.DeleteBlockResponse,
        )

    async def AttachBlock(
        self, request: pb.AttachBlockRequest, context: Context
    ) -> pb.AttachBlockResponse:
        """Attaches a block to an agent."""
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
        """Detaches a block from an agent."""
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
        block_id = history.to_versions(request)
        scope = f"ListBlockVersions {block_id}"
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        (before,) = decode_page_token(scope, request.page_token, [int]) or (0,)
        assert isinstance(before, int)
        versions = await self._store.versions(block_id, before, count + 1)
        if not versions and not request.page_token:
            raise block_not_found(block_id)
        page = Page.cut(versions, count, scope, lambda version: [version.revision])
        return pb.ListBlockVersionsResponse(
            versions=[history.version_to_proto(version) for version in page.rows],
            next_page_token=page.next_page_token,
        )

    async def DiffBlock(
        self, request: pb.DiffBlockRequest, context: Context
    ) -> pb.DiffBlockResponse:
        """Compares two versions."""
        return pb.DiffBlockResponse(diff=await self._history.diff(*history.to_diff(request)))

    async def BlameBlock(
        self, request: pb.BlameBlockRequest, context: Context
    ) -> pb.BlameBlockResponse:
        """Returns the version that wrote each line."""
        return history.blame_to_proto(await self._history.blame(*history.to_blame(request)))

    async def RevertBlock(
        self, request: pb.RevertBlockRequest, context: Context
    ) -> pb.RevertBlockResponse:
        """Undoes edits."""
        return await _once(
            request,
            history.to_revert(request),
            self._memory.revert,
            history.reverted_to_proto,
            pb.RevertBlockResponse,
        )

    async def RenderMemory(
        self, request: pb.RenderMemoryRequest, context: Context
    ) -> pb.RenderMemoryResponse:
        """Renders an agent's core memory as its model sees it."""
        query = views.to_render(request)
        if not await self._store.knows_agent(query.agent_id):
            raise agent_not_found(query.agent_id)
        compiled = await compile_memory(self._store, query)
        return views.rendered_to_proto(compiled)

    async def LintMemory(
        self, request: pb.LintMemoryRequest, context: Context
    ) -> pb.LintMemoryResponse:
        """Checks core memory for problems."""
        agent_id, block_id = views.to_lint(request)
        blocks = (
            await self._memory.of_agent(agent_id)
            if agent_id
            else [await self._memory.get(GetBlock(block_id))]
        )
        return views.findings_to_proto(await asyncio.to_thread(lint, blocks))


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
        query = requests.to_compile(request)
        compiled = await compile_memory(self._store, query)
        return responses.compiled_to_proto(compiled)

    async def CloseFilesToFit(
        self, request: context_pb.CloseFilesToFitRequest, context: Context
    ) -> context_pb.CloseFilesToFitResponse:
        """Closes files until the memory section fits, and renders it."""
        query, most, preview = requests.to_fit(request)
        compiled = await compile_memory(self._store, query)
        closed: list[str] = []
        if compiled.size > most:
            excess = compiled.size - most
            closed = await self._windows.close_to_fit(
                query.agent_id, query.limits, excess, preview=preview
            )
        if closed and not preview:
            compiled = await compile_memory(self._store, query)
        return context_pb.CloseFilesToFitResponse(
            compiled=responses.compiled_to_proto(compiled), closed_files=closed
        )

    async def PrepareAgent(
        self, request: context_pb.PrepareAgentRequest, context: Context
    ) -> context_pb.PrepareAgentResponse:
        """Creates and attaches the first blocks of an agent."""
        blocks = await self._memory.prepare_agent(requests.to_prepare(request))
        return responses.prepared_to_proto(blocks)

    async def LimitPrompt(
        self, request: context_pb.LimitPromptRequest, context: Context
    ) -> context_pb.LimitPromptResponse:
        """Sets how large the memory of an agent may become."""
        before = await self._memory.limit_prompt(requests.to_limit_prompt(request))
        return responses.limited_to_proto(before)

    async def ShareBlocks(
        self, request: context_pb.ShareBlocksRequest, context: Context
    ) -> context_pb.ShareBlocksResponse:
        """Attaches blocks to several agents."""
        await self._memory.share(requests.to_share(request))
        return context_pb.ShareBlocksResponse()

    async def ReleaseAgent(
        self, request: context_pb.ReleaseAgentRequest, context: Context
    ) -> context_pb.ReleaseAgentResponse:
        """Deletes the core memory of an agent."""
        command = requests.to_release(request)
        return responses.released_to_proto(await self._memory.release_agent(command))


async def _once(
    request: requests.Mutation,
    command: CommandT,
    action: Callable[[CommandT, Receipt[ResultT]], Awaitable[ResultT]],
    reply: Callable[[ResultT], ReplyT],
    reply_type: type[ReplyT],
) -> ReplyT:
    """Runs a mutation, or returns the stored response of a repeated request."""
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
