"""Records the spans of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata.shared.context import RequestContext, use
from strata.shared.tracing.spans import Span, SpanKind, Tracer


class SpanRecorder:
    """Records the spans that end. Implements `SpanSink`.

    Attributes:
        spans: The spans in the order of their ends.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Records a span."""
        self.spans.append(span)

    def named(self, name: str) -> Span:
        """Returns the one span of a name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def texts(self) -> str:
        """Returns all texts of the spans."""
        return repr([(span.name, span.attributes, span.error_type) for span in self.spans])


@contextmanager
def traced(recorder: SpanRecorder) -> Iterator[Span]:
    """Runs the block inside a traced call; yields the span of the call, which is never ended."""
    tracer = Tracer(recorder)
    trace = tracer.join(None)
    span = tracer.begin("tests", "call", SpanKind.SERVER, trace)
    assert span is not None
    with use(RequestContext(trace_id=trace.trace_id, span=span, sampled=True)):
        yield span
