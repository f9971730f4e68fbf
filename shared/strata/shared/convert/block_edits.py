"""The memory edits of tools: their arguments as fields of an `EditBlockRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb

Arguments = Mapping[str, Any]


def append(arguments: Arguments) -> dict[str, Any]:
    """Returns the fields of ``core_memory_append``."""
    return {"append": pb.AppendEdit(content=arguments["content"])}


def string_replace(arguments: Arguments) -> dict[str, Any]:
    """Returns the fields of ``memory_replace``."""
    return {
        "string_replace": pb.StringReplaceEdit(
            old_string=arguments["old_str"], new_string=arguments["new_str"]
        )
    }


def insert(arguments: Arguments) -> dict[str, Any]:
    """Returns the fields of ``memory_insert``."""
    return {
        "insert": pb.InsertEdit(
            new_string=arguments["new_str"], insert_line=arguments.get("insert_line")
        )
    }


def rethink(arguments: Arguments) -> dict[str, Any]:
    """Returns the fields of ``memory_rethink``."""
    return {"rethink": pb.RethinkEdit(new_memory=arguments["new_memory"])}


def create(arguments: Arguments) -> dict[str, Any]:
    """Returns the fields of ``memory_create``."""
    return {
        "create": pb.CreateEdit(
            description=arguments.get("description", ""), file_text=arguments.get("file_text", "")
        )
    }
