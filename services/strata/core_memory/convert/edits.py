"""Converts the verbs of EditBlock requests."""

from __future__ import annotations

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.core_memory.checks import Checks
from strata.core_memory.domain.blocks import MAX_LIMIT, label_of
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Create,
    Delete,
    Edit,
    Insert,
    Patch,
    Rename,
    Replace,
    Rethink,
    StringReplace,
)

_MAX_LABEL_CHARS = 200
_MAX_DESCRIPTION_CHARS = 5_000


def to_edit(checks: Checks, message: pb.EditBlockRequest) -> Edit | None:
    """Returns the verb of a request; None, with a violation, if it has none."""
    verb = message.WhichOneof("edit")
    if verb is None:
        checks.fail("edit", "is required: name one verb")
        return None
    _check_texts(checks, message, verb)
    return _edit(message, verb)


def _edit(message: pb.EditBlockRequest, verb: str) -> Edit:
    match verb:
        case "append":
            return Append(message.append.content)
        case "replace":
            return Replace(message.replace.old_content, message.replace.new_content)
        case "string_replace":
            edit = message.string_replace
            return StringReplace(edit.old_string, edit.new_string)
        case "insert":
            insert = message.insert
            line = insert.insert_line if insert.HasField("insert_line") else -1
            return Insert(insert.new_string, line)
        case "rethink":
            return Rethink(message.rethink.new_memory)
        case "create":
            return Create(message.create.file_text, message.create.description)
        case "rename":
            rename = message.rename
            description = rename.description if rename.HasField("description") else None
            return Rename(label_of(rename.new_label), description)
        case "patch":
            return Patch(message.patch.patch)
        case _:
            return Delete()


def _check_texts(checks: Checks, message: pb.EditBlockRequest, verb: str) -> None:
    """Checks the texts of the verb, and that a rename has a new label or description."""
    for field, value in getattr(message, verb).ListFields():
        if isinstance(value, str):
            most = {"description": _MAX_DESCRIPTION_CHARS, "new_label": _MAX_LABEL_CHARS}
            checks.text(value, f"{verb}.{field.name}", most=most.get(field.name, MAX_LIMIT))
    if verb == "rename" and not message.rename.ListFields():
        checks.fail("rename", "needs a new label or a new description")
