"""Sends a message and follows its run to the end, across lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from strata.api.common.v1.run_event_pb2 import RunEvent
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1.run_service_pb2_grpc import RunServiceStub
from strata.client.errors import UnreachableError
from strata.client.services import is_transport_failure
from strata.protocol.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.protocol.stream_completion import complete_in_background

RUN_ID_HEADER = "x-run-id"

# Events that are not stored; they have the sequence of the last stored event.
_UNSTORED_EVENTS = frozenset({"text_delta", "reasoning_delta", "tool_call_delta", "text_snapshot"})


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits between attempts to reconnect; times in seconds.

    Attributes:
        first_s: Pause before the first attempt; it doubles with each further one.
        longest_s: Longest pause.
        patience_s: Time without contact after which following fails.
        contact_s: A stream that stayed open for this time counts as contact, even without events.
    """

    first_s: float = 0.2
    longest_s: float = 3.0
    patience_s: float = 120.0
    contact_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The stream broke; the client is reconnecting."""

    error: StrataError


@dataclass(frozen=True, slots=True)
class ConnectionBack:
    """The stream is resumed after the last event before the break."""


Update = RunEvent | ConnectionLost | ConnectionBack
FollowedRequest = pb.SendMessageRequest | pb.RespondToApprovalRequest


class RunFollower:
    """Sends a message, or the answer to an approval, and follows its run; or follows a known run.

    Until the id of the run is known, a lost request is sent again, which its ``request_id`` makes
    safe; afterwards the run is followed from the last event.

    Args:
        runs: Stub of the run service.
        request: The message or the answer, which must have a ``request_id``; or the known run.
        back_off: Waits between attempts to reconnect.
        sleep: Sleeps for a number of seconds.

    Attributes:
        run_id: Id of the run; empty until it is known.
        sequence: Sequence of the last stored event that arrived.
    """

    def __init__(
        self,
        runs: RunServiceStub,
        request: FollowedRequest | pb.StreamRunRequest,
        back_off: BackOff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.run_id = ""
        self.sequence = 0
        self._runs = runs
        self._request = request
        self._back_off = back_off or BackOff()
        self._sleep = sleep
        self._run_is_known = asyncio.Event()
        self._has_all_events = False
        if isinstance(request, pb.StreamRunRequest):
            self.sequence = request.after_sequence
            self._set_run_id(request.run_id)

    async def wait_for_run_id(self) -> str:
        """Waits until the id of the run is known, and returns it."""
        await self._run_is_known.wait()
        return self.run_id

    async def updates(self) -> AsyncGenerator[Update, None]:
        """Yields each event of the run once, and the changes of the connection.

        Yields nothing if the last event of a known run has arrived before.

        Raises:
            UnreachableError: The gateway could not be reached for too long.
            StrataError: The gateway refused.
        """
        now = asyncio.get_running_loop().time
        lost_at: float | None = None
        pause = self._back_off.first_s
        while True:
            began = now()
            try:
                async with aclosing(self._events()) as events:
                    async for event in events:
                        if lost_at is not None:
                            yield ConnectionBack()
                            lost_at, pause = None, self._back_off.first_s
                        yield event
                        if event.HasField("run_finished"):
                            return
                if self._has_all_events:
                    return
                failure: StrataError = UnavailableError("The stream ended before the run ended.")
            except StrataError as error:
                if not _may_be_repeated(error):
                    raise
                failure = error
            if lost_at is None:
                yield ConnectionLost(failure)
                lost_at = now()
            elif now() - began > self._back_off.contact_s:
                lost_at = now()
            if now() - lost_at > self._back_off.patience_s:
                raise self._unreachable() from failure
            await self._sleep(max(pause, failure.retry_after or 0.0))
            pause = min(pause * 2, self._back_off.longest_s)

    async def _events(self) -> AsyncGenerator[RunEvent, None]:
        if self.run_id or isinstance(self._request, pb.StreamRunRequest):
            stream = self._runs.StreamRun(
                pb.StreamRunRequest(
                    run_id=self.run_id,
                    after_sequence=self.sequence,
                    stream_tokens=self._wants_tokens,
                    send_message_as_text=self._as_text,
                )
            )
            is_empty = True
            async for followed in stream:
                is_empty = False
                if followed.event.HasField("run_finished"):
                    complete_in_background(stream)
                if self._is_new(followed.event):
                    yield followed.event
            # The gateway ends a stream without an event if the run ended before the sequence.
            self._has_all_events = is_empty
            return
        call = self._call()
        for key, value in await call.initial_metadata():
            if key == RUN_ID_HEADER and isinstance(value, str):
                self._set_run_id(value)
        async for sent in call:
            if sent.event.HasField("run_finished"):
                complete_in_background(call)
            if self._is_new(sent.event):
                yield sent.event

    def _call(self) -> Any:
        if isinstance(self._request, pb.RespondToApprovalRequest):
            return self._runs.RespondToApproval(self._request)
        assert isinstance(self._request, pb.SendMessageRequest)
        return self._runs.SendMessage(self._request)

    @property
    def _as_text(self) -> bool:
        asked = self._request.HasField("send_message_as_text")
        return not asked or self._request.send_message_as_text

    @property
    def _wants_tokens(self) -> bool:
        if isinstance(self._request, pb.RespondToApprovalRequest):
            return True
        return not self._request.HasField("stream_tokens") or self._request.stream_tokens

    def _is_new(self, event: RunEvent) -> bool:
        self._set_run_id(event.run_id)
        if event.WhichOneof("event") in _UNSTORED_EVENTS:
            return True
        new = event.sequence > self.sequence
        self.sequence = max(self.sequence, event.sequence)
        return new

    def _set_run_id(self, run_id: str) -> None:
        if run_id and not self.run_id:
            self.run_id = run_id
            self._run_is_known.set()

    def _unreachable(self) -> UnreachableError:
        if self.run_id:
            return UnreachableError(
                "The gateway no longer answers. The run continues when it is back; see: "
                f"strata runs show {self.run_id}"
            )
        return UnreachableError("The gateway does not answer; the message was not accepted.")


def _may_be_repeated(error: StrataError) -> bool:
    """Whether to try again: the cause was the connection or an overload, not a refusal."""
    match error:
        case UnavailableError() | DeadlineExceededError() | CancelledError():
            return True
        case ResourceExhaustedError():
            return error.reason is Reason.OVERLOADED
        case InternalError():
            # gRPC reports it for a stream that broke in the middle of a frame.
            return is_transport_failure(error)
        case _:
            return False
