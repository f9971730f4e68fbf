"""Converts requests and responses of `FileService`.

Full names, ranges and patterns come from models: the domain checks them, with errors that are
written for models.
"""

from __future__ import annotations

from datetime import datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.domain.prompt.compilation import (
    MAX_FILES_OPEN,
    MAX_VIEW_CHARS,
)
from strata.core_memory.files.domain.file_windows import (
    OpenFilesResult,
    OpenWindows,
    WindowRequest,
)
from strata.core_memory.files.domain.files import (
    MAX_NAME_CHARS,
    File,
    FileState,
    Folder,
    NewFolder,
    OpenFile,
    UploadHeader,
)
from strata.core_memory.files.domain.grep import GrepPage, GrepQuery
from strata.core_memory.files.domain.lines import ReadQuery
from strata.core_memory.files.domain.search import FileFindings, FileQuery
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import (
    RequestKey,
    check_request_id,
    digest_of,
    request_id_violations,
)
from strata.shared.names import composed
from strata.shared.one_line import is_one_line

MAX_DESCRIPTION_CHARS = 5_000
MAX_MEDIA_TYPE_CHARS = 200
MAX_OPEN_COUNT = 100

_STATES = EnumTable(pb.FileState, FileState)

# More than a folder and a file name can have together: a wrong name is just not found.
_MAX_FULL_NAME_CHARS = 1_000
_MAX_NAMES = 1_000
_ANY_LENGTH = 2**31
_DEFAULT_CONTEXT_LINES = 1
MAX_READ_BYTES = 1_048_576
"""Maximum of UTF-8 bytes that one call reads."""
_DEFAULT_READ_BYTES = 65_536
_HASH_DIGITS = 64


def to_request(method: str, request_id: str, message: Message, *more: str) -> RequestKey:
    """Returns the idempotency key of a mutation: its request id and a hash of its content.

    Args:
        method: Name of the RPC.
        request_id: The caller's request id; empty for none.
        message: The request.
        more: Further texts to hash, such as the hash of an upload.

    Raises:
        InvalidArgumentError: The id is not valid.
    """
    label = "\n".join((method, *more, ""))
    return RequestKey(check_request_id(request_id), digest_of(label, message))


def to_new_folder(message: pb.CreateFolderRequest) -> NewFolder:
    """Returns the folder of a CreateFolder request."""
    checks = Checks()
    _check_name(checks, message.name, "name")
    checks.text(message.description, "description", most=MAX_DESCRIPTION_CHARS)
    checks.text(message.instructions, "instructions", most=MAX_DESCRIPTION_CHARS)
    checks.done()
    return NewFolder(composed(message.name), message.description, message.instructions)


def to_header(message: pb.UploadFileHeader) -> UploadHeader:
    """Returns the header of an upload."""
    checks = Checks()
    for violation in request_id_violations(message.request_id, "header.request_id"):
        checks.fail(violation.field, violation.description)
    checks.id(message.folder_id, "folder", "header.folder_id")
    _check_name(checks, message.name, "header.name")
    checks.text(message.media_type, "header.media_type", most=MAX_MEDIA_TYPE_CHARS)
    valid = is_one_line(message.media_type)
    checks.unless(valid, "header.media_type", "must be one line without control characters")
    checks.done()
    name = composed(message.name)
    return UploadHeader(message.folder_id, name, message.media_type, message.replace)


def to_folder_id(folder_id: str) -> str:
    """Returns a checked folder id."""
    return _id(folder_id, "folder")


def to_file_id(file_id: str) -> str:
    """Returns a checked file id."""
    return _id(file_id, "file")


def to_agent_id(agent_id: str, *, optional: bool = False) -> str:
    """Returns a checked agent id."""
    return _id(agent_id, "agent", optional=optional)


def to_pair(
    message: pb.AttachFolderRequest | pb.DetachFolderRequest,
) -> tuple[str, str]:
    """Returns the agent and the folder of an AttachFolder or DetachFolder request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.id(message.folder_id, "folder", "folder_id")
    if isinstance(message, pb.AttachFolderRequest):
        checks.number(message.open_count, "open_count", least=0, most=MAX_OPEN_COUNT)
    checks.done()
    return message.agent_id, message.folder_id


def to_listed(message: pb.ListFilesRequest) -> tuple[str, str]:
    """Returns the folder or the agent of a ListFiles request; the other one is empty."""
    checks = Checks()
    checks.id(message.folder_id, "folder", "folder_id", optional=True)
    checks.id(message.agent_id, "agent", "agent_id", optional=True)
    if bool(message.folder_id) == bool(message.agent_id):
        checks.fail("folder_id", "or agent_id is required, but not both")
    checks.done()
    return message.folder_id, message.agent_id


def folder_to_proto(folder: Folder) -> pb.Folder:
    """Returns a folder as a proto."""
    return pb.Folder(
        id=folder.id,
        name=folder.name,
        description=folder.description,
        instructions=folder.instructions,
        file_count=folder.file_count,
        create_time=_stamp(folder.create_time),
    )


def file_to_proto(file: File) -> pb.File:
    """Returns a file as a proto."""
    return pb.File(
        id=file.id,
        folder_id=file.folder_id,
        name=file.name,
        media_type=file.media_type,
        size_bytes=file.size_bytes,
        content_hash=file.content_hash,
        line_count=file.line_count,
        state=_STATES.to_proto[file.state],
        error=file.error,
        index_progress=file.index_progress,
        create_time=_stamp(file.create_time),
    )


def open_file_to_proto(window: OpenFile) -> pb.OpenFile:
    """Returns a window as a proto."""
    return pb.OpenFile(
        file_id=window.file_id,
        file_name=window.file_name,
        start_line=window.start_line,
        end_line=window.end_line,
        last_access_time=_stamp(window.last_access_time),
    )


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


def to_read(message: pb.ReadFileRequest) -> ReadQuery:
    """Returns the query of a ReadFile request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.id(message.file_id, "file", "file_id")
    checks.number(message.first_line, "first_line", least=0, most=_ANY_LENGTH)
    checks.text(message.content_hash, "content_hash", most=_HASH_DIGITS)
    checks.number(message.max_bytes, "max_bytes", least=0, most=MAX_READ_BYTES)
    checks.done()
    return ReadQuery(
        agent_id=message.agent_id,
        file_id=message.file_id,
        first_line=message.first_line or 1,
        max_bytes=message.max_bytes or _DEFAULT_READ_BYTES,
        content_hash=message.content_hash,
    )


def to_search(message: pb.SearchFilesRequest) -> FileQuery:
    """Returns the query of a SearchFiles request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.not_blank(message.query, "query")
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


def _id(value: str, prefix: str, *, optional: bool = False) -> str:
    checks = Checks()
    checks.id(value, prefix, f"{prefix}_id", optional=optional)
    checks.done()
    return value


def _check_name(checks: Checks, name: str, field: str) -> None:
    checks.unless(bool(name), field, "is required")
    checks.name(name, field, most=MAX_NAME_CHARS)


def _stamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
