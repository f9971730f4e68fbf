"""The other side of a channel: its clock, and how its errors are converted."""

from __future__ import annotations

import time
from typing import Any

import grpc.aio

from strata.protocol.calls import Peer
from strata.protocol.errors import Reason, StrataError, UnauthenticatedError, UnavailableError
from strata.shared.clock_skew import SkewMeter
from strata.shared.logs import get_logger

_WARN_EVERY_S = 60.0

_log = get_logger(__name__)


class ServicePeer(Peer):
    """The other side of a channel between services.

    Args:
        name: The service, where it is called with internal tokens; else empty.
        skew: Measures its clock.
    """

    __slots__ = ("_name", "_skew", "_warn_at")

    def __init__(self, name: str, skew: SkewMeter | None) -> None:
        self._name = name
        self._skew = skew if name else None
        self._warn_at = 0.0

    def clock_due(self) -> bool:
        """Whether the time of its next answer is wanted."""
        return self._skew is not None and self._skew.due(self._name)

    def clock_seen(self, trailing: Any, elapsed_s: float) -> None:
        """Measures the peer's clock by the time that an answer contains."""
        if self._skew is not None:
            self._skew.note(self._name, trailing, elapsed_s)

    def error(self, error: grpc.aio.AioRpcError, elapsed_s: float, *, vouched: bool) -> StrataError:
        """Returns the error to raise for a failed call.

        A service that refuses an internal token refuses this process, not the client that
        it acts for: the error must not say to a client with a valid key that the key is wrong.

        Args:
            error: How the call ended.
            elapsed_s: Seconds since the request was sent.
            vouched: The call carried the internal token of the context.
        """
        self.clock_seen(error.trailing_metadata(), elapsed_s)
        raised = super().error(error, elapsed_s, vouched=vouched)
        if not (vouched and self._name and isinstance(raised, UnauthenticatedError)):
            return raised
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + _WARN_EVERY_S
            _log.warning("internal token refused", service=self._name, error=raised.message)
        refused = UnavailableError(
            f"The service {self._name} did not accept the identity that another service vouches "
            "for. The credentials of this call are not the cause; the server's log contains it.",
            reason=Reason.INTERNAL_TOKEN_REFUSED,
            metadata={"service": self._name},
            retry_after=1.0,
        )
        refused.unsent = True
        return refused


def token_refused(error: StrataError) -> bool:
    """Whether the peer itself refused the internal token of the call, which then had no effect.

    An error that the peer passes on from a service behind it has the same reason, but the method
    of the peer had begun.
    """
    return error.unsent and error.reason is Reason.INTERNAL_TOKEN_REFUSED
