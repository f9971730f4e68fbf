"""Memory blocks as resources: ``strata://agents/ID/blocks/LABEL``."""

from __future__ import annotations

from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.protocol.errors import StrataError
from strata.shared.agent_mcp.blocks import attached_block, blocks_of
from strata.shared.agent_mcp.memory import ConnectedAgent
from strata.shared.agent_mcp.results import protocol_error

_MARKDOWN = "text/markdown"


class Resources:
    """The blocks of one agent.

    Args:
        memory: The agent.
    """

    def __init__(self, memory: ConnectedAgent) -> None:
        self._memory = memory

    async def list_resources(
        self, _: ServerRequestContext, __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Lists the blocks that the agent has now.

        Raises:
            MCPError: Strata refuses the call or cannot be reached.
        """
        try:
            async with self._memory.connected() as client:
                blocks = await blocks_of(client, self._memory.agent_id)
        except StrataError as error:
            raise protocol_error(self._memory, error) from error
        return types.ListResourcesResult(resources=[self._resource(block) for block in blocks])

    async def list_templates(
        self, _: ServerRequestContext, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Lists the URI template of blocks."""
        template = types.ResourceTemplate(
            name="block",
            title="Memory block",
            description="A memory block of the agent, by its label.",
            uri_template=f"{blocks_uri(self._memory.agent_id)}{{label}}",
            mime_type=_MARKDOWN,
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, _: ServerRequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Returns the text of a block.

        Raises:
            MCPError: There is no block at this address, or Strata refuses the call or cannot be
              reached.
        """
        label = label_of(params.uri, self._memory.agent_id)
        if not label:
            raise MCPError(
                types.INVALID_PARAMS,
                "There is no memory block of this agent at this address.",
                {"uri": params.uri},
            )
        try:
            async with self._memory.connected() as client:
                block = await attached_block(client, self._memory.agent_id, label)
        except StrataError as error:
            raise protocol_error(self._memory, error) from error
        contents = types.TextResourceContents(uri=params.uri, mime_type=_MARKDOWN, text=block.value)
        return types.ReadResourceResult(contents=[contents])

    def _resource(self, block: pb.Block) -> types.Resource:
        return types.Resource(
            uri=uri_of(self._memory.agent_id, block.label),
            name=block.label,
            description=block.description,
            mime_type=_MARKDOWN,
            size=len(block.value.encode()),
            annotations=types.Annotations(last_modified=block.update_time.ToJsonString()),
        )


def blocks_uri(agent_id: str) -> str:
    """Returns the common prefix of the addresses of an agent's blocks."""
    return f"strata://agents/{agent_id}/blocks/"


def uri_of(agent_id: str, label: str) -> str:
    """Returns the address of a block."""
    return blocks_uri(agent_id) + quote(label, safe="")


def label_of(uri: str, agent_id: str) -> str:
    """Returns the label in an address; empty if it is not a block of this agent."""
    before, separator, label = uri.partition(blocks_uri(agent_id))
    if before or not separator or "/" in label:
        return ""
    return unquote(label)
