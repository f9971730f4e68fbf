"""The status with which the peer ended a call that requests are written to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from strata.protocol.status import FAILED_WRITE, WireStatus

_LOOKS = 100
_PAUSE_S = 0.005


class FinalStatus:
    """The status with which the peer ended a call.

    A write that fails because the call is over makes grpc.aio (1.85) replace the status of the
    call by an internal error, or be replaced by it a moment later. So the status has to be noted
    each time it is set: call `note` in a done callback of the call.

    It does not refer to the call: grpc.aio keeps done callbacks for as long as the call exists.
    """

    def __init__(self) -> None:
        self.status: WireStatus | None = None
        """The status; None until the peer has sent one."""

    def note(self, call: Any) -> None:
        """Takes the status of a call that has ended, unless it reports a failed write."""
        if self.status is not None:
            return
        code, details = known_result(call.code()), known_result(call.details())
        if details != FAILED_WRITE:
            trailing = tuple(known_result(call.trailing_metadata()) or ())
            self.status = WireStatus(code, details, trailing)

    async def after_failed_write(self, call: Any) -> WireStatus | None:
        """Returns the status of a call on which a write failed; None if it never becomes known."""
        for _ in range(_LOOKS):
            self.note(call)
            if self.status is not None:
                return self.status
            await asyncio.sleep(_PAUSE_S)
        return None


def is_failed_write(error: BaseException) -> bool:
    """Whether an error reports a failed write instead of the status that the peer sent."""
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and cause.details() == FAILED_WRITE


def known_result(answer: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a method of an ended call, which does not wait.

    Raises:
        RuntimeError: The call has not ended.
    """
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    answer.close()
    raise RuntimeError("the call is not over")
