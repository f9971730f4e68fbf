"""Tools that read attached files, through core memory's file service."""

from __future__ import annotations

from typing import Any

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.shared.tool_schemas import integer, parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolType

Arguments = dict[str, Any]

OPEN_FILES = builtin(
    name="open_files",
    description=(
        "Open files of your folders, whole or a range of lines, so that you see their text in"
        " your instructions from now on. Files that you open anew are shown in the new range. "
        "The number of open files is limited: beyond it the least recently used ones are closed. "
        "Open what the task needs, and only the needed part of a long file."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["file_requests"],
        file_requests={
            "type": "array",
            "description": "The files to open.",
            "items": parameters(
                ["file_name"],
                file_name=text("Name as in the list: FOLDER/FILE."),
                offset=integer(
                    "How many lines to leave out before the range; 0, the default, starts with"
                    " the first line."
                ),
                length=integer("How many lines to show; leave it out for all that fit."),
            ),
        },
        close_all_others={
            "type": "boolean",
            "description": "Close every other open file (default false).",
        },
    ),
)

GREP_FILES = builtin(
    name="grep_files",
    description=(
        "Search the text of all files of your folders by a regular expression, line by line,"
        " ignoring case. Returns 20 matches at a time with their lines. Use it for"
        " exact words, names and numbers; for questions use semantic_search_files."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["pattern"],
        pattern=text("Regular expression (RE2: no backreferences, no lookaround)."),
        include=text('Only files whose name matches: a glob such as "*.py", or an expression.'),
        context_lines=integer("Lines to show before and after a match (default 1)."),
        offset=integer("Matches to skip, to see the next page (default 0)."),
    ),
)

SEMANTIC_SEARCH_FILES = builtin(
    name="semantic_search_files",
    description=(
        "Search all files of your folders by meaning. Returns the passages that answer a question"
        " best, each with its file and lines. Use it when you do not know the exact words."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["query"],
        query=text("A question, or what the passage is about."),
        limit=integer("How many passages to return (default 5).", minimum=1, maximum=50),
    ),
)

FILE_TOOLS = (GREP_FILES, OPEN_FILES, SEMANTIC_SEARCH_FILES)


class FileTools:
    """Runs ``open_files``, ``grep_files`` and ``semantic_search_files``."""

    names = frozenset({"open_files", "grep_files", "semantic_search_files"})

    def __init__(self, files: pb_grpc.FileServiceStub) -> None:
        self._files = files

    async def run(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
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

    async def _open(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
        response = await self._files.OpenFiles(
            pb.OpenFilesRequest(
                request_id=call.key,
                agent_id=caller.agent_id,
                windows=[
                    pb.FileWindow(
                        file_name=file_request["file_name"],
                        offset=file_request.get("offset"),
                        length=file_request.get("length"),
                    )
                    for file_request in arguments["file_requests"]
                ],
                close_all_others=arguments.get("close_all_others", False),
                max_files_open=caller.max_files_open,
                per_file_view_window_char_limit=caller.file_view_chars,
                max_memory_bytes=caller.max_memory_bytes,
            )
        )
        return Output(response.message, files_changed=True)

    async def _grep(self, arguments: Arguments, caller: CallingAgent) -> Output:
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

    async def _search(self, arguments: Arguments, caller: CallingAgent) -> Output:
        response = await self._files.SearchFiles(
            pb.SearchFilesRequest(
                agent_id=caller.agent_id,
                query=arguments["query"],
                limit=arguments.get("limit", 0),
            )
        )
        return Output(response.message)
