"""Spans: the operations of a trace, with their start, duration and outcome.

The attributes of spans are names, ids, sizes and times. They never hold the text of a message, a
memory or a tool call, an argument, a key or a secret; of an error they hold
only the type.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from strata.protocol.errors import Reason, StrataError
from strata.shared.tracing.trace_context import (
    TraceContext,
    make_traceparent,
    new_span_id,
    new_trace_id,
)

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]

# The digits that are random in every trace id (W3C Trace Context Level 2), and in UUIDs
# of version 7.
_RANDOM_DIGITS = 14


class SpanKind(IntEnum):
    """The kinds of spans, with the values of OpenTelemetry's `SpanKind`."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2


class SpanSink(Protocol):
    """Takes the spans that have ended."""

    def add(self, span: Span) -> None:
        """Takes a span; must not block."""
        ...


class Span:
    """One piece of work under a trace. It is exported when it ends.

    Attributes:
        service: The service that does the work, ``recall``.
        name: The kind of operation; has few values.
        kind: Its kind.
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        parent_id: The span that it is a part of; empty for the first span of a trace.
        start_ns: Unix time in nanoseconds.
        end_ns: The same of the end; 0 before.
        attributes: Properties of the operation.
        error_type: The type of the error that it ended with; empty for none.
    """

    __slots__ = (
        "_began_ns", "_sink", "attributes", "end_ns", "error_type", "kind", "name", "parent_id",
        "service", "span_id", "start_ns", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        sink: SpanSink,
        service: str,
        name: str,
        kind: SpanKind,
        trace_id: str,
        span_id: str,
        parent_id: str,
        attributes: Attributes | None,
        start_ns: int = 0,
    ) -> None:
        now_ns = time.time_ns()
        self._sink = sink
        self.service = service
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.start_ns = start_ns or now_ns
        # Clocks of two machines differ: work that began elsewhere did not begin after now.
        self._began_ns = time.perf_counter_ns() - max(now_ns - self.start_ns, 0)
        self.end_ns = 0
        self.attributes: dict[str, AttributeValue] = dict(attributes or {})
        self.error_type = ""

    @property
    def traceparent(self) -> str:
        """The ``traceparent`` of calls that the work makes."""
        return make_traceparent(self.trace_id, self.span_id, sampled=True)

    def child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Span:
        """Begins a span that is a part of this one."""
        return Span(
            self._sink,
            self.service,
            name,
            kind,
            self.trace_id,
            new_span_id(),
            self.span_id,
            attributes,
        )

    def fail(self, error: BaseException | str) -> None:
        """Marks the span as failed.

        Args:
            error: The error, or the name of its type. The text of the error is not kept.
        """
        self.error_type = error if isinstance(error, str) else error_type(error)

    def end(self) -> None:
        """Ends the span, which is exported then. Later calls do nothing."""
        if not self.end_ns:
            self.end_ns = self.start_ns + (time.perf_counter_ns() - self._began_ns)
            self._sink.add(self)


class Tracer:
    """Begins the first spans of this process under a trace.

    Args:
        sink: Takes the spans that have ended.
        sample_ratio: Share of the traces begun here that are exported, from 0 to 1. For a trace
          that was begun elsewhere, the decision made there applies.
    """

    def __init__(self, sink: SpanSink, sample_ratio: float = 1.0) -> None:
        self._sink = sink
        self._below: int = round(sample_ratio * 16**_RANDOM_DIGITS)

    def samples(self, trace_id: str) -> bool:
        """Whether a trace that begins here is exported. All processes decide the same."""
        return int(trace_id[-_RANDOM_DIGITS:], 16) < self._below

    def join(self, parent: TraceContext | None, trace_id: str = "") -> TraceContext:
        """Returns the context for the first span: the parent's, or the context of a new trace.

        Args:
            parent: The span elsewhere that the work is a part of; None for none.
            trace_id: Id of a new trace; empty for a random one.
        """
        if parent is not None:
            return parent
        trace_id = trace_id or new_trace_id()
        return TraceContext(trace_id, "", self.samples(trace_id))

    def begin(
        self,
        service: str,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        *,
        attributes: Attributes | None = None,
        span_id: str = "",
        start_ns: int = 0,
    ) -> Span | None:
        """Begins a span; returns None if its trace is not exported.

        Args:
            service: The service that does the work.
            name: The kind of operation.
            kind: The kind of the span.
            parent: See `join`.
            attributes: Properties of the work.
            span_id: Id of the span; empty for a random one.
            start_ns: When the work began, Unix time in nanoseconds; 0 for now.
        """
        if not parent.sampled:
            return None
        return Span(
            self._sink,
            service,
            name,
            kind,
            parent.trace_id,
            span_id or new_span_id(),
            parent.span_id,
            attributes,
            start_ns,
        )


def error_type(error: BaseException) -> str:
    """Returns the type of an error for a span: the reason or the status of one of ours."""
    if isinstance(error, StrataError):
        return error.status if error.reason is Reason.UNSPECIFIED else error.reason.value
    return type(error).__name__
