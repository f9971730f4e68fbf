"""Executor of the tools that read attached files, through core memory's file service."""

from __future__ import annotations

from typing import Any

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.tool_execution.domain.tools import Call, Caller, Output

Arguments = dict[str, Any]


class FileTools:
    """Runs ``open_files``, ``grep_files`` and ``semantic_search_files``."""

    names = frozenset({"open_files", "grep_files", "semantic_search_files"})

    def __init__(self, files: pb_grpc.FileServiceStub) -> None:
        self._files = files

    async def run(self, call: Call, arguments: Arguments, caller: Caller) -> Output:
        """Opens files or searches them.

        Raises:
            StrataError: Core memory refused the request; its message is written for the model.
        """
        match call.name:
            case "open_files":
                return await self._open(call, arguments, caller)
            case "grep_files":
                return await self._grep(arguments, caller)
            case _:
                return await self._search(arguments, caller)

    async def _open(self, call: Call, arguments: Arguments, caller: Caller) -> Output:
        response = await self._files.OpenFiles(
            pb.OpenFilesRequest(
                request_id=call.key,
                agent_id=caller.agent_id,
                windows=[
                    pb.FileWindow(
                        file_name=wanted["file_name"],
                        offset=wanted.get("offset"),
                        length=wanted.get("length"),
                    )
                    for wanted in arguments["file_requests"]
                ],
                close_all_others=arguments.get("close_all_others", False),
                max_files_open=caller.max_files_open,
                per_file_view_window_char_limit=caller.file_view_chars,
                max_memory_bytes=caller.max_memory_bytes,
            )
        )
        return Output(response.message, files_changed=True)

    async def _grep(self, arguments: Arguments, caller: Caller) -> Output:
        response = await self._files.GrepFiles(
            pb.GrepFilesRequest(
                agent_id=caller.agent_id,
                pattern=arguments["pattern"],
                include=arguments.get("include", ""),
                context_lines=arguments.get("context_lines"),
                offset=arguments.get("offset", 0),
            )
        )
        return Output(response.message)

    async def _search(self, arguments: Arguments, caller: Caller) -> Output:
        response = await self._files.SearchFiles(
            pb.SearchFilesRequest(
                agent_id=caller.agent_id,
                query=arguments["query"],
                limit=arguments.get("limit", 0),
            )
        )
        return Output(response.message)
