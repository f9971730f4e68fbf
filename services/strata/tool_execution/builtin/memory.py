"""Tools that edit memory blocks, through core memory's block service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as pb_grpc
from strata.protocol.errors import AbortedError, Reason, StrataError
from strata.shared.convert import block_edits
from strata.shared.convert.messages import labels_to_proto, taint_from_proto
from strata.shared.memory_edits import MemoryEdit
from strata.shared.tool_catalogue import FINISH_RETHINKING_MEMORY, RETHINK_USER_MEMORY
from strata.shared.tool_schemas import integer, parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.clients.editors import editor_kind
from strata.tool_execution.domain.memory_command import COMMANDS, problem_of
from strata.tool_execution.domain.tools import CallingAgent, Output, ToolCall, ToolError, ToolType

Arguments = dict[str, Any]

_SHOWN_CHARS = 4_000
"""Maximum length of a block shown after a conflict; the middle of a longer one is left out."""

_LABEL = text("Label of the memory block.")
_LINE = "After which line: 0 for the beginning, -1 (the default) for the end."

CORE_MEMORY_APPEND = builtin(
    name="core_memory_append",
    description="Add a line of text at the end of a memory block.",
    kind=ToolType.MEMORY,
    parameters=parameters(["label", "content"], label=_LABEL, content=text("The text to add.")),
)

CORE_MEMORY_REPLACE = builtin(
    name="core_memory_replace",
    description=(
        "Replace a text in a memory block at all its occurrences. To delete it, replace it with an "
        "empty string."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "old_content", "new_content"],
        label=_LABEL,
        old_content=text("The text to replace, exactly as in the block."),
        new_content=text("The replacement."),
    ),
)

MEMORY = builtin(
    name="memory",
    description=(
        "Edit your memory blocks. The command says what to do:\n"
        "create: create a block named by path, with file_text as its text and a description of "
        "its purpose.\n"
        "str_replace: replace old_str, which must occur exactly once in the block, by new_str.\n"
        "insert: put insert_text after line insert_line, or at the end.\n"
        "delete: remove the block at path from your memory.\n"
        "rename: give the block at old_path the name new_path, or the block at path another"
        " description.\n"
        "Never write line numbers into a text."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["command"],
        command={
            "type": "string",
            "enum": list(COMMANDS),
            "description": "What to do.",
        },
        path=text('Label of the block, such as "human", or a path such as "/memories/human".'),
        file_text=text("create: the text of the new block."),
        description=text("create, rename: what belongs in the block and how to use it."),
        old_str=text("str_replace: the text to replace, exactly as in the block."),
        new_str=text("str_replace: the replacement; an empty string deletes the text."),
        insert_line=integer(f"insert: {_LINE[0].lower()}{_LINE[1:]}"),
        insert_text=text("insert: the text to insert."),
        old_path=text("rename: present label of the block."),
        new_path=text("rename: new label of the block."),
    ),
    explain=problem_of,
)

MEMORY_APPLY_PATCH = builtin(
    name="memory_apply_patch",
    description=(
        "Change several places of memory at once with a patch. Lines starting with '-' are removed,"
        " lines starting with '+' are added, lines starting with a space stay and show where."
        " Example: ' Name: Ada\n-Lives in Rome\n+Lives in Oslo'. Include enough unchanged lines"
        " that each place is unique; start each further place with a line '@@'. For one block give"
        " its label. For several, leave the label out and head the lines of each with '*** Update"
        " Block: LABEL'; '*** Add Block: LABEL', '*** Delete Block: LABEL' and, under an update,"
        " '*** Move to: LABEL' create, delete and rename blocks. The patch is applied completely or"
        " not at all. Never write line numbers."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["patch"],
        label=text("Label of the memory block; leave it out if the patch has block headers."),
        patch=text("The patch."),
    ),
)

MEMORY_FINISH_EDITS = builtin(
    name="memory_finish_edits",
    description=(
        "Say that you have finished editing memory. Call it last, when every block is as it "
        "should be: it ends your turn."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters([]),
)

MEMORY_INSERT = builtin(
    name="memory_insert",
    description=(
        "Insert text into a memory block after a given line, or at its end. Use it to note"
        " something new without changing the existing text. Never write line numbers."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "new_str"],
        label=_LABEL,
        new_str=text("The text to insert."),
        insert_line=integer(_LINE),
    ),
)

MEMORY_REPLACE = builtin(
    name="memory_replace",
    description=(
        "Replace one passage of a memory block. The old text must occur exactly once in the "
        "block; include more of the text around it if it does not. Never write line numbers."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "old_str", "new_str"],
        label=_LABEL,
        old_str=text("The text to replace, exactly as in the block, with its whitespace."),
        new_str=text("The replacement; an empty string deletes the text."),
    ),
)

MEMORY_RETHINK = builtin(
    name="memory_rethink",
    description=(
        "Rewrite a whole memory block, to merge, reorganise or shorten its content."
        " For small changes use memory_replace or memory_insert."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "new_memory"],
        label=_LABEL,
        new_memory=text(
            "The new text of the block, including everything to keep from the old text."
        ),
    ),
)

MEMORY_TOOLS = (
    CORE_MEMORY_APPEND,
    CORE_MEMORY_REPLACE,
    MEMORY,
    MEMORY_APPLY_PATCH,
    MEMORY_FINISH_EDITS,
    MEMORY_INSERT,
    MEMORY_REPLACE,
    MEMORY_RETHINK,
)


def _replace(arguments: Arguments) -> dict[str, Any]:
    return {
        "replace": pb.ReplaceEdit(
            old_content=arguments["old_content"], new_content=arguments["new_content"]
        )
    }


def _patch(arguments: Arguments) -> dict[str, Any]:
    return {"patch": pb.PatchEdit(patch=arguments["patch"])}


def _insert_text(arguments: Arguments) -> dict[str, Any]:
    return block_edits.insert({**arguments, "new_str": arguments["insert_text"]})


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
    "core_memory_append": block_edits.append,
    "core_memory_replace": _replace,
    "memory_apply_patch": _patch,
    "memory_insert": block_edits.insert,
    "memory_replace": block_edits.string_replace,
    "memory_rethink": block_edits.rethink,
    RETHINK_USER_MEMORY: block_edits.rethink,
}
_FINISHING = frozenset({"memory_finish_edits", FINISH_RETHINKING_MEMORY})
_COMMANDS: Mapping[str, _Edit] = {
    "create": block_edits.create,
    "str_replace": block_edits.string_replace,
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

    async def run(self, call: ToolCall, arguments: Arguments, caller: CallingAgent) -> Output:
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
            f" text, and keep what they wrote unless it is wrong:\n{text}",
            # The prompt may show an earlier text, without these labels.
            taint=taint_from_proto(response.block.taint),
        )


def _request(call: ToolCall, arguments: Arguments, caller: CallingAgent) -> pb.EditBlockRequest:
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
