"""A collector of traces: takes OTLP over HTTP, as the OpenTelemetry Collector does."""

from __future__ import annotations

import asyncio
import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from doubles.http_server import HttpRequest, HttpResponse, HttpServer

_PATH = "/v1/traces"
_WAIT_S = 20.0


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it was received; ids are hex digits."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, object]
    failed: bool


class Trace:
    """The spans of one trace.

    Args:
        spans: All of them.
    """

    def __init__(self, spans: Sequence[CollectedSpan]) -> None:
        self.spans = sorted(spans, key=lambda span: span.start_ns)
        self._by_id = {span.span_id: span for span in self.spans}
        self._children: defaultdict[str, list[CollectedSpan]] = defaultdict(list)
        for span in self.spans:
            self._children[span.parent_id].append(span)

    @property
    def roots(self) -> list[CollectedSpan]:
        """The spans whose parent was not received."""
        return [span for span in self.spans if span.parent_id not in self._by_id]

    def children(self, span: CollectedSpan) -> list[CollectedSpan]:
        """The spans under a span, in the order of their starts."""
        return self._children[span.span_id]

    def named(self, name: str, service: str = "") -> list[CollectedSpan]:
        """The spans of a name, of one service or of any."""
        return [span for span in self.spans if span.name == name and service in {"", span.service}]

    def ancestors(self, span: CollectedSpan) -> Iterator[CollectedSpan]:
        """Yields the spans above a span, the nearest first."""
        parent = self._by_id.get(span.parent_id)
        while parent is not None:
            yield parent
            parent = self._by_id.get(parent.parent_id)

    def picture(self) -> str:
        """Returns the tree as indented lines, for messages of failed tests."""
        return "\n".join(line for root in self.roots for line in self._lines(root, ""))

    def _lines(self, span: CollectedSpan, indent: str) -> Iterator[str]:
        yield f"{indent}{span.service}: {span.name} [{span.kind}]"
        for child in self.children(span):
            yield from self._lines(child, indent + "  ")


class OtlpCollector:
    """A collector of traces for tests.

    Attributes:
        spans: What was received.
        headers: The headers of each request.
        status: What requests are answered with.
        raw: The bytes of all requests, unpacked.
    """

    def __init__(self) -> None:
        self._http = HttpServer(self._handle)
        self._received = asyncio.Event()
        self.spans: list[CollectedSpan] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.raw = b""

    @property
    def url(self) -> str:
        """The URL for `STRATA_TRACES_ENDPOINT`."""
        return self._http.url

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def request(self) -> None:
        """Waits for the next request."""
        self._received.clear()
        async with asyncio.timeout(_WAIT_S):
            await self._received.wait()

    async def ended(self, name: str) -> CollectedSpan:
        """Waits until a span of a name was received, and returns it."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                self._received.clear()
                for span in self.spans:
                    if span.name == name:
                        return span
                await self._received.wait()

    def trace(self, trace_id: str) -> Trace:
        """The spans of a trace."""
        return Trace([span for span in self.spans if span.trace_id == trace_id])

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        if request.path != _PATH or request.method != "POST":
            return HttpResponse(404)
        self.headers.append(dict(request.headers))
        if self.status == 200:
            body = request.raw
            if request.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            self.raw += body
            self.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
        self._received.set()
        return HttpResponse(self.status, {})


def _spans(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield CollectedSpan(
                    service=str(resource["service.name"]),
                    name=span.name,
                    kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=_attributes(span.attributes),
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                )


def _attributes(pairs: Sequence[KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
