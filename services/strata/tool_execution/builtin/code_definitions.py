"""Definitions of the tools that run code."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, parameters, text
from strata.tool_execution.domain.tools import ToolType

RUN_CODE = builtin(
    name="run_code",
    description=(
        "Run Python or JavaScript. Use it for arithmetic, dates, counting, sorting, parsing and"
        " whatever else is better computed than guessed. Returns what the code printed and the"
        " value of its last expression. Every call starts afresh: variables and files of earlier"
        " calls are gone, so put all that is needed into the code. There is the standard library"
        " of the language, a scratch folder (the working directory), no network and no other"
        " packages; a call may take 30 seconds."
    ),
    kind=ToolType.BUILTIN,
    parameters=parameters(
        ["code"],
        code=text("A whole script. In Python `await` may stand outside of functions."),
        language={
            "type": "string",
            "enum": ["python", "javascript"],
            "description": "The language of the code (default python). JavaScript needs Node on"
            " the server, and says so where there is none.",
        },
    ),
)

RUN_CODE_WITH_TOOLS = builtin(
    name="run_code_with_tools",
    description=(
        "Run Python code that calls your other tools: use it where many calls, or calls that"
        " depend on each other, are better written as a loop than made one by one. Every other"
        " tool of yours is a function of its name, with the tool's parameters as arguments, by"
        " name or in order: `archival_memory_search(query='tea')`. It returns what the tool"
        " returns (dicts, lists and text, not awaitable) and raises ToolError, with the message,"
        " if the tool fails or may not be called. `call_tool('a-name', **arguments)` calls a tool"
        " whose name is no Python name. The rules for your tools hold for these calls too. Tools"
        " that need a person's approval, that end the turn, or whose result decides what may be"
        " called next, cannot be called from code; nor can this one. At most 50 calls. You are"
        " shown only what the code prints and the value of its last expression, so print what you"
        " need. What the calls have done stays done if the code fails later. Otherwise it is as in"
        " run_code: the standard library, no network, nothing left of it afterwards."
    ),
    kind=ToolType.BUILTIN,
    parameters=parameters(
        ["code"],
        code=text("A whole Python script. `await` may stand outside of functions."),
    ),
)

CODE_TOOLS = (RUN_CODE, RUN_CODE_WITH_TOOLS)
