"""The ``traceparent`` of calls."""

from __future__ import annotations

import pytest

from strata.shared.tracing.trace_context import (
    TraceContext,
    make_traceparent,
    new_span_id,
    new_trace_id,
    parse_traceparent,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SAMPLED = TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", SAMPLED),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", SAMPLED),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", SAMPLED),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
        (None, None),
        (b"00", None),
    ],
)
def test_traceparent_is_read_as_specified(
    header: str | bytes | None, expected: TraceContext | None
) -> None:
    assert parse_traceparent(header) == expected


@pytest.mark.parametrize("sampled", [False, True])
def test_sent_contexts_can_be_read(sampled: bool) -> None:
    trace_id, span_id = new_trace_id(), new_span_id()
    sent = make_traceparent(trace_id, span_id, sampled=sampled)
    assert parse_traceparent(sent) == TraceContext(trace_id, span_id, sampled)


def test_every_hop_without_a_span_has_a_new_id() -> None:
    sent = {make_traceparent(TRACE, sampled=False) for _ in range(2)}
    assert len(sent) == 2
