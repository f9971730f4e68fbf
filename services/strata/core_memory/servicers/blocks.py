"""The gRPC servicer of `BlockService`: converts requests, calls the domain, converts results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.message import Message

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.core_memory.convert import blocks as convert
from strata.core_memory.convert import history, views
from strata.core_memory.domain.blocks import agent_not_found, block_not_found
from strata.core_memory.domain.commands import GetBlock
from strata.core_memory.domain.core_memory import CoreMemory, Receipt
from strata.core_memory.domain.lint import lint
from strata.core_memory.domain.ports import BlockStore, ReplayedError
from strata.core_memory.domain.prompt.compilation import compile_memory
from strata.core_memory.domain.versions.history import History
from strata.shared.db import Page, decode_page_token, page_limit

Context = Any
MAX_PAGE_SIZE = 500
MAX_BLAMED_LINES = 10_000

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
            partial(self._memory.create, convert.to_create(request)),
            pb.CreateBlockResponse,
            lambda block: pb.CreateBlockResponse(block=convert.block_to_proto(block)),
        )

    async def GetBlock(self, request: pb.GetBlockRequest, context: Context) -> pb.GetBlockResponse:
        """Returns a block."""
        block = await self._memory.get(convert.to_get(request))
        return pb.GetBlockResponse(block=convert.block_to_proto(block))

    async def ListBlocks(
        self, request: pb.ListBlocksRequest, context: Context
    ) -> pb.ListBlocksResponse:
        """Lists blocks of an agent or of the project."""
        query = convert.to_list(request)
        scope = query.scope
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        kind = int if query.agent_id else str
        (after,) = decode_page_token(scope, request.page_token, [kind]) or (kind(),)
        if isinstance(after, int):
            rows = await self._store.agent_blocks(
                query.agent_id, query.label, after, count + 1, query.as_of
            )
            if not rows and not request.page_token:
                await self._check_agent(query.agent_id)
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
            partial(self._memory.update, convert.to_update(request)),
            pb.UpdateBlockResponse,
            convert.updated_to_proto,
        )

    async def DeleteBlock(
        self, request: pb.DeleteBlockRequest, context: Context
    ) -> pb.DeleteBlockResponse:
        """Deletes a block."""
        return await _once(
            request,
            partial(self._memory.delete, convert.to_delete(request)),
            pb.DeleteBlockResponse,
            lambda _: pb.DeleteBlockResponse(),
        )

    async def AttachBlock(
        self, request: pb.AttachBlockRequest, context: Context
    ) -> pb.AttachBlockResponse:
        """Attaches a block to an agent."""
        return await _once(
            request,
            partial(self._memory.attach, convert.to_attachment(request)),
            pb.AttachBlockResponse,
            lambda block: pb.AttachBlockResponse(block=convert.block_to_proto(block)),
        )

    async def DetachBlock(
        self, request: pb.DetachBlockRequest, context: Context
    ) -> pb.DetachBlockResponse:
        """Detaches a block from an agent."""
        return await _once(
            request,
            partial(self._memory.detach, convert.to_attachment(request)),
            pb.DetachBlockResponse,
            lambda _: pb.DetachBlockResponse(),
        )

    async def EditBlock(
        self, request: pb.EditBlockRequest, context: Context
    ) -> pb.EditBlockResponse:
        """Applies a memory verb."""
        return await _once(
            request,
            partial(self._memory.edit, convert.to_edit_block(request)),
            pb.EditBlockResponse,
            convert.edited_to_proto,
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
        block_id, revision = history.to_blame(request)
        scope = f"BlameBlock {block_id} {revision}"
        count = page_limit(request.page_size, default=MAX_BLAMED_LINES, maximum=MAX_BLAMED_LINES)
        key = decode_page_token(scope, request.page_token, [int, int])
        wanted_revision, after = (int(str(part)) for part in key) if key else (revision, 0)
        blamed_revision, lines = await self._history.blame(block_id, wanted_revision)

        def page() -> pb.BlameBlockResponse:
            numbered = list(islice(enumerate(lines, start=1), after, after + count + 1))
            cut = Page.cut(numbered, count, scope, lambda line: [blamed_revision, line[0]])
            return history.blame_to_proto(cut)

        # On a thread: a large block has a hundred thousand lines.
        return await asyncio.to_thread(page)

    async def RevertBlock(
        self, request: pb.RevertBlockRequest, context: Context
    ) -> pb.RevertBlockResponse:
        """Undoes edits."""
        return await _once(
            request,
            partial(self._memory.revert, history.to_revert(request)),
            pb.RevertBlockResponse,
            history.reverted_to_proto,
        )

    async def RenderMemory(
        self, request: pb.RenderMemoryRequest, context: Context
    ) -> pb.RenderMemoryResponse:
        """Renders an agent's core memory as its model sees it."""
        query = views.to_render(request)
        await self._check_agent(query.agent_id)
        compiled = await compile_memory(self._store, query)
        return views.rendered_to_proto(compiled)

    async def _check_agent(self, agent_id: str) -> None:
        if not await self._store.knows_agent(agent_id):
            raise agent_not_found(agent_id)

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


async def _once(
    request: convert.Mutation,
    action: Callable[[Receipt[ResultT]], Awaitable[ResultT]],
    response_type: type[ReplyT],
    to_response: Callable[[ResultT], ReplyT],
) -> ReplyT:
    """Runs a mutation, or returns the stored response of a repeated request."""
    receipt: Receipt[ResultT] = Receipt(
        convert.to_request(response_type.__name__, request),
        lambda result: to_response(result).SerializeToString(),
    )
    try:
        return to_response(await action(receipt))
    except ReplayedError as replayed:
        return response_type.FromString(replayed.response)


def _blocks(blocks: Any, token: str) -> pb.ListBlocksResponse:
    return pb.ListBlocksResponse(
        blocks=[convert.block_to_proto(block) for block in blocks], next_page_token=token
    )
