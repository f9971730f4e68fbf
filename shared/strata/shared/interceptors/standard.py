"""The standard chain of interceptors of every server."""

from __future__ import annotations

from strata.shared.clock import Clock
from strata.shared.foreground_work import CALLS_OF_RUNS
from strata.shared.interceptors.admission import Admission
from strata.shared.interceptors.auth import Authenticate, Authenticator
from strata.shared.interceptors.deadline import Deadline
from strata.shared.interceptors.errors import MapErrors
from strata.shared.interceptors.fair_calls import FairCalls
from strata.shared.interceptors.idle_uploads import IdleUploads
from strata.shared.interceptors.observe import Observe
from strata.shared.interceptors.pipeline import MethodTable
from strata.shared.project_use import USE_OF_PROCESS
from strata.shared.settings import ServerLimits
from strata.shared.telemetry import Telemetry

UPLOAD_IDLE_S = 60.0
"""Silence after which an upload is ended: a living client sends a piece within a few seconds."""
UNARY_DEADLINE_S = 30.0
"""Deadline of a unary call that came without one; ours take at most some seconds."""
STREAM_DEADLINE_S = 900.0
"""Deadline of a stream that came without one: longer than the longest run by default."""
DEADLINE_FLOOR_S = 0.005
"""A call with less time left is refused: a query of the database alone takes about as long."""
RETRY_AFTER_S = 0.5
"""Mean of the retry hint of a refused call: about the time in which a burst is processed."""


def method_table(
    limits: ServerLimits,
    authenticator: Authenticator,
    telemetry: Telemetry,
    *,
    service: str = "",
    access_log: bool = False,
    clock: Clock | None = None,
    host: str = "",
    from_clients: bool = False,
) -> MethodTable:
    """Returns an empty table with the standard interceptors.

    The order, outermost first, is: observe (it must see the mapped status), errors,
    authentication (its errors are mapped), admission, idle uploads, deadline, fair calls
    (a call that waits for its slot is ended by its deadline).

    Args:
        limits: Limits of the server.
        authenticator: Identifies the callers.
        telemetry: Registry of the metrics.
        service: See `Observe`.
        access_log: See `Observe`.
        clock: See `Observe`.
        host: See `Observe`.
        from_clients: See `FairCalls`.
    """
    return MethodTable(
        [
            Observe(telemetry, service=service, access_log=access_log, clock=clock, host=host),
            MapErrors(),
            Authenticate(authenticator),
            Admission(
                max_unary=limits.max_in_flight_unary,
                max_streams=limits.max_in_flight_streams,
                retry_after_s=RETRY_AFTER_S,
                share=limits.project_share,
            ),
            IdleUploads(UPLOAD_IDLE_S),
            Deadline(
                unary_s=UNARY_DEADLINE_S,
                stream_s=STREAM_DEADLINE_S,
                floor_s=DEADLINE_FLOOR_S,
            ),
            FairCalls(
                limits.max_in_flight_unary,
                CALLS_OF_RUNS,
                USE_OF_PROCESS,
                from_clients=from_clients,
            ),
        ],
        max_message_bytes=limits.max_message_bytes,
    )
