"""Definition of the tool that sends a message to the user."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, parameters, text
from strata.tool_execution.domain.tools import ToolType

SEND_MESSAGE = builtin(
    name="send_message",
    description="Send a message to the user, who reads the text of the argument.",
    kind=ToolType.CORE,
    parameters=parameters(["message"], message=text("The text of the message.")),
)

TALK_TOOLS = (SEND_MESSAGE,)
