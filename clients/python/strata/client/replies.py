"""The reply of an agent as text, from the events of a run."""

from __future__ import annotations

from strata.api.common.v1.message_pb2 import ROLE_ASSISTANT, Message
from strata.api.common.v1.run_event_pb2 import (
    STOP_REASON_CANCELLED,
    STOP_REASON_REQUIRES_APPROVAL,
    RunEvent,
    RunFinished,
    StopReason,
)

_WITHOUT_REPLY = frozenset({STOP_REASON_CANCELLED, STOP_REASON_REQUIRES_APPROVAL})


class RunFailedError(Exception):
    """A run ended without a reply: it failed, was cancelled, or waits for an approval.

    Attributes:
        run_id: The run.
        finished: How it ended; ``error.reason`` names the cause of a failure.
    """

    def __init__(self, run_id: str, finished: RunFinished) -> None:
        self.run_id = run_id
        self.finished = finished
        ended = f"The run ended with {StopReason.Name(finished.stop_reason)}."
        super().__init__(finished.error.message or ended)


class ReplyCollector:
    """Collects the texts of an agent from the events of runs that follow each other."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._end: RunEvent | None = None

    def add(self, event: RunEvent) -> None:
        """Takes the next event."""
        match event.WhichOneof("event"):
            case "message_stored" if event.message_stored.message.role == ROLE_ASSISTANT:
                self._texts.append(text_of(event.message_stored.message))
            case "run_finished":
                self._end = event
            case _:
                pass

    def reply(self) -> str:
        """Returns the texts, joined by empty lines.

        Raises:
            RunFailedError: The last run has no reply.
        """
        if self._end is not None:
            finished = self._end.run_finished
            if finished.HasField("error") or finished.stop_reason in _WITHOUT_REPLY:
                raise RunFailedError(self._end.run_id, finished)
        return "\n\n".join(filter(None, self._texts))


def text_of(message: Message) -> str:
    """Returns the text of a message, without reasoning and calls."""
    return "".join(part.text.text for part in message.parts if part.HasField("text"))
