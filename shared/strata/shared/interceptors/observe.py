"""The outermost interceptor: sets the ids of a call, measures, traces and logs it."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from typing import Any

import grpc

from strata.shared.clock import Clock
from strata.shared.clock_skew import SERVER_HOST_KEY, SERVER_TIME_KEY
from strata.shared.context import RequestContext, use
from strata.shared.interceptors.pipeline import Next, ServedMethod, ServerCall
from strata.shared.logs import get_logger
from strata.shared.metric_names import RPC_IN_FLIGHT, RPC_REQUESTS, RPC_SECONDS
from strata.shared.telemetry import Counter, Telemetry
from strata.shared.tracing.rpc_spans import end_server_span, rpc_attributes
from strata.shared.tracing.spans import Attributes, SpanKind, Tracer
from strata.shared.tracing.trace_context import new_trace_id, parse_traceparent

REQUEST_ID_KEY = "x-request-id"
TRACEPARENT_KEY = "traceparent"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_WARN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_ERROR = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS})

_Trailing = tuple[tuple[str, str | bytes], ...]

_log = get_logger(__name__)


def request_id_of(chosen: str | bytes | None) -> str:
    """Returns the id of a call for the logs: the one that its client chose, or a new one.

    Args:
        chosen: The id of the client; None if it chose none. Invalid ids are ignored.
    """
    if isinstance(chosen, str) and _REQUEST_ID.fullmatch(chosen) is not None:
        return chosen
    return f"req-{secrets.token_hex(8)}"


class Observe:
    """Sets the request context, counts, times, traces and logs.

    Args:
        telemetry: Registry of the metrics: `RPC_REQUESTS`, `RPC_IN_FLIGHT` and `RPC_SECONDS`. Its
            tracer begins the spans of the calls.
        service: The service, for the spans.
        access_log: Log successful calls at INFO instead of DEBUG.
        clock: Its time is sent with every answer, for `strata.shared.clock_skew`; None sends none.
        host: Host name to send with the time; empty sends none.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        service: str = "",
        access_log: bool = False,
        clock: Clock | None = None,
        host: str = "",
    ) -> None:
        self._telemetry = telemetry
        self._service = service
        self._clock = clock
        self._host: _Trailing = ((SERVER_HOST_KEY, host),) if host else ()
        self._ok_level = logging.INFO if access_log else logging.DEBUG

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the observed call."""
        telemetry, label = self._telemetry, method.label
        in_flight = telemetry.gauge(RPC_IN_FLIGHT, method=label)
        latency = telemetry.histogram(RPC_SECONDS, method=label)
        requests: dict[grpc.StatusCode, Counter] = {}
        # Probes call every few seconds; their calls would fill the log.
        ok_level = logging.DEBUG if method.infrastructure else self._ok_level
        tracer = None if method.infrastructure else telemetry.tracer
        attributes = rpc_attributes(label)

        async def run(call: ServerCall) -> Any:
            context = self._context(call, tracer, attributes)
            call.trailing = self._trailing(context)
            call.context.set_trailing_metadata(call.trailing)
            started = time.perf_counter()
            in_flight.add(1)
            with use(context):
                try:
                    return await proceed(call)
                except asyncio.CancelledError:
                    call.code = _cancelled_code(call)
                    raise
                except BaseException:
                    # Only an abort on the transport gets past `MapErrors`.
                    call.code = _final_code(call)
                    raise
                finally:
                    elapsed = time.perf_counter() - started
                    in_flight.add(-1)
                    latency.observe(elapsed)
                    counter = requests.get(call.code)
                    if counter is None:
                        counter = requests[call.code] = telemetry.counter(
                            RPC_REQUESTS, method=label, code=call.code.name
                        )
                    counter.inc()
                    if context.span is not None:
                        end_server_span(context.span, call.code, call.caller)
                    self._log(call, elapsed, ok_level)

        return run

    def _context(
        self, call: ServerCall, tracer: Tracer | None, attributes: Attributes
    ) -> RequestContext:
        request_id = request_id_of(call.metadata.get(REQUEST_ID_KEY))
        parent = parse_traceparent(call.metadata.get(TRACEPARENT_KEY))
        if tracer is None:
            if parent is None:
                return RequestContext(request_id=request_id, trace_id=new_trace_id())
            return RequestContext(
                request_id=request_id, trace_id=parent.trace_id, sampled=parent.sampled
            )
        trace = tracer.join(parent)
        name = call.method.label.lstrip("/")
        span = tracer.begin(self._service, name, SpanKind.SERVER, trace, attributes=attributes)
        return RequestContext(
            request_id=request_id, trace_id=trace.trace_id, span=span, sampled=trace.sampled
        )

    def _trailing(self, context: RequestContext) -> _Trailing:
        request_id = (REQUEST_ID_KEY, context.request_id)
        if self._clock is None:
            return (request_id,)
        time_of_day = f"{self._clock.now().timestamp():.3f}"
        return (request_id, (SERVER_TIME_KEY, time_of_day), *self._host)

    @staticmethod
    def _log(call: ServerCall, elapsed: float, ok_level: int) -> None:
        code = call.code
        level = ok_level
        if code is not grpc.StatusCode.OK:
            level = logging.INFO
            if code in _ERROR:
                level = logging.ERROR
            elif code in _WARN:
                level = logging.WARNING
        if not _stdlib_log.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "method": call.method.path[:200],
            "code": code.name,
            "duration_ms": round(elapsed * 1000, 3),
        }
        if call.reason is not None:
            fields["reason"] = call.reason.value
        if call.detail:
            fields["detail"] = call.detail
        if call.caller is not None:
            fields["project_id"] = call.caller.project_id
            fields["principal"] = call.caller.principal
            if call.caller.run_id:
                fields["run_id"] = call.caller.run_id
        _log.log(level, "rpc", **fields)


_stdlib_log = logging.getLogger(__name__)


def _cancelled_code(call: ServerCall) -> grpc.StatusCode:
    remaining = call.context.time_remaining()
    if remaining is not None and remaining <= 0:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED


def _final_code(call: ServerCall) -> grpc.StatusCode:
    if call.code is not grpc.StatusCode.OK:
        return call.code
    code = call.context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    for status in grpc.StatusCode:
        if status.value[0] == code:
            return status
    return grpc.StatusCode.UNKNOWN
