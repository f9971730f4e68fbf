"""Definitions of the tools of voice memory agents, in the order of their two phases."""

from __future__ import annotations

from strata.shared.tool_catalogue import (
    FINISH_RETHINKING_MEMORY,
    RETHINK_USER_MEMORY,
    STORE_MEMORIES,
)
from strata.tool_execution.builtin.schemas import builtin, integer, parameters, text
from strata.tool_execution.domain.tools import ToolType

MAX_MEMORIES = 100
MAX_CONTEXT_CHARS = 1_500

STORE = builtin(
    name=STORE_MEMORIES,
    description=(
        "Archive the lines of the transcript that are marked (Older), in chunks of one topic,"
        " instruction or preference each. Each chunk is stored with its lines, word for word. Call"
        " it once, first, with all chunks; with an empty list if nothing is worth keeping."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters(
        ["memories"],
        memories={
            "type": "array",
            "items": parameters(
                ["start_index", "end_index", "context"],
                start_index=integer("Index of the first line of the chunk.", minimum=0),
                end_index=integer("Index of its last line.", minimum=0),
                context={
                    **text("Why the chunk matters, in one or two sentences."),
                    "maxLength": MAX_CONTEXT_CHARS,
                },
            ),
            "maxItems": MAX_MEMORIES,
            "description": "The chunks, in order.",
        },
    ),
)

RETHINK = builtin(
    name=RETHINK_USER_MEMORY,
    description=(
        'Rewrite the memory block "human", which holds what is known about the user. It can be'
        " called several times; each call replaces the whole block."
    ),
    kind=ToolType.SLEEPTIME,
    parameters=parameters(
        ["new_memory"],
        new_memory=text("The complete new text of the block, with all that is kept of the old."),
    ),
)

FINISH = builtin(
    name=FINISH_RETHINKING_MEMORY,
    description='Say that the memory block "human" is complete. Call it last: it ends your turn.',
    kind=ToolType.SLEEPTIME,
    parameters=parameters([]),
)

VOICE_MEMORY_TOOLS = (STORE, RETHINK, FINISH)
