"""The standard chain of interceptors of every server."""

from __future__ import annotations

from strata.shared.clock import Clock
from strata.shared.interceptors.admission import Admission
from strata.shared.interceptors.auth import Authenticate, Authenticator
from strata.shared.interceptors.deadline import Deadline
from strata.shared.interceptors.errors import MapErrors
from strata.shared.interceptors.fair_calls import FairCalls
from strata.shared.interceptors.idle_uploads import IdleUploads
from strata.shared.interceptors.observe import Observe
from strata.shared.interceptors.pipeline import MethodTable
from strata.shared.settings import ServerLimits
from strata.shared.telemetry import Telemetry


def method_table(
    limits: ServerLimits,
    authenticator: Authenticator,
    telemetry: Telemetry,
    *,
    access_log: bool = False,
    clock: Clock | None = None,
    host: str = "",
) -> MethodTable:
    """Returns an empty table with the standard interceptors.

    The order, outermost first, is: observe (it must see the mapped status), errors,
    authentication (its errors are mapped), admission, idle uploads, deadline, fair calls
    (a call that waits for its slot is ended by its deadline).

    Args:
        limits: Limits of the server.
        authenticator: Identifies the callers.
        telemetry: Registry of the metrics.
        access_log: See `Observe`.
        clock: See `Observe`.
        host: See `Observe`.
    """
    return MethodTable(
        [
            Observe(telemetry, access_log=access_log, clock=clock, host=host),
            MapErrors(),
            Authenticate(authenticator),
            Admission(
                max_unary=limits.max_in_flight_unary,
                max_streams=limits.max_in_flight_streams,
                retry_after_s=limits.retry_after_s,
                share=limits.project_share,
            ),
            IdleUploads(limits.upload_idle_s),
            Deadline(
                unary_s=limits.default_unary_deadline_s,
                stream_s=limits.default_stream_deadline_s,
                floor_s=limits.deadline_floor_s,
            ),
            FairCalls(limits.max_in_flight_unary),
        ],
        max_message_bytes=limits.max_message_bytes,
    )
