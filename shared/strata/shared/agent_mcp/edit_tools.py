"""Tools that edit memory blocks, with core memory's merging and conflicts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.protocol.errors import AbortedError, Reason, StrataError
from strata.shared.agent_mcp.blocks import attached_block
from strata.shared.agent_mcp.memory import MemoryServices
from strata.shared.convert import block_edits

Arguments = dict[str, Any]


EDITS: Mapping[str, Callable[[Arguments], dict[str, Any]]] = {
    "core_memory_append": block_edits.append,
    "memory_create": block_edits.create,
    "memory_insert": block_edits.insert,
    "memory_replace": block_edits.string_replace,
    "memory_rethink": block_edits.rethink,
}


async def edit_block(
    client: MemoryServices, agent_id: str, name: str, arguments: Arguments, editor: str
) -> dict[str, Any]:
    """Applies one edit with an agent's permissions: read-only blocks and limits are enforced.

    Args:
        client: The gateway.
        agent_id: The agent whose block it is.
        name: The tool, one of `EDITS`.
        arguments: Its arguments, checked.
        editor: Name of the MCP client; stored with the version.

    Raises:
        AbortedError: Others have changed the same text since it was read.
        StrataError: Core memory refuses.
    """
    label = arguments["label"]
    if name == "memory_rethink":
        # Rewriting creates a missing block, which would hide a misspelt label.
        await attached_block(client, agent_id, label)
    request = pb.EditBlockRequest(
        request_id=f"mcp-{uuid.uuid4()}",
        agent_id=agent_id,
        label=label,
        base_revision=arguments.get("revision", 0),
        origin=pb.EditOrigin(kind=pb.EDITOR_KIND_USER, reason=f"through MCP, by {editor}"),
        **EDITS[name](arguments),
    )
    try:
        response = await client.blocks.EditBlock(request)
    except AbortedError as error:
        if error.reason is not Reason.EDIT_CONFLICT:
            raise
        raise await _conflict(client, agent_id, label, error) from error
    return {
        "message": response.message,
        "label": response.block.label,
        "revision": response.block.revision,
        "merged": response.merged,
        "diff": response.diff,
    }


async def _conflict(
    client: MemoryServices, agent_id: str, label: str, error: StrataError
) -> StrataError:
    """Returns the conflict error with the present text, so that the client can edit again."""
    try:
        block = await attached_block(client, agent_id, label)
    except StrataError:
        return error
    return AbortedError(
        f"Memory block '{label}' was changed by others since you read it, and your edit overlaps"
        f" with their change. Nothing was done. It is now at revision {block.revision}; make your"
        f" edit again on its text, and keep what they wrote unless it is wrong:\n{block.value}",
        reason=Reason.EDIT_CONFLICT,
    )
