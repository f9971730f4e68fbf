"""Memory blocks for custom tools that take ``agent_state``.

The blocks are read before the call and passed to the tool. Its changes are stored after the call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.protocol.errors import AlreadyExistsError, Reason, StrataError
from strata.shared.convert.messages import labels_to_proto, taint_from_proto
from strata.shared.memory_edits import MemoryEdit
from strata.tool_execution.clients.editors import editor_kind
from strata.tool_execution.clients.peers import LostAnswerError
from strata.tool_execution.domain.tools import CallingAgent, ToolCall, ToolError

_PAGE = 500
_MOST_BLOCKS = 1_000
# How many of the newest versions are searched for the edit of a repeated call.
_RECENT = 50


@dataclass(frozen=True, slots=True)
class AgentBlocks:
    """The blocks of an agent at the start of a call, in the order of rendering."""

    agent_id: str
    blocks: Sequence[Any]

    @property
    def taint(self) -> tuple[str, ...]:
        """Labels of the untrusted content in the blocks."""
        return taint_from_proto(label for block in self.blocks for label in block.taint)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON value from which ``agent_state`` is made in the sandbox."""
        return {
            "id": self.agent_id,
            "blocks": [
                {
                    "label": block.label,
                    "value": block.value,
                    "description": block.description,
                    "limit": block.limit,
                    "read_only": block.read_only,
                }
                for block in self.blocks
            ],
        }

    def checked(self, tool: str, changed: Any) -> dict[str, str]:
        """Returns the changed texts by label, checked again: the sandbox is not trusted.

        Args:
            tool: Name of the tool, for errors.
            changed: Texts by label as the sandbox returned them.

        Raises:
            ToolError: A change is not allowed. Nothing was stored.
        """
        blocks_by_label = {block.label: block for block in self.blocks}
        if not isinstance(changed, Mapping):
            raise ToolError(
                f"Error executing function {tool}: the memory it returned is not a JSON object."
            )
        texts: dict[str, str] = {}
        for label, value in changed.items():
            block = blocks_by_label.get(label)
            problem = (
                "does not belong to the agent"
                if block is None
                else "must be text without NUL characters"
                if not isinstance(value, str) or "\0" in value
                else "is read-only"
                if block.read_only
                else f"holds at most {block.limit} characters, not {len(value)}"
                if len(value) > block.limit
                else ""
            )
            if problem:
                raise ToolError(
                    f"{tool} was run, but nothing of what it changed in memory was stored:"
                    f" the memory block '{str(label)[:100]}' {problem}."
                )
            if block is not None and value != block.value:
                texts[label] = value
        return texts


class BlockMemory:
    """Reads and changes the blocks of agents through core memory's block service.

    Args:
        blocks: Block service of core memory.
    """

    def __init__(self, blocks: pb_grpc.BlockServiceStub) -> None:
        self._blocks = blocks

    async def read(self, agent_id: str) -> AgentBlocks:
        """Returns the blocks of an agent.

        Raises:
            ToolError: The agent has too many blocks.
            StrataError: Core memory refused the request or failed.
        """
        blocks: list[Any] = []
        token = ""
        while len(blocks) < _MOST_BLOCKS:
            page = await self._blocks.ListBlocks(
                pb.ListBlocksRequest(agent_id=agent_id, page_size=_PAGE, page_token=token)
            )
            blocks += page.blocks
            token = page.next_page_token
            if not token:
                return AgentBlocks(agent_id, blocks)
        raise ToolError(f"The agent has more than {_MOST_BLOCKS} memory blocks.")

    async def store(
        self,
        call: ToolCall,
        caller: CallingAgent,
        before: AgentBlocks,
        texts: Mapping[str, str],
        taint: Sequence[str] = (),
    ) -> tuple[MemoryEdit, ...]:
        """Stores new texts. Each is an edit based on the revision that the tool read.

        Concurrent changes of others are merged. A repeated call edits no block twice: the edit of
        its first run stays, even if the tool returns another text now. Blocks are changed one after
        another. If one edit is refused, the earlier ones stay, and the error names them.

        Args:
            call: The call that changes the blocks.
            caller: The agent and the run that make the call.
            before: The blocks as the tool read them.
            texts: New texts by label.
            taint: Labels of untrusted content that the texts may contain: "web", "mcp".

        Raises:
            ToolError: A change was refused. The error holds the edits that were stored.
        """
        blocks_by_label = {block.label: block for block in before.blocks}
        edits: list[MemoryEdit] = []
        for label, text in sorted(texts.items()):
            block = blocks_by_label[label]
            try:
                edits += await self._edit(
                    call,
                    caller,
                    pb.EditBlockRequest(
                        request_id=_key(call, block.id),
                        agent_id=caller.agent_id,
                        label=label,
                        block_id=block.id,
                        base_revision=block.revision,
                        origin=pb.EditOrigin(
                            agent_id=caller.agent_id,
                            run_id=caller.run_id,
                            step_id=caller.step_id,
                            tool_call_id=call.id,
                            tool_name=call.name,
                            model=caller.model,
                            kind=editor_kind(caller.agent_type),
                            taint=labels_to_proto(dict.fromkeys(taint)),
                        ),
                        rethink=pb.RethinkEdit(new_memory=text),
                    ),
                )
            except LostAnswerError as error:
                raise ToolError(
                    f"{call.name} was run, but whether its change of the memory block '{label}' was"
                    f" stored is unknown: {error.message} Read the block before you call it again.",
                    memory_edits=edits,
                    unknown=True,
                ) from error
            except StrataError as error:
                stored_labels = ", ".join(f"'{edit.label}'" for edit in edits)
                also = f" Its changes of {stored_labels} were stored." if stored_labels else ""
                raise ToolError(
                    f"{call.name} was run, but its change of the memory block '{label}' was not"
                    f" stored: {error.message}{also}",
                    memory_edits=edits,
                ) from error
        return tuple(edits)

    async def _edit(
        self, call: ToolCall, caller: CallingAgent, request: pb.EditBlockRequest
    ) -> Sequence[MemoryEdit]:
        try:
            response = await self._blocks.EditBlock(request)
        except AlreadyExistsError as error:
            if error.reason is not Reason.REQUEST_ID_REUSED:
                raise
            # An earlier run of this call read another text, and so made a different edit.
            return await self._earlier_edit(call, caller, request)
        return [
            MemoryEdit(
                change.block.id,
                change.block.label,
                change.block.revision,
                change.diff,
                change.operation,
            )
            for change in response.changes
        ]

    async def _earlier_edit(
        self, call: ToolCall, caller: CallingAgent, request: pb.EditBlockRequest
    ) -> Sequence[MemoryEdit]:
        """Returns the edit that an earlier run of this call made, if it is among the newest."""
        recent = await self._blocks.ListBlockVersions(
            pb.ListBlockVersionsRequest(block_id=request.block_id, page_size=_RECENT)
        )
        for version in recent.versions:
            origin = version.origin
            if (origin.run_id, origin.tool_call_id) == (caller.run_id, call.id):
                diff_response = await self._blocks.DiffBlock(
                    pb.DiffBlockRequest(block_id=request.block_id, to_revision=version.revision)
                )
                return [
                    MemoryEdit(
                        request.block_id,
                        version.label,
                        version.revision,
                        diff_response.diff,
                        version.operation,
                    )
                ]
        return ()


def _key(call: ToolCall, block_id: str) -> str:
    """Returns the idempotency key for the edit of one block by one call.

    It holds the block id instead of a counter: a repeated call may change fewer blocks.
    """
    return f"{call.key}#{hashlib.sha256(block_id.encode()).hexdigest()[:16]}"
