"""Definitions of the tools that read attached files."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, integer, parameters, text
from strata.tool_execution.domain.tools import ToolType

OPEN_FILES = builtin(
    name="open_files",
    description=(
        "Open files of your folders, whole or a range of lines, so that you see their text in"
        " your instructions from now on. Files that you open anew are shown in the new range. Only"
        " so many files can be open at once: beyond that the ones you used least recently are"
        " closed. Open what the task needs, and as little of a long file as will do."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["file_requests"],
        file_requests={
            "type": "array",
            "description": "The files to open.",
            "items": parameters(
                ["file_name"],
                file_name=text("Name as it is listed: FOLDER/FILE."),
                offset=integer(
                    "How many lines to leave out before the range; 0, the default, starts with"
                    " the first line."
                ),
                length=integer("How many lines to show; leave it out for all that fit."),
            ),
        },
        close_all_others={
            "type": "boolean",
            "description": "Close every other open file (default false).",
        },
    ),
)

GREP_FILES = builtin(
    name="grep_files",
    description=(
        "Search the text of all files of your folders by a regular expression, line by line,"
        " upper and lower case alike. Returns 20 matches at a time with their lines. Use it for"
        " exact words, names and numbers; for questions use semantic_search_files."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["pattern"],
        pattern=text("Regular expression (RE2: no backreferences, no lookaround)."),
        include=text('Only files whose name matches: a glob such as "*.py", or an expression.'),
        context_lines=integer("Lines to show before and after a match (default 1)."),
        offset=integer("Matches to pass over, to see the next page (default 0)."),
    ),
)

SEMANTIC_SEARCH_FILES = builtin(
    name="semantic_search_files",
    description=(
        "Search all files of your folders by meaning. Returns the passages that answer a question"
        " best, each with its file and lines. Use it when you do not know the exact words."
    ),
    kind=ToolType.FILES,
    parameters=parameters(
        ["query"],
        query=text("A question, or what the passage is about."),
        limit=integer("How many passages to return (default 5).", minimum=1, maximum=50),
    ),
)

FILE_TOOLS = (GREP_FILES, OPEN_FILES, SEMANTIC_SEARCH_FILES)
