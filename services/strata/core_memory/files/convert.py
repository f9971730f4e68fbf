"""Converts requests of `FileService` to commands, and folders, files and windows to protos."""

from __future__ import annotations

import hashlib
from datetime import datetime

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.checks import Checks
from strata.core_memory.domain.ports import RequestKey
from strata.core_memory.files.domain.files import (
    MAX_NAME_CHARS,
    File,
    FileState,
    Folder,
    NewFolder,
    OpenFile,
)
from strata.core_memory.files.uploads import UploadHeader
from strata.shared.convert.enums import EnumTable
from strata.shared.names import name_problems

MAX_REQUEST_ID_CHARS = 200
MAX_DESCRIPTION_CHARS = 5_000
MAX_MEDIA_TYPE_CHARS = 200
MAX_OPEN_COUNT = 100

_STATES = EnumTable(pb.FileState, FileState)


def to_request(method: str, request_id: str, message: Message, *more: str) -> RequestKey:
    """Returns the idempotency key of a mutation: its request id and a hash of its content.

    Args:
        method: Name of the RPC.
        request_id: The caller's request id; empty for none.
        message: The request.
        more: Further texts to hash, such as the hash of an upload.

    Raises:
        InvalidArgumentError: The id is too long or cannot be stored.
    """
    checks = Checks()
    checks.text(request_id, "request_id", most=MAX_REQUEST_ID_CHARS)
    checks.done()
    payload = message.SerializeToString(deterministic=True)
    start = "\n".join((method, *more, "")).encode()
    return RequestKey(request_id, hashlib.sha256(start + payload).digest())


def to_new_folder(message: pb.CreateFolderRequest) -> NewFolder:
    """Returns the folder of a CreateFolder request."""
    checks = Checks()
    _check_name(checks, message.name, "name")
    checks.text(message.description, "description", most=MAX_DESCRIPTION_CHARS)
    checks.text(message.instructions, "instructions", most=MAX_DESCRIPTION_CHARS)
    checks.done()
    return NewFolder(message.name, message.description, message.instructions)


def to_header(message: pb.UploadFileHeader) -> UploadHeader:
    """Returns the header of an upload."""
    checks = Checks()
    checks.text(message.request_id, "header.request_id", most=MAX_REQUEST_ID_CHARS)
    checks.id(message.folder_id, "folder", "header.folder_id")
    _check_name(checks, message.name, "header.name")
    checks.text(message.media_type, "header.media_type", most=MAX_MEDIA_TYPE_CHARS)
    checks.done()
    return UploadHeader(message.folder_id, message.name, message.media_type, message.replace)


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
        checks.fail("folder_id", "or agent_id is required, one of them")
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


def _id(value: str, prefix: str, *, optional: bool = False) -> str:
    checks = Checks()
    checks.id(value, prefix, f"{prefix}_id", optional=optional)
    checks.done()
    return value


def _check_name(checks: Checks, name: str, field: str) -> None:
    if not name:
        checks.fail(field, "is required")
    for problem in name_problems(name, most=MAX_NAME_CHARS):
        checks.fail(field, problem)


def _stamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
