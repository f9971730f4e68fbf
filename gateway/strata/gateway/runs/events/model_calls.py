"""Start and end of the model calls of an active run, as its gateway observes them."""

from __future__ import annotations

from collections.abc import Callable

from strata.api.agent_loop.v1 import turn_service_pb2
from strata.api.common.v1 import run_event_pb2
from strata.shared.convert.usage import usage_from_proto, usage_to_proto

MAX_CALLS = 32
"""Maximum number of calls in one stored event; further calls are added to the last one."""


class ModelCalls:
    """The finished calls that are in no stored event yet, and the open one.

    Attributes:
        ended: The finished calls.
    """

    def __init__(self) -> None:
        self.ended: list[run_event_pb2.ModelCall] = []
        self._open: run_event_pb2.ModelCall | None = None

    def note_request(self, request: turn_service_pb2.ModelRequestSent, now_ms: int) -> None:
        """Records that a request was sent.

        Args:
            request: The request; an older agent_loop sends no digest of it.
            now_ms: Milliseconds since the run was accepted.
        """
        self.end_open_call(now_ms)
        self._open = run_event_pb2.ModelCall(
            message_id=request.message_id,
            start_ms=now_ms,
            model=request.model,
            request=request.digest if request.HasField("digest") else None,
        )

    def note_piece(self, now_ms: Callable[[], int]) -> None:
        """Records that a piece of the reply has arrived; only the first one reads the clock."""
        call = self._open
        if call is not None and not call.HasField("first_token_ms"):
            call.first_token_ms = now_ms() - call.start_ms

    def note_reply(self, reply: turn_service_pb2.ReplyReceived, now_ms: int) -> None:
        """Records the end of a call; for a summary, whose request is unknown, only its tokens."""
        message_id, usage = reply.message_id, reply.usage
        call = self._open
        if call is None or call.message_id != message_id:
            summary = run_event_pb2.ModelCall(message_id=message_id, usage=usage, model=reply.model)
            self._add(summary)
            return
        self._open = None
        call.duration_ms = now_ms - call.start_ms
        call.usage.CopyFrom(usage)
        self._add(call)

    def end_open_call(self, now_ms: int) -> None:
        """Ends the open call, if there is one, as lost."""
        call, self._open = self._open, None
        if call is not None:
            call.duration_ms, call.lost = now_ms - call.start_ms, True
            self._add(call)

    def take(self) -> list[run_event_pb2.ModelCall]:
        """Returns and clears the finished calls, for the event that is stored now."""
        ended, self.ended = self.ended, []
        return ended

    def _add(self, call: run_event_pb2.ModelCall) -> None:
        if len(self.ended) < MAX_CALLS:
            self.ended.append(call)
            return
        last = self.ended[-1]
        last.usage.CopyFrom(
            usage_to_proto(usage_from_proto(last.usage) + usage_from_proto(call.usage))
        )
        if last.HasField("start_ms") and call.HasField("start_ms"):
            last.duration_ms = call.start_ms + call.duration_ms - last.start_ms
