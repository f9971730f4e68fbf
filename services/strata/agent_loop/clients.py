"""gRPC clients of the other services, which implement the protocols of the loop.

Rendered memory and tool definitions are cached by revision, so that unchanged ones are not sent
again. Both caches are bounded; a dropped entry costs one rendering.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Hashable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC
from typing import Any, Generic, TypeVar

import grpc.aio

from strata.agent_loop.convert.messages import (
    labels_from_proto,
    message_to_proto,
    messages_from_proto,
    window_from_proto,
)
from strata.agent_loop.convert.tool_rules import rules_to_prompt
from strata.agent_loop.convert.tools import (
    batch_to_proto,
    code_answer_to_proto,
    code_batch_to_proto,
    code_call_from_proto,
    tool_event_from_proto,
    toolset_from_proto,
)
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.tool_rules import rules_in_force
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.ports import (
    BegunTurn,
    CommittedStep,
    MemorySection,
    MemoryView,
    PromptLimit,
    StepCommit,
    WindowSwap,
)
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.domain.run.runs import DocumentLines, DocumentRange, TranscriptRange
from strata.agent_loop.domain.tools import CodeToolAccess, ToolBatch, ToolEvent, ToolSet
from strata.agent_loop.prompts.system_message import ArchivalStats
from strata.api.archival.v1 import agent_archive_service_pb2 as archive_pb
from strata.api.archival.v1 import agent_archive_service_pb2_grpc as archive_grpc
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.shared.bidi_call import call_and_answer
from strata.shared.context import current_project
from strata.shared.logs import get_logger
from strata.shared.tool_catalogue import CODE_TOOLS, GROUP_TOOLS

_SECTIONS = 512
_TOOLSETS = 256
_TRANSCRIPT_PAGE = 500

_log = get_logger(__name__)

ValueT = TypeVar("ValueT")
_NestingMessage = execution_pb.ExecuteToolsWithCallsRequest


class RevisionCache(Generic[ValueT]):
    """The last value and its revision, for the most recently used keys."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, tuple[str, ValueT]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[str, ValueT] | None:
        """Returns the revision and the value of a key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, revision: str, value: ValueT) -> None:
        """Stores a value; drops the least recently used one if the cache is full."""
        self._entries[key] = (revision, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)


class CoreMemoryClient:
    """Implements `loop.ports.Memory` and `lifecycle_ports.LifecycleMemory`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = context_grpc.ContextServiceStub(channel)
        self._files = file_grpc.FileServiceStub(channel)
        self._sections: RevisionCache[MemorySection] = RevisionCache(_SECTIONS)

    async def compile(self, agent: Agent, view: MemoryView) -> MemorySection:
        """Renders the agent's memory; returns the cached section if nothing changed."""
        key = (current_project(), agent.id, view)
        known = self._sections.get(key)
        request = _compile_request(agent, view, known[0] if known is not None else "")
        return self._take(key, known, await self._stub.Compile(request))

    async def close_files(self, agent: Agent, view: MemoryView, max_bytes: int) -> MemorySection:
        """Closes open files, least recently used first, until the section fits."""
        request = context_pb.CloseFilesToFitRequest(
            compile=_compile_request(agent, view, ""), max_bytes=max_bytes
        )
        response = await self._stub.CloseFilesToFit(request)
        return self._take((current_project(), agent.id, view), None, response.compiled)

    async def files_to_close(self, agent: Agent, view: MemoryView, max_bytes: int) -> list[str]:
        """Returns the names of the files that `close_files` would close."""
        request = context_pb.CloseFilesToFitRequest(
            compile=_compile_request(agent, view, ""), max_bytes=max_bytes, preview=True
        )
        return list((await self._stub.CloseFilesToFit(request)).closed_files)

    def _take(
        self,
        key: Hashable,
        known: tuple[str, MemorySection] | None,
        response: context_pb.CompileResponse,
    ) -> MemorySection:
        """Returns the section of a response, and caches it for the next request."""
        seen = dict(response.block_revisions)
        taint = {
            tainted_block.label: labels_from_proto(tainted_block.taint)
            for tainted_block in response.tainted_blocks
        }
        if response.not_changed and known is not None:
            return replace(
                known[1], block_revisions=seen, has_folders=response.has_folders, taint=taint
            )
        changed = None
        if response.HasField("last_modified_time"):
            changed = response.last_modified_time.ToDatetime(tzinfo=UTC)
        section = MemorySection(response.memory_section, changed, seen, response.has_folders, taint)
        self._sections.put(key, response.revision, section)
        return section

    async def prepare(
        self,
        agent: Agent,
        blocks: Sequence[block_pb.NewBlock],
        block_ids: Sequence[str],
        limit: PromptLimit | None,
    ) -> Sequence[block_pb.Block]:
        """Makes and attaches the first blocks; repeating it returns them.

        A memory agent shares the blocks of the agent that it tends.
        """
        request = context_pb.PrepareAgentRequest(
            agent_id=agent.id,
            blocks=blocks,
            block_ids=block_ids,
            prompt_limit=_limit_to_proto(limit),
            agent_revision=agent.revision,
            follows_agent_id=agent.tends_agent_id,
        )
        return (await self._stub.PrepareAgent(request)).blocks

    async def raise_limit(self, agent_id: str, limit: PromptLimit | None) -> PromptLimit | None:
        """Checks that memory is within a limit, and raises the stored limit to it."""
        request = context_pb.LimitPromptRequest(
            agent_id=agent_id, prompt_limit=_limit_to_proto(limit), only_raise=True
        )
        response = await self._stub.LimitPrompt(request)
        if not response.HasField("previous_limit"):
            return None
        previous = response.previous_limit
        return PromptLimit(
            previous.bytes,
            previous.line_numbers,
            previous.files_bytes,
            previous.max_files_open,
            previous.per_file_view_window_char_limit,
        )

    async def set_limit(self, agent_id: str, limit: PromptLimit | None, revision: int) -> None:
        """Sets the limit, unless there is one for a later revision of the agent."""
        request = context_pb.LimitPromptRequest(
            agent_id=agent_id, prompt_limit=_limit_to_proto(limit), agent_revision=revision
        )
        await self._stub.LimitPrompt(request)

    async def read_file(self, read: DocumentRange, max_bytes: int) -> DocumentLines:
        """Returns lines of a file of an agent, after the start of a range."""
        request = file_pb.ReadFileRequest(
            agent_id=read.agent_id,
            file_id=read.file_id,
            # Counted from 1.
            first_line=read.after_line + 2,
            max_bytes=max_bytes,
            content_hash=read.content_hash,
        )
        response = await self._files.ReadFile(request)
        return DocumentLines(
            response.file_name,
            tuple(response.lines),
            response.left_out_chars,
            response.line_count,
        )

    async def share(self, agent_ids: Sequence[str], block_ids: Sequence[str]) -> None:
        """Attaches each of the blocks to each of the agents, all or none."""
        await self._stub.ShareBlocks(
            context_pb.ShareBlocksRequest(agent_ids=agent_ids, block_ids=block_ids)
        )

    async def release(self, agent_id: str) -> None:
        """Takes everything from an agent."""
        await self._stub.ReleaseAgent(context_pb.ReleaseAgentRequest(agent_id=agent_id))


