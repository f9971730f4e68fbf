"""The tool-execution room: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.api.archival.v1 import passage_service_pb2_grpc as passage_grpc
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc
from strata.shared.room import Room, Service, Wiring
from strata.shared.server import run_room
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.builtin.files import FileTools
from strata.tool_execution.builtin.memory import MemoryTools
from strata.tool_execution.builtin.retrieval import ArchivalTools, ConversationSearch
from strata.tool_execution.builtin.summaries import ExpandSummary
from strata.tool_execution.engine import Engine
from strata.tool_execution.migrations import MIGRATIONS
from strata.tool_execution.servicer import ExecutionServicer, ToolServicer
from strata.tool_execution.settings import ToolExecutionSettings

NAME = "tool_execution"


async def build(settings: ToolExecutionSettings, wiring: Wiring, stack: AsyncExitStack) -> Room:
    """Builds the room.

    Args:
        settings: Its settings.
        wiring: The process that it is built in.
        stack: Closes what the room opens.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
    """
    await MIGRATIONS.check(settings.database_url)
    engine = Engine(
        BUILTIN_TOOLS,
        [
            MemoryTools(block_grpc.BlockServiceStub(wiring.channel("core_memory"))),
            FileTools(file_grpc.FileServiceStub(wiring.channel("core_memory"))),
            ConversationSearch(
                message_grpc.MessageServiceStub(wiring.channel("recall")), wiring.clock
            ),
            ExpandSummary(message_grpc.MessageServiceStub(wiring.channel("recall"))),
            ArchivalTools(passage_grpc.PassageServiceStub(wiring.channel("archival"))),
        ],
        wiring.clock,
        timeout=settings.tool_timeout_s,
        max_parallel=settings.max_parallel_calls,
    )
    tools = ToolServicer(BUILTIN_TOOLS)
    return Room(
        name=NAME,
        services=[
            Service(
                tool_pb.DESCRIPTOR.services_by_name["ToolService"].full_name,
                tool_grpc.add_ToolServiceServicer_to_server,
                tools,
            ),
            Service(
                execution_pb.DESCRIPTOR.services_by_name["ExecutionService"].full_name,
                execution_grpc.add_ExecutionServiceServicer_to_server,
                ExecutionServicer(BUILTIN_TOOLS, engine),
            ),
            Service(
                mcp_pb.DESCRIPTOR.services_by_name["McpService"].full_name,
                mcp_grpc.add_McpServiceServicer_to_server,
                mcp_grpc.McpServiceServicer(),
            ),
        ],
    )


def main() -> None:
    """Runs the room in a process of its own."""
    run_room(NAME, build, ToolExecutionSettings())


if __name__ == "__main__":
    main()
