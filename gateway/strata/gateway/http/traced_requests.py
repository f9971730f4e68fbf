"""Spans of HTTP requests, by the semantic conventions of OpenTelemetry for HTTP servers."""

from __future__ import annotations

import re

from strata.gateway.http.scope_headers import header_of, with_header
from strata.shared.http_listener import Application, Receive, Scope, Send
from strata.shared.interceptors.observe import TRACEPARENT_KEY
from strata.shared.tracing.spans import Span, SpanKind, Tracer
from strata.shared.tracing.trace_context import make_traceparent, parse_traceparent

_SERVICE = "gateway"
_HEADER = TRACEPARENT_KEY.encode()
_HEALTH = "/healthz"
_NO_ROUTE = (404, 405)
# The parameter that holds the path below a mount, which is the method of a service.
_REST = "path"


class TracedRequests:
    """Records each request as a span, under which its calls of the gateway are.

    One request can make several calls: a model's name is looked up before a message is sent.

    Args:
        application: Answers the requests.
        tracer: Begins the spans.
    """

    def __init__(self, application: Application, tracer: Tracer) -> None:
        self._application = application
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or scope["path"] == _HEALTH:
            await self._application(scope, receive, send)
            return
        trace = self._tracer.join(parse_traceparent(header_of(scope, _HEADER)))
        method = scope["method"]
        span = self._tracer.begin(
            _SERVICE,
            method,
            SpanKind.SERVER,
            trace,
            attributes={"http.request.method": method, "url.scheme": scope["scheme"]},
        )
        if span is None:
            traceparent = make_traceparent(trace.trace_id, sampled=False)
            await self._application(
                with_header(scope, _HEADER, traceparent.encode()), receive, send
            )
            return
        scope = with_header(scope, _HEADER, span.traceparent.encode())
        status = 500

        async def note_status(message: Scope) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._application(scope, receive, note_status)
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            _describe(span, scope, status)
            span.end()


def _describe(span: Span, scope: Scope, status: int) -> None:
    """Adds the route and the status; a path that is not a route could be any text."""
    span.attributes["http.response.status_code"] = status
    if status >= 500 and not span.error_type:
        span.fail(str(status))
    if "endpoint" not in scope or status in _NO_ROUTE:
        return
    route: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        if name != _REST:
            route = re.sub(rf"/{re.escape(value)}(?=/|$)", f"/{{{name}}}", route)
    span.name = f"{span.name} {route}"
    span.attributes["http.route"] = route
