"""Definitions of the tools that edit memory blocks."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, integer, parameters, text
from strata.tool_execution.domain.memory_command import COMMANDS, problem_of
from strata.tool_execution.domain.tools import ToolType

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
        "Replace a text in a memory block, wherever it stands there. To delete it, put an empty"
        " string in its place."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "old_content", "new_content"],
        label=_LABEL,
        old_content=text("The text to replace, exactly as it stands in the block."),
        new_content=text("The text to put in its place."),
    ),
)

MEMORY = builtin(
    name="memory",
    description=(
        "Look after your memory blocks. The command says what is done:\n"
        "create: make a block named by path, with file_text in it and a description of what"
        " belongs there.\n"
        "str_replace: replace old_str, which must stand in the block exactly once, by new_str.\n"
        "insert: put insert_text after line insert_line, or at the end.\n"
        "delete: take the block at path out of your memory.\n"
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
        old_str=text("str_replace: the text to replace, exactly as it stands."),
        new_str=text("str_replace: the text to put in its place; an empty string deletes."),
        insert_line=integer(f"insert: {_LINE[0].lower()}{_LINE[1:]}"),
        insert_text=text("insert: the text to insert."),
        old_path=text("rename: label of the block as it is."),
        new_path=text("rename: label that it is to have."),
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
        "Say that you are done with memory for now. Call it last, when every block reads as it"
        " should: it ends your turn."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters([]),
)

MEMORY_INSERT = builtin(
    name="memory_insert",
    description=(
        "Insert text into a memory block after a given line, or at its end. Use it to note"
        " something new without touching what is there. Never write line numbers."
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
        "Replace one passage of a memory block. The old text must stand in the block exactly"
        " once; take in more of its surroundings if it does not. Never write line numbers."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "old_str", "new_str"],
        label=_LABEL,
        old_str=text("The text to replace, exactly as it stands, with its whitespace."),
        new_str=text("The text to put in its place; an empty string deletes."),
    ),
)

MEMORY_RETHINK = builtin(
    name="memory_rethink",
    description=(
        "Rewrite a whole memory block, to bring together, reorganise or shorten what it holds."
        " For small changes use memory_replace or memory_insert."
    ),
    kind=ToolType.MEMORY,
    parameters=parameters(
        ["label", "new_memory"],
        label=_LABEL,
        new_memory=text("The new text of the block, with all that shall be kept of the old."),
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
