"""Definitions of the tools that use recall and archival memory."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, date, integer, parameters, text, texts
from strata.tool_execution.domain.tools import ToolType

CONVERSATION_SEARCH = builtin(
    name="conversation_search",
    description=(
        "Search everything that was said in earlier conversations with this user, also what is"
        " no longer in view. Use it when the user refers to something you cannot see. Returns"
        " the best matching messages with their time and speaker."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["query"],
        query=text('What to look for. Words in "quotes" must stand together.'),
        roles={
            "type": "array",
            "items": {"type": "string", "enum": ["assistant", "user", "tool"]},
            "description": "Only messages of these speakers.",
        },
        limit=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_date=date("Only from this date on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        end_date=date("Only up to this date, a whole day included: the same forms."),
    ),
)

ARCHIVAL_MEMORY_INSERT = builtin(
    name="archival_memory_insert",
    description=(
        "Put a fact away in archival memory, which has no size limit and is searched by meaning."
        " Write one self-contained statement, with names and dates spelled out. Use it for"
        " details that need not be in view all the time. Says so if the same, or nearly the same,"
        " is there already."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["content"],
        content=text("The fact to keep."),
        tags=texts("Short labels to find it by."),
    ),
)

ARCHIVAL_MEMORY_SEARCH = builtin(
    name="archival_memory_search",
    description=(
        "Search archival memory by meaning and by words. Use it when memory blocks and the"
        " messages in view do not hold what you need."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        ["query"],
        query=text("A question or words."),
        tags=texts("Only facts with these tags."),
        tag_match_mode={
            "type": "string",
            "enum": ["any", "all"],
            "description": "Whether one tag is enough (any, the default) or all must match.",
        },
        top_k=integer("How many results to return (default 5).", minimum=1, maximum=100),
        start_datetime=date("Only facts stored from this time on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        end_datetime=date("Only facts stored up to this time, a whole day included."),
    ),
)

EXPAND_SUMMARY = builtin(
    name="expand_summary",
    description=(
        "Read the messages that the summary at the top of this conversation stands for, word for"
        " word and in order. Use it when the summary mentions something but leaves out the details"
        " you need; to find one thing among many, use conversation_search. Messages are numbered;"
        " the return names the number to go on from."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        [],
        first_number=integer("Start with the message of this number.", minimum=0),
        start_date=date("Start with what was said from then on: YYYY-MM-DD or YYYY-MM-DDTHH:MM."),
        limit=integer("How many messages to return at most (default 20).", minimum=1, maximum=100),
    ),
)

# Ten years in minutes. The bound keeps the resulting time within the range of a timestamp.
_MINUTES = {"minimum": 0, "maximum": 5_256_000}

SEARCH_MEMORY = builtin(
    name="search_memory",
    description=(
        "Search earlier conversation and archival memory, only when the user refers to something"
        " that is neither in view nor in your memory blocks. What the user said last is the query"
        " by itself. Leave the arguments out unless they make the search clearly better."
    ),
    kind=ToolType.CORE,
    parameters=parameters(
        [],
        convo_keyword_queries={
            **texts("Names, ids or phrases to look for as well in earlier conversation."),
            "maxItems": 5,
        },
        start_minutes_ago=integer("Only what is at most so many minutes old.", **_MINUTES),
        end_minutes_ago=integer("Only what is at least so many minutes old.", **_MINUTES),
    ),
)

SEARCH_TOOLS = (
    ARCHIVAL_MEMORY_INSERT,
    ARCHIVAL_MEMORY_SEARCH,
    CONVERSATION_SEARCH,
    EXPAND_SUMMARY,
    SEARCH_MEMORY,
)
