"""The spans of HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from span_records import SpanRecorder
from strata.gateway.http.traced_requests import TracedRequests
from strata.shared.tracing.spans import Tracer
from strata.shared.tracing.trace_context import parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


async def answer(request: Request) -> Response:
    if "fail" in request.query_params:
        raise ValueError("secret")
    status = int(request.query_params.get("status", 200))
    return JSONResponse(request.headers["traceparent"], status_code=status)


APPLICATION = Starlette(
    routes=[
        Route("/healthz", lambda _: PlainTextResponse("ok")),
        Route("/v1/models/{model:path}", answer),
        Mount("/package.Service", routes=[Route("/Method", answer, methods=["POST"])]),
    ]
)


async def send(
    recorder: SpanRecorder,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    ratio: float = 1.0,
) -> httpx2.Response:
    traced = TracedRequests(APPLICATION, Tracer(recorder, ratio))
    transport = httpx2.ASGITransport(app=traced, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://strata") as client:
        return await client.request(method, path, headers=headers)


async def test_a_request_has_a_span_between_the_client_and_its_calls() -> None:
    recorder = SpanRecorder()
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    response = await send(recorder, "GET", "/v1/models/a/b?x=secret", headers=headers, ratio=0.0)
    [span] = recorder.spans
    passed_on = parse_traceparent(response.json())
    assert passed_on is not None
    assert (passed_on.trace_id, passed_on.span_id) == (TRACE, span.span_id)
    assert (span.trace_id, span.parent_id, span.service) == (TRACE, SPAN, "gateway")
    assert span.name == "GET /v1/models/{model}"
    assert span.attributes == {
        "http.request.method": "GET",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.route": "/v1/models/{model}",
    }


@pytest.mark.parametrize(
    ("method", "path", "name", "error_type"),
    [
        ("POST", "/package.Service/Method", "POST /package.Service/Method", ""),
        ("GET", "/v1/models/m?status=503", "GET /v1/models/{model}", "503"),
        ("GET", "/v1/models/m?fail=1", "GET /v1/models/{model}", "ValueError"),
        ("GET", "/secret", "GET", ""),
        ("POST", "/package.Service/secret", "POST", ""),
        ("POST", "/v1/models/m", "POST", ""),
    ],
)
async def test_spans_of_requests_are_named_after_their_route(
    method: str, path: str, name: str, error_type: str
) -> None:
    recorder = SpanRecorder()
    await send(recorder, method, path)
    assert [(span.name, span.error_type) for span in recorder.spans] == [(name, error_type)]
    assert "secret" not in recorder.texts()


async def test_the_calls_of_an_unsampled_request_are_not_sampled() -> None:
    recorder = SpanRecorder()
    response = await send(recorder, "GET", "/v1/models/m", ratio=0.0)
    passed_on = parse_traceparent(response.json())
    assert passed_on is not None
    assert not passed_on.sampled
    assert recorder.spans == []


async def test_health_probes_have_no_spans() -> None:
    recorder = SpanRecorder()
    assert (await send(recorder, "GET", "/healthz")).text == "ok"
    assert recorder.spans == []
