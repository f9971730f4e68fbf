"""Maps exceptions to gRPC statuses; no other code does this on the server side."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import grpc.aio

from strata.protocol.errors import InternalError, Reason, StrataError, UnavailableError
from strata.protocol.status import code_of, to_status
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall
from strata.shared.logs import get_logger

_RETRY_AFTER_S = 0.5

_log = get_logger(__name__)


class MapErrors:
    """Sends `StrataError`s unchanged, and other exceptions as INTERNAL with an incident id.

    The traceback of a defect is logged under that id and never sent to the caller. Of an
    exception group with `StrataError`s only, the first is sent.
    """

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the call whose errors are mapped."""

        async def run(call: ServerCall) -> Any:
            error: StrataError
            try:
                if not call.stopped:
                    return await proceed(call)
                error = shutting_down()
            except grpc.aio.AbortError:
                raise
            except StrataError as raised:
                error = raised
            except asyncio.CancelledError as raised:
                task = asyncio.current_task()
                if call.stopped and task is not None:
                    # Cancelled by the server, once; what is awaited below must not be.
                    task.uncancel()
                    error = shutting_down()
                elif task is None or task.cancelling():
                    raise
                else:
                    # The call was not cancelled: the handler leaked the cancellation of a task
                    # that it awaited. gRPC would leave the caller waiting.
                    error = _incident(raised, method)
            except Exception as raised:  # noqa: BLE001 - the last handler of the chain
                error = _expected(raised) or _incident(raised, method)
            call.code = code_of(error)
            call.reason = error.reason
            call.detail = error.detail
            status = to_status(error, trailing=call.trailing)
            return await call.context.abort_with_status(status)

        return run


def shutting_down() -> StrataError:
    """Returns the error of a call that is refused or ended because the server stops."""
    return UnavailableError(
        "The service is shutting down. Try again: another replica, or this one in a moment, will"
        " take the call.",
        reason=Reason.SHUTTING_DOWN,
        retry_after=_RETRY_AFTER_S,
    )


def _expected(raised: Exception) -> StrataError | None:
    if not isinstance(raised, ExceptionGroup):
        return None
    strata_errors, other_errors = raised.split(StrataError)
    if strata_errors is None or other_errors is not None:
        return None
    leaf: BaseException = strata_errors
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf if isinstance(leaf, StrataError) else None


def _incident(raised: BaseException, method: ServedMethod) -> StrataError:
    incident_id = f"incident-{secrets.token_hex(8)}"
    _log.error("unexpected error", incident_id=incident_id, method=method.label, exc_info=raised)
    return InternalError(
        f"An internal error happened; it is logged as {incident_id}.",
        metadata={"incident_id": incident_id},
    )
