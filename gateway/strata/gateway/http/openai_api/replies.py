"""The reply of an agent, from the events of its run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.gateway.http.openai_api.errors import ApiError, RunFailedError

_SEPARATOR = "\n\n"
_FINISH_REASONS = {
    run_event_pb2.STOP_REASON_END_TURN: "stop",
    run_event_pb2.STOP_REASON_TOOL_RULE: "stop",
    run_event_pb2.STOP_REASON_MAX_STEPS: "length",
    run_event_pb2.STOP_REASON_MAX_TOKENS_EXCEEDED: "length",
}


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class ClientCalls:
    """Calls of tools that the client runs."""

    calls: Sequence[message_pb2.ToolCallPart]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the run.

    Attributes:
        reason: ``finish_reason`` of the reply.
        usage: Tokens of all steps.
    """

    reason: str
    usage: usage_pb2.Usage


Piece = Text | ClientCalls | Finished


@dataclass(frozen=True, slots=True)
class Ignored:
    """The parts of a request that have no effect.

    Attributes:
        tools: The tools that it offers and the agent does not have.
        parameters: Parameters, such as ``temperature``.
    """

    tools: Sequence[str] = ()
    parameters: Sequence[str] = ()

    def fields(self) -> dict[str, list[str]]:
        """Returns the fields of the reply that name them; none if everything has an effect."""
        named = {"ignored_tools": self.tools, "ignored_parameters": self.parameters}
        return {name: list(values) for name, values in named.items() if values}


@dataclass
class ReplyText:
    """The text of a reply as sent to a client; sent text cannot be withdrawn.

    A model that fails in the middle of a reply is asked again. What was sent of the first attempt
    is skipped in the second one as long as both agree.
    """

    _sent_any: bool = False
    _message_id: str = ""
    _sent: str = ""
    _text: str = ""
    _restarted: bool = field(default=False)

    def add(self, message_id: str, text: str) -> str:
        """Returns what to send for the next characters of a message."""
        self._turn_to(message_id)
        self._text += text
        return self._unsent()

    def replace(self, message_id: str, text: str) -> str:
        """Returns what to send when a message is known from its beginning."""
        self._turn_to(message_id)
        self._text = text
        return self._unsent()

    def complete(self, message_id: str, text: str) -> str:
        """Returns what to send of a message when it is stored.

        Raises:
            ApiError: More was sent than is stored.
        """
        piece = self.replace(message_id, text)
        if len(self._sent) > len(text):
            raise _diverged()
        return piece

    def restart(self, message_id: str) -> None:
        """Notes that a message is written again, perhaps with another id.

        Args:
            message_id: The message. A step can be repeated before any text of it has come; then the
                current message is an earlier reply, which stays.
        """
        if message_id == self._message_id:
            self._text = ""
            self._restarted = True

    @property
    def is_void(self) -> bool:
        """Whether the text that was sent last is void, and no other has come in its place."""
        return self._restarted

    def _turn_to(self, message_id: str) -> None:
        if message_id != self._message_id:
            if not self._restarted:
                self._sent = ""
            self._message_id = message_id
            self._text = ""
        self._restarted = False

    def _unsent(self) -> str:
        if self._sent.startswith(self._text):
            return ""
        if not self._text.startswith(self._sent):
            raise _diverged()
        piece = self._text[len(self._sent) :]
        if self._sent_any and not self._sent:
            piece = _SEPARATOR + piece
        self._sent = self._text
        self._sent_any = True
        return piece


async def pieces_of(events: AsyncIterator[run_event_pb2.RunEvent]) -> AsyncIterator[Piece]:
    """Returns the reply of a run, piece by piece; the last piece is `Finished`.

    Raises:
        RunFailedError: The run failed, was cancelled or waits for a person.
        ApiError: The model was asked again and gave another reply.
    """
    text = ReplyText()
    written: set[str] = set()
    async for event in events:
        match event.WhichOneof("event"):
            case "step_started":
                written.add(event.step_started.message_id)
                continue
            case "text_delta":
                piece = text.add(event.text_delta.message_id, event.text_delta.text)
            case "text_snapshot":
                piece = text.replace(event.text_snapshot.message_id, event.text_snapshot.text)
            case "step_restarted":
                text.restart(event.step_restarted.message_id)
                continue
            case "message_stored":
                message = event.message_stored.message
                # A run that continues with tool results stores the reply with the calls again; the
                # run before it has already returned that reply.
                if message.id not in written:
                    continue
                stored = "".join(part.text.text for part in message.parts)
                piece = text.complete(message.id, stored) if stored or text.is_void else ""
            case "approval_requested":
                yield ClientCalls(_client_calls(event.approval_requested.approval))
                continue
            case "run_finished":
                yield _finished(event.run_finished)
                return
            case _:
                continue
        if piece:
            yield Text(piece)


def _client_calls(
    approval: message_pb2.ApprovalRequestPart,
) -> Sequence[message_pb2.ToolCallPart]:
    by_client = {binding.tool_call_id for binding in approval.bindings if binding.by_client}
    people = [call.name for call in approval.tool_calls if call.tool_call_id not in by_client]
    if people:
        raise RunFailedError(
            f"The run waits until a person approves calls of {', '.join(sorted(set(people)))}."
            f" Answer approval {approval.approval_id} with RunService.RespondToApproval.",
            status=HTTPStatus.CONFLICT,
            code="approval_required",
        )
    return approval.tool_calls


def _finished(end: run_event_pb2.RunFinished) -> Finished:
    if end.stop_reason == run_event_pb2.STOP_REASON_REQUIRES_APPROVAL:
        return Finished("tool_calls", end.usage)
    reason = _FINISH_REASONS.get(end.stop_reason)
    if reason is not None and not end.HasField("error"):
        return Finished(reason, end.usage)
    name = run_event_pb2.StopReason.Name(end.stop_reason).removeprefix("STOP_REASON_").lower()
    raise RunFailedError(
        end.error.message or f"The run ended without a reply: {name}.",
        status=(HTTPStatus.SERVICE_UNAVAILABLE if end.error.retryable else HTTPStatus.BAD_GATEWAY),
        code=(end.error.reason or name).lower(),
        usage=end.usage,
        cancelled=end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED,
    )


def _diverged() -> ApiError:
    return ApiError(
        "The model failed after a part of its reply had been sent, and gave another reply when it"
        " was asked again. The conversation contains the second reply.",
        status=HTTPStatus.BAD_GATEWAY,
        code="reply_restarted",
        sent=True,
    )
