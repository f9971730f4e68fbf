"""The tool that talks to the user."""

from __future__ import annotations

from typing import Any

from strata.shared.tool_catalogue import SENT_MESSAGE
from strata.tool_execution.domain.tools import Call, Caller, Output


class SendMessage:
    """Runs ``send_message``: it has no effect, since clients show the argument of the call."""

    names = frozenset({"send_message"})

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Returns the constant that stands for a message sent."""
        return Output(SENT_MESSAGE)
