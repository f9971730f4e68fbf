"""Data shown with the stored messages of a conversation: returns, edits, open approvals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2, run_event_pb2

_ROLES = {
    message_pb2.ROLE_SYSTEM: "system",
    message_pb2.ROLE_USER: "user",
    message_pb2.ROLE_ASSISTANT: "assistant",
    message_pb2.ROLE_TOOL: "tool",
    message_pb2.ROLE_APPROVAL: "approval",
    message_pb2.ROLE_SUMMARY: "summary",
}
_STATUSES = {
    message_pb2.TOOL_STATUS_OK: "done",
    message_pb2.TOOL_STATUS_FAILED: "failed",
    message_pb2.TOOL_STATUS_UNKNOWN: "outcome unknown",
}


@dataclass
class Transcript:
    """Facts about the tool calls and approvals of a conversation, by their ids.

    Attributes:
        returns: Returns of tool calls.
        edits: Changes of memory blocks that a call made.
        open_approvals: Unanswered requests for approval.
        running: Calls that have begun and have not returned.
        in_calls: Returns whose calls are among the shown messages.
    """

    returns: dict[str, message_pb2.ToolReturnPart] = field(default_factory=dict)
    edits: dict[str, Sequence[run_event_pb2.MemoryEdit]] = field(default_factory=dict)
    open_approvals: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    in_calls: set[str] = field(default_factory=set)

    def add(self, messages: Iterable[message_pb2.Message]) -> None:
        """Adds the calls and the returns in messages."""
        for message in messages:
            for part in message.parts:
                if part.HasField("tool_return"):
                    self.returns[part.tool_return.tool_call_id] = part.tool_return
                elif part.HasField("tool_call"):
                    self.in_calls.add(part.tool_call.tool_call_id)

    def finish(self, finished: run_event_pb2.ToolFinished) -> None:
        """Adds the end of a call."""
        call_id = finished.tool_return.tool_call_id
        self.running.discard(call_id)
        self.returns[call_id] = finished.tool_return
        self.edits[call_id] = finished.memory_edits

    def state(self, call_id: str) -> str:
        """Returns how far a call is, in words; empty if that is not known."""
        tool_return = self.returns.get(call_id)
        if tool_return is not None:
            return _STATUSES.get(tool_return.status, "done")
        return "running" if call_id in self.running else ""


def role_name(message: message_pb2.Message) -> str:
    """Returns the name of a message's author."""
    return _ROLES.get(message.role, "other")
