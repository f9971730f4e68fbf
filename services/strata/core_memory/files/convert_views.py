"""Converts requests that open, read and search files, and their results.

Names, ranges and patterns come from models: the domain checks them, with errors that are
written for models.
"""

from __future__ import annotations

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.checks import Checks
from strata.core_memory.domain.prompt.compilation import (
    MAX_FILES_OPEN,
    MAX_VIEW_CHARS,
)
from strata.core_memory.files.convert import open_file_to_proto
from strata.core_memory.files.domain.file_windows import (
    OpenFilesResult,
    OpenWindows,
    WindowRequest,
)
from strata.core_memory.files.domain.grep import GrepPage, GrepQuery
from strata.core_memory.files.domain.search import FileFindings, FileQuery
from strata.shared.blank_text import BLANK, is_blank

# More than a folder and a file name can have together: a wrong name is just not found.
_MAX_FULL_NAME_CHARS = 1_000
_MAX_NAMES = 1_000
_ANY_LENGTH = 2**31
_DEFAULT_CONTEXT_LINES = 1
MAX_READ_BYTES = 1_048_576
"""Maximum of UTF-8 bytes that one call reads."""
_DEFAULT_READ_BYTES = 65_536
_HASH_DIGITS = 64


def to_open(message: pb.OpenFilesRequest) -> OpenWindows:
    """Returns the command of an OpenFiles request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.number(message.max_files_open, "max_files_open", least=0, most=MAX_FILES_OPEN)
    chars = message.per_file_view_window_char_limit
    checks.number(chars, "per_file_view_window_char_limit", least=0, most=MAX_VIEW_CHARS)
    checks.number(message.max_memory_bytes, "max_memory_bytes", least=0, most=2**62)
    for index, window in enumerate(message.windows):
        field = f"windows[{index}].file_name"
        checks.text(window.file_name, field, most=_MAX_FULL_NAME_CHARS)
    checks.done()
    return OpenWindows(
        agent_id=message.agent_id,
        requests=tuple(
            WindowRequest(
                file_name=window.file_name,
                offset=window.offset if window.HasField("offset") else None,
                length=window.length if window.HasField("length") else None,
            )
            for window in message.windows
        ),
        close_all_others=message.close_all_others,
        max_open=message.max_files_open,
        view_chars=message.per_file_view_window_char_limit,
        max_bytes=message.max_memory_bytes,
    )


def to_close(message: pb.CloseFilesRequest) -> tuple[str, tuple[str, ...]]:
    """Returns the agent and the names of a CloseFiles request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if len(message.file_names) > _MAX_NAMES:
        checks.fail("file_names", f"at most {_MAX_NAMES} are allowed")
    for index, name in enumerate(message.file_names[:_MAX_NAMES]):
        checks.text(name, f"file_names[{index}]", most=_MAX_FULL_NAME_CHARS)
    checks.done()
    return message.agent_id, tuple(message.file_names)


def to_grep(message: pb.GrepFilesRequest) -> GrepQuery:
    """Returns the query of a GrepFiles request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if is_blank(message.pattern):
        checks.fail("pattern", BLANK)
    checks.text(message.pattern, "pattern", most=_ANY_LENGTH)
    checks.text(message.include, "include", most=_ANY_LENGTH)
    checks.done()
    has_context = message.HasField("context_lines")
    return GrepQuery(
        agent_id=message.agent_id,
        pattern=message.pattern,
        include=message.include,
        context_lines=message.context_lines if has_context else _DEFAULT_CONTEXT_LINES,
        offset=message.offset,
    )


def to_read(message: pb.ReadFileRequest) -> tuple[str, str, int, int, str]:
    """Returns agent, file, first line, bytes and hash of a ReadFile request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.id(message.file_id, "file", "file_id")
    checks.number(message.first_line, "first_line", least=0, most=_ANY_LENGTH)
    checks.text(message.content_hash, "content_hash", most=_HASH_DIGITS)
    checks.number(message.max_bytes, "max_bytes", least=0, most=MAX_READ_BYTES)
    checks.done()
    first_line, max_bytes = message.first_line or 1, message.max_bytes or _DEFAULT_READ_BYTES
    return message.agent_id, message.file_id, first_line, max_bytes, message.content_hash


def to_search(message: pb.SearchFilesRequest) -> FileQuery:
    """Returns the query of a SearchFiles request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if is_blank(message.query):
        checks.fail("query", BLANK)
    checks.text(message.query, "query", most=_ANY_LENGTH)
    checks.done()
    return FileQuery(message.agent_id, message.query, message.limit, message.explain)


def opened_to_proto(opened: OpenFilesResult) -> pb.OpenFilesResponse:
    """Returns the open windows and the message for the model as a response."""
    return pb.OpenFilesResponse(
        open_files=[open_file_to_proto(window) for window in opened.windows],
        message=opened.message,
    )


def grep_to_proto(page: GrepPage) -> pb.GrepFilesResponse:
    """Returns a page of matches as a response."""
    return pb.GrepFilesResponse(
        matches=[
            pb.GrepMatch(file_name=match.file_name, line=match.line, lines=match.lines)
            for match in page.matches
        ],
        total_matches=page.total,
        message=page.message,
        truncated=page.truncated,
    )


def search_to_proto(findings: FileFindings) -> pb.SearchFilesResponse:
    """Returns the found passages as a response."""
    return pb.SearchFilesResponse(
        hits=[
            pb.FileHit(
                file_name=hit.file_name,
                start_line=hit.start_line,
                end_line=hit.end_line,
                text=hit.text,
                score=hit.score,
            )
            for hit in findings.hits
        ],
        message=findings.message,
        unindexed_files=findings.unindexed_files,
        below_floor=findings.below_floor,
    )
