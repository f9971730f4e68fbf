"""The tool that runs code (blueprint §13.1, built-in tools)."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import parameters, text
from strata.tool_execution.domain.tools import Effect, Tool, ToolType

RUN_CODE = Tool(
    name="run_code",
    description=(
        "Run Python or JavaScript. Use it for arithmetic, dates, counting, sorting, parsing and"
        " whatever else is better computed than guessed. Returns what the code printed and the"
        " value of its last expression. Every call starts afresh: variables and files of earlier"
        " calls are gone, so put all that is needed into the code. There is the standard library"
        " of the language, a scratch folder (the working directory), no network and no other"
        " packages; a call may take 30 seconds."
    ),
    type=ToolType.BUILTIN,
    # Nothing of it outlives the call, so that it can be made again.
    effect=Effect.READ_ONLY,
    parallel=True,
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

CODE_TOOLS = (RUN_CODE,)
