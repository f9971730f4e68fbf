"""Names, descriptions and schemas of the built-in tools (blueprint §13)."""

from __future__ import annotations

from typing import Any

from strata.tool_execution.domain.tools import Effect, Tool, ToolType


def _schema(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_LABEL = _text("Label of the memory block.")
_TAGS = {"type": "array", "items": {"type": "string"}}

CONVERSATION_SEARCH = Tool(
    name="conversation_search",
    description=(
        "Search everything that was said in earlier conversations with this user, also what is"
        " no longer in view. Use it when the user refers to something you cannot see. Returns"
        " the best matching messages with their time and speaker."
    ),
    type=ToolType.CORE,
    effect=Effect.READ_ONLY,
    parallel=True,
    parameters=_schema(
        ["query"],
        query=_text('What to look for. Words in "quotes" must stand together.'),
        roles={
            "type": "array",
            "items": {"type": "string", "enum": ["assistant", "user", "tool"]},
            "description": "Only messages of these speakers.",
        },
        limit={
            "type": "integer",
            "minimum": 1,
            "maximum": 100,
            "description": "How many results to return (default 5).",
        },
        start_date=_text("Only from this date on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        end_date=_text("Only up to this date, a whole day included: the same forms."),
    ),
)

ARCHIVAL_MEMORY_INSERT = Tool(
    name="archival_memory_insert",
    description=(
        "Put a fact away in archival memory, which has no size limit and is searched by meaning."
        " Write one self-contained statement, with names and dates spelled out. Use it for"
        " details that need not be in view all the time."
    ),
    type=ToolType.CORE,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(
        ["content"],
        content=_text("The fact to keep."),
        tags={**_TAGS, "description": "Short labels to find it by."},
    ),
)

ARCHIVAL_MEMORY_SEARCH = Tool(
    name="archival_memory_search",
    description=(
        "Search archival memory by meaning and by words. Use it when memory blocks and the"
        " messages in view do not hold what you need."
    ),
    type=ToolType.CORE,
    effect=Effect.READ_ONLY,
    parallel=True,
    parameters=_schema(
        ["query"],
        query=_text("A question or words."),
        tags={**_TAGS, "description": "Only facts with these tags."},
        tag_match_mode={
            "type": "string",
            "enum": ["any", "all"],
            "description": "Whether one tag is enough (any, the default) or all must match.",
        },
        top_k={
            "type": "integer",
            "minimum": 1,
            "maximum": 100,
            "description": "How many results to return (default 5).",
        },
        start_datetime=_text(
            "Only facts stored from this time on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."
        ),
        end_datetime=_text("Only facts stored up to this time, a whole day included."),
    ),
)

CORE_MEMORY_APPEND = Tool(
    name="core_memory_append",
    description="Add a line of text at the end of a memory block.",
    type=ToolType.MEMORY,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(["label", "content"], label=_LABEL, content=_text("The text to add.")),
)

CORE_MEMORY_REPLACE = Tool(
    name="core_memory_replace",
    description=(
        "Replace a text in a memory block, wherever it stands there. To delete it, put an empty"
        " string in its place."
    ),
    type=ToolType.MEMORY,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(
        ["label", "old_content", "new_content"],
        label=_LABEL,
        old_content=_text("The text to replace, exactly as it stands in the block."),
        new_content=_text("The text to put in its place."),
    ),
)

MEMORY_REPLACE = Tool(
    name="memory_replace",
    description=(
        "Replace one passage of a memory block. The old text must stand in the block exactly"
        " once; take in more of its surroundings if it does not. Never write line numbers."
    ),
    type=ToolType.MEMORY,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(
        ["label", "old_str", "new_str"],
        label=_LABEL,
        old_str=_text("The text to replace, exactly as it stands, with its whitespace."),
        new_str=_text("The text to put in its place; an empty string deletes."),
    ),
)

MEMORY_INSERT = Tool(
    name="memory_insert",
    description=(
        "Insert text into a memory block after a given line, or at its end. Use it to note"
        " something new without touching what is there. Never write line numbers."
    ),
    type=ToolType.MEMORY,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(
        ["label", "new_str"],
        label=_LABEL,
        new_str=_text("The text to insert."),
        insert_line={
            "type": "integer",
            "description": "After which line: 0 for the beginning, -1 (the default) for the end.",
        },
    ),
)

MEMORY_RETHINK = Tool(
    name="memory_rethink",
    description=(
        "Rewrite a whole memory block, to bring together, reorganise or shorten what it holds."
        " For small changes use memory_replace or memory_insert."
    ),
    type=ToolType.MEMORY,
    effect=Effect.IDEMPOTENT,
    parameters=_schema(
        ["label", "new_memory"],
        label=_LABEL,
        new_memory=_text("The new text of the block, with all that shall be kept of the old."),
    ),
)

BUILTIN_TOOLS = {
    tool.name: tool
    for tool in (
        ARCHIVAL_MEMORY_INSERT,
        ARCHIVAL_MEMORY_SEARCH,
        CONVERSATION_SEARCH,
        CORE_MEMORY_APPEND,
        CORE_MEMORY_REPLACE,
        MEMORY_INSERT,
        MEMORY_REPLACE,
        MEMORY_RETHINK,
    )
}
