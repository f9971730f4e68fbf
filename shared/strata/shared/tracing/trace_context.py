"""The context of a trace as calls carry it: the ``traceparent`` of W3C Trace Context."""

from __future__ import annotations

import random
import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of another process that is the parent of spans of this process.

    Attributes:
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        sampled: Whether the spans of the trace are exported.
    """

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(header: str | bytes | None) -> TraceContext | None:
    """Returns the content of a ``traceparent`` header, None if there is no valid one.

    W3C Trace Context §3.2: version ``ff`` and all-zero ids are invalid; version ``00``
    has exactly four parts; later versions may have more.
    """
    if not isinstance(header, str):
        return None
    match = _TRACEPARENT.fullmatch(header)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    if version == "00" and rest is not None:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def make_traceparent(trace_id: str, span_id: str = "", *, sampled: bool) -> str:
    """Returns a ``traceparent`` for an outgoing call.

    Args:
        trace_id: The trace.
        span_id: The span that makes the call; empty for a random one, where no span is recorded.
        sampled: Whether the spans of the trace are exported.
    """
    return f"00-{trace_id}-{span_id or new_span_id()}-{'01' if sampled else '00'}"


def new_trace_id() -> str:
    """Returns 32 random hex digits, not all zero."""
    return f"{secrets.randbits(128) | 1:032x}"


def new_span_id() -> str:
    """Returns 16 random hex digits, not all zero."""
    return f"{random.getrandbits(64) | 1:016x}"
