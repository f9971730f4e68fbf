"""Collects the reply of a run so far from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.api.common.v1 import message_pb2, run_event_pb2

_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Appended:
    """The next characters of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """The whole text, which replaces the text that was sent before."""

    text: str


Change = Appended | Replaced


@dataclass
class RunReply:
    """The reply of a run: the texts of its steps, joined by an empty line.

    Attributes:
        approval: The tool calls for which the run waits.
        end: The event with the end of the run; None while it is under way.
    """

    approval: message_pb2.ApprovalRequestPart | None = None
    end: run_event_pb2.RunEvent | None = None
    _earlier: str = ""
    _message_id: str = ""
    _pieces: list[str] = field(default_factory=list)
    _written: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """The whole text."""
        return self._earlier + self._separator + "".join(self._pieces)

    def apply(self, event: run_event_pb2.RunEvent) -> Change | None:
        """Applies an event and returns how the text has changed; None if it has not."""
        match event.WhichOneof("event"):
            case "step_started":
                self._written.add(event.step_started.message_id)
            case "text_delta":
                return self._append(event.text_delta.message_id, event.text_delta.text)
            case "text_snapshot":
                return self._become(event.text_snapshot.message_id, event.text_snapshot.text)
            case "step_restarted":
                # If no text of the step has come yet, the current message is an earlier reply.
                if event.step_restarted.message_id == self._message_id:
                    return self._become(self._message_id, "")
            case "message_stored":
                message = event.message_stored.message
                # A run that continues after an approval stores the reply that asked for it once
                # more; the run before it has given that one.
                if message.id in self._written:
                    text = "".join(part.text.text for part in message.parts)
                    return self._become(message.id, text)
            case "approval_requested":
                self.approval = event.approval_requested.approval
            case "run_finished":
                self.end = event
        return None

    @property
    def _separator(self) -> str:
        return _SEPARATOR if self._earlier and self._pieces else ""

    def _append(self, message_id: str, text: str) -> Change | None:
        self._turn_to(message_id)
        if not text:
            return None
        first = not self._pieces
        self._pieces.append(text)
        return Appended(self._separator + text if first else text)

    def _become(self, message_id: str, text: str) -> Change | None:
        self._turn_to(message_id)
        before = "".join(self._pieces)
        if text.startswith(before):
            return self._append(message_id, text[len(before) :])
        self._pieces = [text] if text else []
        return Replaced(self.text)

    def _turn_to(self, message_id: str) -> None:
        if message_id != self._message_id:
            self._earlier = self.text
            self._message_id, self._pieces = message_id, []
