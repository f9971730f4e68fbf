"""Executor of ``send_message``."""

from __future__ import annotations

from typing import Any

from strata.shared.tool_catalogue import SENT_MESSAGE
from strata.tool_execution.domain.tools import Call, Caller, Output


class SendMessage:
    """Runs ``send_message``, which has no effect: clients show the argument of the call."""

    names = frozenset({"send_message"})

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Returns the fixed return of a sent message."""
        return Output(SENT_MESSAGE)