def _compile_request(agent: Agent, view: MemoryView, if_revision: str) -> context_pb.CompileRequest:
    return context_pb.CompileRequest(
        agent_id=agent.id,
        agent_type=agent.type.value,
        line_numbers=view.line_numbers,
        # Without those of a group's tool: the prompt stays the same in and out of its runs.
        tool_rules=rules_to_prompt(
            rules_in_force(
                [name for name in agent.tools if name not in GROUP_TOOLS], agent.tool_rules
            )
        ),
        if_revision=if_revision,
        max_files_open=view.files.max_open,
        per_file_view_window_char_limit=view.files.view_chars,
    )


def _limit_to_proto(limit: PromptLimit | None) -> context_pb.PromptLimit | None:
    if limit is None:
        return None
    return context_pb.PromptLimit(
        bytes=limit.bytes,
        line_numbers=limit.line_numbers,
        files_bytes=limit.files_bytes,
        max_files_open=limit.max_files_open,
        per_file_view_window_char_limit=limit.file_view_chars,
    )


class ImageCache:
    """Caches the bytes of images by project and id; drops the least recently used ones.

    Args:
        limit: Most bytes of all images together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._images: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, key: tuple[str, str]) -> bytes | None:
        """Returns an image; None if it is not cached."""
        data = self._images.get(key)
        if data is not None:
            self._images.move_to_end(key)
        return data

    def put(self, key: tuple[str, str], data: bytes) -> None:
        """Adds an image."""
        if self.get(key) is None:
            self._images[key] = data
            self._size += len(data)
        while self._size > self._limit:
            self._size -= len(self._images.popitem(last=False)[1])


class RecallClient:
    """Implements `loop.ports.Recall` and `lifecycle_ports.LifecycleRecall`.

    Args:
        channel: Channel to the recall service.
        image_cache_bytes: Size of the cache of recently stored or read images.
    """

    def __init__(self, channel: grpc.aio.Channel, image_cache_bytes: int = 0) -> None:
        self._stub = window_grpc.WindowServiceStub(channel)
        self._messages = message_grpc.MessageServiceStub(channel)
        self._images = ImageCache(image_cache_bytes)

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        """Stores the inputs, takes the fence, returns the window."""
        request = window_pb.BeginTurnRequest(
            conversation_id=key.conversation_id,
            agent_id=key.agent_id,
            run_id=key.run_id,
            attempt=key.attempt,
            inputs=[message_to_proto(message) for message in inputs],
            clear_window=clear,
        )
        response = await self._stub.BeginTurn(request)
        self._keep_images(inputs)
        return BegunTurn(
            window_from_proto(response.window),
            messages_from_proto(response.inputs),
            response.committed_steps,
            messages_from_proto(response.committed_messages),
        )

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        """Stores a step."""
        request = window_pb.CommitStepRequest(
            conversation_id=commit.key.conversation_id,
            agent_id=commit.key.agent_id,
            run_id=commit.key.run_id,
            attempt=commit.key.attempt,
            step=commit.step,
            step_id=commit.step_id,
            messages=[message_to_proto(message) for message in commit.messages],
            system_text=commit.system_text,
            metadata_stale=commit.metadata_stale,
        )
        response = await self._stub.CommitStep(request)
        self._keep_images(commit.messages)
        return CommittedStep(
            messages_from_proto(response.messages), response.revision, response.message_count
        )

    async def open_window(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message]
    ) -> None:
        """Creates the window of a conversation; an existing window stays unchanged."""
        request = window_pb.OpenWindowRequest(
            conversation_id=conversation_id,
            agent_id=agent_id,
            messages=[message_to_proto(message) for message in messages],
        )
        await self._stub.OpenWindow(request)

    async def swap_window(self, swap: WindowSwap) -> Window:
        """Stores a summary and the window that holds it."""
        request = window_pb.CompactWindowRequest(
            conversation_id=swap.conversation_id,
            run_id=swap.key.run_id if swap.key is not None else "",
            attempt=swap.key.attempt if swap.key is not None else 0,
            expected_revision=swap.expected_revision,
            summary=message_to_proto(swap.summary),
            kept_message_ids=swap.kept_ids,
        )
        return window_from_proto((await self._stub.CompactWindow(request)).window)

    async def fork_window(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Creates a copy of a window up to a message; an existing window stays unchanged."""
        request = window_pb.ForkWindowRequest(
            source_conversation_id=source_id,
            conversation_id=conversation_id,
            until_message_id=until_id,
        )
        await self._stub.ForkWindow(request)

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window."""
        request = window_pb.GetWindowRequest(conversation_id=conversation_id)
        return window_from_proto((await self._stub.GetWindow(request)).window)

    async def evict(self, read: TranscriptRange) -> None:
        """Removes the messages of a range, and those before it, from the window."""
        request = window_pb.EvictMessagesRequest(
            conversation_id=read.conversation_id,
            agent_id=read.agent_id,
            until_sequence=read.until_sequence,
        )
        await self._stub.EvictMessages(request)

    async def transcript(self, read: TranscriptRange) -> Sequence[Message]:
        """Returns the stored messages of a range of a conversation, in order."""
        request = message_pb.ListMessagesRequest(
            conversation_id=read.conversation_id,
            page_size=_TRANSCRIPT_PAGE,
            order=message_pb.LIST_ORDER_OLDEST_FIRST,
            from_sequence=read.after_sequence + 1,
            to_sequence=read.until_sequence,
        )
        messages: list[Message] = []
        while True:
            page = await self._messages.ListMessages(request)
            messages.extend(messages_from_proto(page.messages))
            if not page.next_page_token:
                return messages
            request.page_token = page.next_page_token

    async def image(self, image_id: str) -> bytes:
        """Returns the bytes of an image, from the cache if possible."""
        key = (current_project(), image_id)
        data = self._images.get(key)
        if data is None:
            request = message_pb.GetImageRequest(image_id=image_id)
            data = (await self._messages.GetImage(request)).data
            self._images.put(key, data)
        return data

    def _keep_images(self, messages: Sequence[Message]) -> None:
        """Caches the images of messages that were just stored: the next request shows them."""
        for message in messages:
            for image in message.images:
                if image.data:
                    self._images.put((current_project(), image.image_id), image.data)

    async def release(self, agent_id: str) -> None:
        """Deletes all messages of an agent."""
        request = window_pb.DeleteAgentMessagesRequest(agent_id=agent_id)
        await self._stub.DeleteAgentMessages(request)


class ToolClient:
    """Implements `loop.ports.Tools`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = execution_grpc.ExecutionServiceStub(channel)
        self._toolsets: RevisionCache[ToolSet] = RevisionCache(_TOOLSETS)

    async def resolve(
        self, names: Sequence[str], *, skip_missing: bool = False, run_id: str = ""
    ) -> ToolSet:
        """Returns the definitions of tools; cached ones if they did not change."""
        if not names:
            return ToolSet(())
        key = (current_project(), tuple(names))
        known = self._toolsets.get(key)
        request = execution_pb.ResolveToolsRequest(
            names=names,
            if_revision=known[0] if known is not None else "",
            skip_missing=skip_missing,
            run_id=run_id,
        )
        response = await self._stub.ResolveTools(request)
        for server in response.servers:
            if server.problem:
                _log.warning(
                    "tools of an MCP server are left out",
                    run_id=run_id,
                    name=server.name,
                    problem=server.problem,
                )
        if response.not_changed and known is not None:
            return known[1]
        toolset = toolset_from_proto(response)
        self._toolsets.put(key, response.revision, toolset)
        return toolset

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Runs calls; closing the generator cancels the stream, which kills running calls."""
        if batch.code_access is not None:
            async with aclosing(self._execute_code(batch, batch.code_access)) as events:
                async for event in events:
                    yield event
            return
        # Waits for a restarting executor; calls that it lost are reported as errors.
        call = self._stub.ExecuteTools(batch_to_proto(batch), wait_for_ready=True)
        try:
            async for response in call:
                tool_event = tool_event_from_proto(response)
                if tool_event is not None:
                    yield tool_event
        finally:
            call.cancel()

    async def _execute_code(
        self, batch: ToolBatch, code_access: CodeToolAccess
    ) -> AsyncGenerator[ToolEvent, None]:
        async def answered(asked: execution_pb.NestedCall) -> _NestingMessage:
            answer = await code_access.answer(code_call_from_proto(asked))
            return code_answer_to_proto(asked.number, answer)

        def answer(
            response: execution_pb.ExecuteToolsWithCallsResponse,
        ) -> Coroutine[Any, Any, _NestingMessage] | None:
            return answered(response.call) if response.HasField("call") else None

        def settles(response: execution_pb.ExecuteToolsWithCallsResponse) -> bool:
            # Once the code has ended, no answer is expected any more.
            return response.response.finished.tool_return.name in CODE_TOOLS

        first = code_batch_to_proto(batch, code_access)
        method = functools.partial(self._stub.ExecuteToolsWithCalls, wait_for_ready=True)
        responses = call_and_answer(method, first, answer, settles)
        async with aclosing(responses):
            async for response in responses:
                event = tool_event_from_proto(response.response)
                if event is not None:
                    yield event


class ArchivalClient:
    """Implements `loop.ports.Archival` and `lifecycle_ports.LifecycleArchival`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = archive_grpc.AgentArchiveServiceStub(channel)

    async def stats(self, agent_id: str) -> ArchivalStats:
        """Returns the counts of the agent's passages for the metadata."""
        request = archive_pb.GetAgentStatsRequest(agent_id=agent_id)
        response = await self._stub.GetAgentStats(request)
        return ArchivalStats(response.passage_count, tuple(response.tags), response.more_tags)

    async def prepare(self, agent_id: str) -> None:
        """Registers an agent; repeating it succeeds."""
        await self._stub.PrepareAgent(archive_pb.PrepareAgentRequest(agent_id=agent_id))

    async def release(self, agent_id: str) -> None:
        """Detaches all archives from an agent and deletes its own."""
        await self._stub.ReleaseAgent(archive_pb.ReleaseAgentRequest(agent_id=agent_id))
