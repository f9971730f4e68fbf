"""The spans of calls, and the trace that calls carry, over a socket and inside the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from polling import eventually
from span_records import SpanRecorder
from strata.protocol.errors import InternalError, NotFoundError, Reason, StrataError
from strata.shared.context import RequestContext, current
from strata.shared.tracing.spans import Span, SpanKind, Tracer
from strata.shared.tracing.trace_context import TraceContext

PATH = "strata.testing.echo.v1.EchoService"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SECRET = "the-text-of-a-message"


def servicer(echo: Any, seen: list[RequestContext], error: Exception | None = None) -> Any:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            seen.append(current())
            if error is not None:
                raise error
            return request

        async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
            seen.append(current())
            yield request
            yield request

    return Servicer()


def client_span(recorder: SpanRecorder) -> Any:
    span = Tracer(recorder).begin(
        "caller", "work", SpanKind.INTERNAL, TraceContext(TRACE, SPAN, True)
    )
    assert span is not None
    return span


async def spans(recorder: SpanRecorder, count: int) -> dict[SpanKind, Span]:
    await eventually(lambda: len(recorder.spans) == count)
    return {span.kind: span for span in recorder.spans}


@pytest.mark.parametrize("shape", ["Echo", "Count"])
async def test_a_call_has_a_span_on_each_side(serve: Any, echo: Any, keys: Any, shape: str) -> None:
    recorder, seen = SpanRecorder(), list[RequestContext]()
    served = await serve(servicer(echo, seen), tracer=Tracer(recorder, 0.0))
    work = client_span(recorder)
    note = echo.pb.Note(text=SECRET)
    caller = keys.caller("project-9", run_id="run-3")
    with keys.signed_in(caller=caller, span=work, sampled=True, trace_id=TRACE):
        call = getattr(served.stub, shape)(note)
        if shape == "Echo":
            await call
        else:
            assert len([response async for response in call]) == 2
    by_kind = await spans(recorder, 2)
    client, server = by_kind[SpanKind.CLIENT], by_kind[SpanKind.SERVER]
    assert client.name == server.name == f"{PATH}/{shape}"
    assert (client.service, client.parent_id) == ("caller", work.span_id)
    assert (server.service, server.parent_id) == ("echo", client.span_id)
    assert client.trace_id == server.trace_id == TRACE
    assert seen[0].span is server
    assert client.end_ns > client.start_ns
    expected = {
        "rpc.system": "grpc",
        "rpc.service": PATH,
        "rpc.method": shape,
        "rpc.grpc.status_code": 0,
    }
    assert client.attributes == expected
    of_call = {"strata.project.id": "project-9", "strata.run.id": "run-3"}
    assert server.attributes == {**expected, **of_call}
    assert (client.error_type, server.error_type) == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "server_error"),
    [
        (NotFoundError(SECRET, reason=Reason.AGENT_NOT_FOUND), grpc.StatusCode.NOT_FOUND, ""),
        (InternalError(SECRET), grpc.StatusCode.INTERNAL, "INTERNAL"),
        (KeyError(SECRET), grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_a_failed_call_has_its_status_and_no_text(
    serve: Any, echo: Any, keys: Any, error: Exception, code: Any, server_error: str
) -> None:
    recorder = SpanRecorder()
    served = await serve(servicer(echo, [], error), tracer=Tracer(recorder))
    with (
        keys.signed_in(span=client_span(recorder), sampled=True, trace_id=TRACE),
        pytest.raises(StrataError),
    ):
        await served.stub.Echo(echo.pb.Note())
    by_kind = await spans(recorder, 2)
    client, server = by_kind[SpanKind.CLIENT], by_kind[SpanKind.SERVER]
    assert (client.error_type, server.error_type) == (code.name, server_error)
    for span in (client, server):
        assert span.attributes["rpc.grpc.status_code"] == code.value[0]
        assert SECRET not in repr(span.attributes)


async def test_a_cancelled_call_ends_its_spans(serve: Any, echo: Any, keys: Any) -> None:
    recorder, started = SpanRecorder(), asyncio.Event()

    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            started.set()
            await asyncio.sleep(90)

    served = await serve(Servicer(), tracer=Tracer(recorder))
    with keys.signed_in(span=client_span(recorder), sampled=True, trace_id=TRACE):
        call = asyncio.ensure_future(_result(served.stub.Echo(echo.pb.Note())))
        await started.wait()
        call.cancel()
        await asyncio.wait((call,))
    by_kind = await spans(recorder, 2)
    cancelled = grpc.StatusCode.CANCELLED.value[0]
    codes = [span.attributes["rpc.grpc.status_code"] for span in by_kind.values()]
    assert codes == [cancelled, cancelled]


async def _result(call: Any) -> Any:
    return await call


@pytest.mark.parametrize(
    ("flags", "sampled"), [("01", True), ("00", False)], ids=["sampled", "not sampled"]
)
@pytest.mark.parametrize("ratio", [None, 0.0, 1.0], ids=["off", "none", "all"])
async def test_the_sampling_decision_of_the_client_is_forwarded(
    serve: Any, echo: Any, keys: Any, flags: str, sampled: bool, ratio: float | None
) -> None:
    recorder, seen, arrived = SpanRecorder(), list[RequestContext](), list[RequestContext]()
    behind = await serve(servicer(echo, arrived))

    class Front(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            seen.append(current())
            return await behind.stub.Echo(request)

    tracer = None if ratio is None else Tracer(recorder, ratio)
    front = await serve(Front(), tracer=tracer)
    metadata = (*keys.metadata(), ("traceparent", f"00-{TRACE}-{SPAN}-{flags}"))
    await front.raw.unary_unary(f"/{PATH}/Echo")(b"", metadata=metadata)
    assert [context.trace_id for context in seen + arrived] == [TRACE, TRACE]
    assert [context.sampled for context in seen + arrived] == [sampled, sampled]
    count = 2 if sampled and tracer is not None else 0
    by_kind = await spans(recorder, count)
    if count:
        assert by_kind[SpanKind.SERVER].parent_id == SPAN


async def test_without_a_tracer_no_trace_is_sampled(serve: Any, echo: Any, keys: Any) -> None:
    seen: list[RequestContext] = []
    served = await serve(servicer(echo, seen))
    with keys.signed_in():
        await served.stub.Echo(echo.pb.Note())
    assert (seen[0].span, seen[0].sampled) == (None, False)
