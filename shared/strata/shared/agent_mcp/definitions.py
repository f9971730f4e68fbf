"""Definitions of the tools that the MCP server offers.

A tool that agents have, too, has the same name and arguments here; a test compares them with the
registry. Only the descriptions differ: for an MCP client it is the memory of another agent.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types

from strata.shared.tool_schemas import date, integer, parameters, text, texts

_LABEL = text("Label of the memory block.")
_DATES = "YYYY-MM-DD or YYYY-MM-DDTHH:MM"
_REVISION = (
    "The revision of the block that you read. With it, an edit that conflicts with a newer change"
    " of someone else is refused, and the error has the present text."
)


def _tool(
    name: str,
    title: str,
    description: str,
    required: list[str],
    annotations: types.ToolAnnotations,
    /,
    **properties: dict[str, Any],
) -> types.Tool:
    return types.Tool(
        name=name,
        title=title,
        description=description,
        input_schema=parameters(required, **properties),
        annotations=annotations,
    )


_READS = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)


def _writes(*, destructive: bool, idempotent: bool) -> types.ToolAnnotations:
    return types.ToolAnnotations(
        read_only_hint=False,
        destructive_hint=destructive,
        idempotent_hint=idempotent,
        open_world_hint=False,
    )


READING = (
    _tool(
        "list_memory_blocks",
        "List memory blocks",
        "List the memory blocks of the agent, the texts that it always sees: label, what belongs"
        " there, revision, length and limit in characters, and whether the block is read-only.",
        [],
        _READS,
    ),
    _tool(
        "read_memory_block",
        "Read a memory block",
        "Read the text of one memory block, with its revision.",
        ["label"],
        _READS,
        label=_LABEL,
    ),
    _tool(
        "view_memory",
        "View the whole memory",
        "See the memory of the agent as its own model sees it: the text of all memory blocks, its"
        " folders, and what it shows of the files that are open.",
        [],
        _READS,
    ),
    _tool(
        "conversation_search",
        "Search conversations",
        "Search the messages of the agent's conversations. Returns the best matching messages with"
        " their time and speaker.",
        ["query"],
        _READS,
        query=text('What to look for. Words in "quotes" must be adjacent.'),
        roles={
            "type": "array",
            "items": {"type": "string", "enum": ["assistant", "user", "tool"]},
            "description": "Only messages of these speakers.",
        },
        limit=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_date=date(f"Only from this date on: {_DATES}."),
        end_date=date("Only up to this date, including the whole day; same format."),
    ),
    _tool(
        "archival_memory_search",
        "Search archival memory",
        "Search the agent's archival memory by meaning and by words: facts that it does not"
        " always see.",
        ["query"],
        _READS,
        query=text("A question or words."),
        tags=texts("Only facts with these tags."),
        tag_match_mode={
            "type": "string",
            "enum": ["any", "all"],
            "description": "Whether one tag is enough (any, the default) or all must match.",
        },
        top_k=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_datetime=date(f"Only facts stored from this time on: {_DATES}."),
        end_datetime=date("Only facts stored up to this time; a date includes its whole day."),
    ),
    _tool(
        "grep_files",
        "Search files for a pattern",
        "Search the text of all files of the agent's folders by a regular expression, line by"
        " line, ignoring case. Returns 20 matches at a time with their lines.",
        ["pattern"],
        _READS,
        pattern=text("Regular expression (RE2: no backreferences, no lookaround)."),
        include=text('Only files whose name matches: a glob such as "*.py", or an expression.'),
        context_lines=integer("Lines to show before and after a match (default 1)."),
        offset=integer("Matches to skip, to see the next page (default 0)."),
    ),
    _tool(
        "semantic_search_files",
        "Search files by meaning",
        "Search all files of the agent's folders by meaning. Returns the passages that answer a"
        " question best, each with its file and lines.",
        ["query"],
        _READS,
        query=text("A question, or what the passage is about."),
        limit=integer("How many passages to return (default 5).", minimum=1, maximum=50),
    ),
)

CHANGING = (
    _tool(
        "core_memory_append",
        "Append to a memory block",
        "Add a line of text at the end of a memory block.",
        ["label", "content"],
        _writes(destructive=False, idempotent=False),
        label=_LABEL,
        content=text("The text to add."),
    ),
    _tool(
        "memory_insert",
        "Insert into a memory block",
        "Insert text into a memory block after a given line, or at its end. Never write line"
        " numbers into the text.",
        ["label", "new_str"],
        _writes(destructive=False, idempotent=False),
        label=_LABEL,
        new_str=text("The text to insert."),
        insert_line=integer("After which line: 0 for the beginning, -1 (the default) for the end."),
        revision=integer(_REVISION, minimum=1),
    ),
    _tool(
        "memory_replace",
        "Replace a text in a memory block",
        "Replace one passage of a memory block. The old text must occur exactly once in the "
        "block; include more of the text around it if it does not.",
        ["label", "old_str", "new_str"],
        _writes(destructive=True, idempotent=False),
        label=_LABEL,
        old_str=text("The text to replace, exactly as in the block, with its whitespace."),
        new_str=text("The replacement; an empty string deletes the text."),
        revision=integer(_REVISION, minimum=1),
    ),
    _tool(
        "memory_rethink",
        "Rewrite a memory block",
        "Rewrite a whole memory block. Changes by others since you read it are merged with yours;"
        " if they overlap, nothing is changed and the error has the present text. For small"
        " changes use memory_replace or memory_insert.",
        ["label", "new_memory", "revision"],
        _writes(destructive=True, idempotent=True),
        label=_LABEL,
        new_memory=text(
            "The new text of the block, including everything to keep from the old text."
        ),
        revision=integer("The revision of the block that you read.", minimum=1),
    ),
    _tool(
        "memory_create",
        "Create a memory block",
        "Make a new memory block, which the agent will always see. Use it for a subject of its"
        " own that no block is for.",
        ["label", "description"],
        _writes(destructive=False, idempotent=False),
        label=text("Its label: letters, digits, '_', '-' and '.', beginning with a letter."),
        description=text("What belongs in the block and how the agent is to use it."),
        file_text=text("The text of the block."),
    ),
    _tool(
        "archival_memory_insert",
        "Store in archival memory",
        "Store a fact in the agent's archival memory, which has no size limit and is searched"
        " by meaning. Write one self-contained statement, with names and dates spelled out. Says "
        "so if the same fact, or nearly the same, is stored already.",
        ["content"],
        _writes(destructive=False, idempotent=True),
        content=text("The fact to keep."),
        tags=texts("Short labels to find it by."),
    ),
)
