"""Converts rows to folders, files and the limits of a prompt."""

from __future__ import annotations

from strata.core_memory.domain.prompt.limits import PromptLimit
from strata.core_memory.files.domain.files import File, FileState, Folder
from strata.shared.db import Row

FOLDER = "d.id, d.name, d.description, d.instructions, d.file_count, d.create_time"
"""The columns of a folder ``d`` for `to_folder`."""

FILE = """
    f.id, f.folder_id, d.name AS folder_name, f.name, f.media_type, f.content_hash,
    c.size_bytes, CASE WHEN c.state = 'text' THEN c.line_count ELSE 0 END AS line_count,
    f.state, f.error, f.chunk_count, f.indexed_count, f.create_time
"""
"""The columns of a file ``f`` in `FILE_TABLES` for `to_file`."""

FILE_TABLES = """
    core_memory.files f
    JOIN core_memory.folders d ON d.project_id = f.project_id AND d.id = f.folder_id
    JOIN core_memory.contents c
      ON c.project_id = f.project_id AND c.content_hash = f.content_hash
"""

PROMPT_LIMIT = {
    "prompt_limit_bytes": "CAST(:limit AS bigint)",
    "prompt_line_numbers": ":line_numbers",
    "prompt_files_bytes": ":files_bytes",
    "max_files_open": ":max_open",
    "file_view_chars": ":view_chars",
}
"""The columns of an agent's `PromptLimit`, with the parameters that set them."""


def to_prompt_limit(row: Row) -> PromptLimit:
    """Returns the limit of a row of `PROMPT_LIMIT`."""
    return PromptLimit(
        bytes=row.prompt_limit_bytes,
        line_numbers=row.prompt_line_numbers,
        files_bytes=row.prompt_files_bytes,
        max_open=row.max_files_open,
        view_chars=row.file_view_chars,
    )


def to_folder(row: Row) -> Folder:
    """Returns the folder of a row of `FOLDER`."""
    return Folder(
        id=row.id,
        name=row.name,
        description=row.description,
        instructions=row.instructions,
        file_count=row.file_count,
        create_time=row.create_time,
    )


def to_file(row: Row) -> File:
    """Returns the file of a row of `FILE`."""
    return File(
        id=row.id,
        folder_id=row.folder_id,
        folder_name=row.folder_name,
        name=row.name,
        media_type=row.media_type,
        content_key=row.content_hash,
        size_bytes=row.size_bytes,
        line_count=row.line_count,
        state=FileState(row.state),
        error=row.error,
        chunk_count=row.chunk_count,
        indexed_count=row.indexed_count,
        create_time=row.create_time,
    )
