"""The sending of spans to a collector."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles.otlp_collector import OtlpCollector
from polling import eventually
from strata.protocol.errors import WrongSettingError
from strata.shared.metric_names import TRACE_SPANS
from strata.shared.telemetry import Telemetry
from strata.shared.tracing import otlp
from strata.shared.tracing.opening import open_telemetry
from strata.shared.tracing.otlp import BATCH, MAX_WAITING, OtlpSink
from strata.shared.tracing.settings import TraceSettings
from strata.shared.tracing.spans import Span, SpanKind, Tracer
from strata.standalone.ports import ReservedPort

# Nothing is sent before the end, or before a batch is full.
NEVER_S = 600.0


def begin(tracer: Tracer, service: str = "recall", **attributes: Any) -> Span:
    span = tracer.begin(service, "read", SpanKind.SERVER, tracer.join(None), attributes=attributes)
    assert span is not None
    return span


@asynccontextmanager
async def open_sink(url: str, **options: Any) -> AsyncIterator[tuple[OtlpSink, Telemetry]]:
    telemetry = Telemetry()
    sink = OtlpSink(url, {}, telemetry, interval_s=NEVER_S, **options)
    try:
        yield sink, telemetry
    finally:
        await sink.close()


async def test_spans_arrive_as_they_were_recorded() -> None:
    async with OtlpCollector() as collector:
        settings = TraceSettings(endpoint=collector.url, headers={"x-key": "of the collector"})
        async with open_telemetry(settings) as telemetry:
            assert telemetry.tracer is not None
            parent = begin(telemetry.tracer, "gateway", words=["a", "b"], number=3, share=0.5)
            child = parent.child("query", SpanKind.CLIENT)
            child.fail("23505")
            child.end()
            parent.end()
            begin(telemetry.tracer, "recall").end()
        assert telemetry.total(TRACE_SPANS, outcome="exported") == 3
    by_name = {(span.service, span.name): span for span in collector.spans}
    assert len(by_name) == 3
    received = by_name["gateway", "read"]
    assert (received.trace_id, received.span_id) == (parent.trace_id, parent.span_id)
    assert (received.parent_id, received.kind, received.failed) == ("", "SERVER", False)
    assert (received.start_ns, received.end_ns) == (parent.start_ns, parent.end_ns)
    assert received.attributes == {"words": ["a", "b"], "number": 3, "share": 0.5}
    query = by_name["gateway", "query"]
    assert (query.trace_id, query.parent_id) == (parent.trace_id, parent.span_id)
    assert (query.kind, query.failed, query.attributes) == (
        "CLIENT",
        True,
        {"error.type": "23505"},
    )
    [headers] = collector.headers
    assert headers["x-key"] == "of the collector"
    assert headers["content-encoding"] == "gzip"


async def test_a_full_batch_is_sent_at_once() -> None:
    async with OtlpCollector() as collector, open_sink(f"{collector.url}/v1/traces") as (sink, _):
        tracer = Tracer(sink)
        for _ in range(BATCH):
            begin(tracer).end()
        await collector.request()
        assert len(collector.spans) == BATCH


async def test_a_collector_that_refuses_loses_its_batch_only() -> None:
    async with OtlpCollector() as collector:
        url = f"{collector.url}/v1/traces"
        collector.status = 400
        async with open_sink(url) as (sink, telemetry):
            begin(Tracer(sink)).end()
        assert telemetry.total(TRACE_SPANS, outcome="failed") == 1
        assert collector.spans == []


async def test_an_unreachable_collector_does_not_delay_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "CLOSING_S", 0.2)
    with ReservedPort() as port:
        telemetry = Telemetry()
        sink = OtlpSink(f"http://127.0.0.1:{port.number}/v1/traces", {}, telemetry)
        tracer = Tracer(sink)
        for _ in range(MAX_WAITING + 3 * BATCH):
            begin(tracer).end()
        # The thread has taken a batch, or none yet: it waits for the collector.
        dropped = telemetry.total(TRACE_SPANS, outcome="dropped")
        assert BATCH <= dropped <= 3 * BATCH
        await sink.close()
    assert telemetry.total(TRACE_SPANS, outcome="exported") == 0


@pytest.mark.parametrize(
    "head",
    [b"Transfer-Encoding: chunked", b"Connection: close", b"Content-Length: 999999999"],
    ids=["chunked", "until the end of the connection", "long"],
)
@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
async def test_an_endless_answer_of_a_collector_is_not_read(status: bytes, head: bytes) -> None:
    sent_chunks = 0
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent_chunks
        await reader.read(1)
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            # Far more than the buffers of the sockets hold.
            while sent_chunks < 1000:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
                sent_chunks += 1
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_sink(f"http://127.0.0.1:{port}/v1/traces") as (sink, telemetry):
        begin(Tracer(sink)).end()
        await sink.close()
        await ended.wait()
        outcome = "exported" if status == b"200 OK" else "failed"
        assert telemetry.total(TRACE_SPANS, outcome=outcome) == 1
    assert sent_chunks < 500


async def test_answers_of_a_known_length_leave_the_connection_open() -> None:
    connections = 0
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                assert length is not None
                await reader.readexactly(int(length.group(1)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with open_sink(f"http://127.0.0.1:{port}/v1/traces") as (sink, telemetry):
            for _ in range(2 * BATCH):
                begin(Tracer(sink)).end()
            await eventually(lambda: telemetry.total(TRACE_SPANS, outcome="exported") == 2 * BATCH)
        await ended.wait()
    assert connections == 1


async def test_a_span_that_cannot_be_converted_does_not_end_the_thread() -> None:
    async with (
        OtlpCollector() as collector,
        open_sink(f"{collector.url}/v1/traces") as (
            sink,
            telemetry,
        ),
    ):
        tracer = Tracer(sink)
        broken = begin(tracer)
        broken.trace_id = "no digits"
        broken.end()
        for _ in range(2 * BATCH - 1):
            begin(tracer).end()
        # The batch with the broken span has as many spans as existed when it was sent.
        await eventually(lambda: telemetry.total(TRACE_SPANS) == 2 * BATCH)
        failed = telemetry.total(TRACE_SPANS, outcome="failed")
        assert 0 < failed <= BATCH
        assert len(collector.spans) == 2 * BATCH - failed


async def test_without_an_endpoint_there_is_no_tracer() -> None:
    async with open_telemetry(TraceSettings()) as telemetry:
        assert telemetry.tracer is None
        assert telemetry.total(TRACE_SPANS) == 0


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
        ("", ""),
    ],
)
def test_the_path_is_added_to_an_endpoint_without_one(
    endpoint: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_TRACES_ENDPOINT", endpoint)
    assert TraceSettings().url == url


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ENDPOINT", "collector"), ("SAMPLE_RATIO", "1.5"), ("HEADERS", "secret")],
)
def test_wrong_settings_are_named_without_their_values(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"STRATA_TRACES_{variable}", value)
    with pytest.raises(WrongSettingError, match=f"STRATA_TRACES_{variable}") as raised:
        TraceSettings()
    assert value not in str(raised.value)


def test_headers_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_TRACES_HEADERS", '{"authorization": "Bearer secret"}')
    settings = TraceSettings()
    assert settings.headers["authorization"].get_secret_value() == "Bearer secret"
    assert "secret" not in repr(settings)
