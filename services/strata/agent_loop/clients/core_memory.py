"""The client of core memory. Rendered memory is cached by revision."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import UTC

import grpc.aio

from strata.agent_loop.clients.revision_cache import RevisionCache
from strata.agent_loop.convert.tool_rules import rules_to_prompt
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.tool_rules import rules_in_force
from strata.agent_loop.domain.ports import (
    MemorySection,
    MemoryView,
    PromptLimit,
)
from strata.agent_loop.domain.run.runs import DocumentLines, DocumentRange
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.shared.context import current_project
from strata.shared.convert.messages import labels_from_proto
from strata.shared.record_fields import replace
from strata.shared.tool_catalogue import GROUP_TOOLS

_SECTIONS = 512


class CoreMemoryClient:
    """Implements `domain.ports.Memory` and `agents.ports.LifecycleMemory`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = context_grpc.ContextServiceStub(channel)
        self._files = file_grpc.FileServiceStub(channel)
        self._sections: RevisionCache[MemorySection] = RevisionCache(_SECTIONS)

    async def compile(self, agent: Agent, view: MemoryView) -> MemorySection:
        """Renders the agent's memory; returns the cached section if nothing changed."""
        key = (current_project(), agent.id, view)
        cached = self._sections.get(key)
        request = _compile_request(agent, view, cached[0] if cached is not None else "")
        return self._take(key, cached, await self._stub.Compile(request))

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
        cached: tuple[str, MemorySection] | None,
        response: context_pb.CompileResponse,
    ) -> MemorySection:
        """Returns the section in a response, and caches it for the next request.

        Args:
            key: Key of the section in the cache.
            cached: The revision and section in the cache before the request, if any.
            response: The response.
        """
        revisions = dict(response.block_revisions)
        taint = {
            tainted_block.label: labels_from_proto(tainted_block.taint)
            for tainted_block in response.tainted_blocks
        }
        if response.not_changed and cached is not None:
            return replace(
                cached[1], block_revisions=revisions, has_folders=response.has_folders, taint=taint
            )
        change_time = None
        if response.HasField("last_modified_time"):
            change_time = response.last_modified_time.ToDatetime(tzinfo=UTC)
        section = MemorySection(
            response.memory_section, change_time, revisions, response.has_folders, taint
        )
        self._sections.put(key, response.revision, section)
        return section

    async def prepare(
        self,
        agent: Agent,
        blocks: Sequence[block_pb.NewBlock],
        block_ids: Sequence[str],
        limit: PromptLimit | None,
    ) -> Sequence[block_pb.Block]:
        """Creates and attaches the initial blocks of an agent; a repeated call returns them.

        A memory agent is attached to the blocks of its main agent.
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

    async def read_file(self, document_range: DocumentRange, max_bytes: int) -> DocumentLines:
        """Returns lines of a file of an agent, after the start of a range."""
        request = file_pb.ReadFileRequest(
            agent_id=document_range.agent_id,
            file_id=document_range.file_id,
            # Counted from 1.
            first_line=document_range.after_line + 2,
            max_bytes=max_bytes,
            content_hash=document_range.content_hash,
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
        """Detaches everything from an agent; deletes blocks created with it that no other has."""
        await self._stub.ReleaseAgent(context_pb.ReleaseAgentRequest(agent_id=agent_id))


def _compile_request(agent: Agent, view: MemoryView, if_revision: str) -> context_pb.CompileRequest:
    return context_pb.CompileRequest(
        agent_id=agent.id,
        agent_type=agent.type.value,
        line_numbers=view.line_numbers,
        # Without rules for group tools, so that the prompt is the same in runs of a group.
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
