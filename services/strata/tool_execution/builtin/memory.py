"""Executor of the tools that edit memory blocks, through core memory's block service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.protocol.errors import AbortedError, Reason, StrataError
from strata.shared.convert.messages import labels_to_proto
from strata.shared.memory_edits import MemoryEdit
from strata.shared.tool_catalogue import FINISH_RETHINKING_MEMORY, RETHINK_USER_MEMORY
from strata.tool_execution.clients.editors import editor_kind
from strata.tool_execution.domain.tools import Call, Caller, Output, ToolError

Arguments = dict[str, Any]

_SHOWN_CHARS = 4_000
"""Maximum length of a block shown after a conflict; the middle of a longer one is left out."""


def _append(arguments: Arguments) -> dict[str, Any]:
    return {"append": pb.AppendEdit(content=arguments["content"])}


def _replace(arguments: Arguments) -> dict[str, Any]:
    return {
        "replace": pb.ReplaceEdit(
            old_content=arguments["old_content"], new_content=arguments["new_content"]
        )
    }


def _string_replace(arguments: Arguments) -> dict[str, Any]:
    return {
        "string_replace": pb.StringReplaceEdit(
            old_string=arguments["old_str"], new_string=arguments["new_str"]
        )
    }


def _insert(arguments: Arguments) -> dict[str, Any]:
    return {
        "insert": pb.InsertEdit(
            new_string=arguments["new_str"], insert_line=arguments.get("insert_line")
        )
    }


def _rethink(arguments: Arguments) -> dict[str, Any]:
    return {"rethink": pb.RethinkEdit(new_memory=arguments["new_memory"])}


def _patch(arguments: Arguments) -> dict[str, Any]:
    return {"patch": pb.PatchEdit(patch=arguments["patch"])}


def _create(arguments: Arguments) -> dict[str, Any]:
    return {
        "create": pb.CreateEdit(
            description=arguments.get("description", ""), file_text=arguments.get("file_text", "")
        )
    }


def _insert_text(arguments: Arguments) -> dict[str, Any]:
    return _insert({**arguments, "new_str": arguments["insert_text"]})


def _delete(_: Arguments) -> dict[str, Any]:
    return {"delete": pb.DeleteEdit()}


def _rename(arguments: Arguments) -> dict[str, Any]:
    # With a strict schema the model must fill in every argument: an empty description of a renamed
    # block means no change.
    description = arguments.get("description")
    if arguments.get("new_path") and not description:
        description = None
    return {
        "rename": pb.RenameEdit(new_label=arguments.get("new_path", ""), description=description)
    }


_Edit = Callable[[Arguments], dict[str, Any]]

_USER_LABEL = "human"
"""Label of the block that ``rethink_user_memory`` rewrites."""

_EDITS: Mapping[str, _Edit] = {
    "core_memory_append": _append,
    "core_memory_replace": _replace,
    "memory_apply_patch": _patch,
    "memory_insert": _insert,
    "memory_replace": _string_replace,
    "memory_rethink": _rethink,
    RETHINK_USER_MEMORY: _rethink,
}
_FINISHING = frozenset({"memory_finish_edits", FINISH_RETHINKING_MEMORY})
_COMMANDS: Mapping[str, _Edit] = {
    "create": _create,
    "str_replace": _string_replace,
    "insert": _insert_text,
    "delete": _delete,
    "rename": _rename,
}
# These edits do not depend on the text that the model read.
_WITHOUT_BASE = frozenset({"create", "delete", "rename"})


class MemoryTools:
    """Runs the memory tools. Repeated calls with the same key apply their edit once."""

    names = frozenset({*_EDITS, "memory"}) | _FINISHING

    def __init__(self, blocks: pb_grpc.BlockServiceStub) -> None:
        self._blocks = blocks

    async def run(self, call: Call, arguments: Arguments, caller: Caller) -> Output:
        """Applies one edit.

        Raises:
            ToolError: Another agent or client has changed the same text since the model read it.
            StrataError: Core memory refused the edit; its message is written for the model.
        """
        if call.name in _FINISHING:
            return Output(None)
        request = _request(call, arguments, caller)
        try:
            response = await self._blocks.EditBlock(request)
        except AbortedError as error:
            label = error.metadata.get("label")
            if error.reason is not Reason.EDIT_CONFLICT or not label:
                raise
            raise await self._conflict(error, caller.agent_id, label) from error
        edits = tuple(
            MemoryEdit(
                change.block.id,
                change.block.label,
                change.block.revision,
                change.diff,
                change.operation,
            )
            for change in response.changes
        )
        return Output(response.message, memory_edits=edits)

    async def _conflict(self, error: StrataError, agent_id: str, label: str) -> Exception:
        """Returns an error with the current text, which is too long for a status message."""
        try:
            response = await self._blocks.GetBlock(
                pb.GetBlockRequest(agent_id=agent_id, label=label)
            )
        except StrataError:
            return error
        text = _shortened(response.block.value)
        return ToolError(
            f"Memory block '{label}' was changed by others since you read it, and your edit"
            " overlaps with their change. Nothing was done. Make your edit again on its current"
            f" text, and keep what they wrote unless it is wrong:\n{text}"
        )


def _request(call: Call, arguments: Arguments, caller: Caller) -> pb.EditBlockRequest:
    if call.name == "memory":
        edit = _COMMANDS[arguments["command"]](arguments)
        label = arguments.get("path") or arguments.get("old_path", "")
    else:
        edit = _EDITS[call.name](arguments)
        label = arguments.get("label", "")
        if call.name == RETHINK_USER_MEMORY:
            label = _USER_LABEL
    based = _WITHOUT_BASE.isdisjoint(edit)
    return pb.EditBlockRequest(
        request_id=call.key,
        agent_id=caller.agent_id,
        label=label,
        base_revision=caller.block_revisions.get(_label_of(label), 0) if based else 0,
        origin=pb.EditOrigin(
            agent_id=caller.agent_id,
            run_id=caller.run_id,
            step_id=caller.step_id,
            tool_call_id=call.id,
            tool_name=call.name,
            model=caller.model,
            kind=editor_kind(caller.agent_type),
            taint=labels_to_proto(caller.taint),
        ),
        **edit,
    )


def _label_of(path: str) -> str:
    """Returns the label of a path, by the rule of core memory."""
    if not path.startswith("/"):
        return path
    return path.removeprefix("/memories/").strip("/").replace("/", "_")


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN_CHARS:
        return text
    half = _SHOWN_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
