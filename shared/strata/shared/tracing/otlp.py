"""Sends spans to a collector by OTLP over HTTP, from a separate thread.

The batches are our own: the processor of the SDK starts its thread again in each fork of the
process, and uvloop starts programs by a fork (see `strata.shared.fork_safety`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as OpenTelemetryKind

from strata.shared.logs import get_logger
from strata.shared.metric_names import TRACE_SPANS
from strata.shared.release import release
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.spans import Span, SpanKind

MAX_WAITING = 8192
"""Spans that wait for the collector; further ones are dropped. Each takes about 1.5 KiB."""
BATCH = 512
"""Maximum number of spans of a request."""
INTERVAL_S = 2.0
"""How often a batch that is not full is sent."""
TIMEOUT_S = 10.0
"""Time for a request with its repetitions."""
CLOSING_S = 3.0
"""Time for the last batches when the process ends."""
ANSWER_BYTES = 64 * 1024
"""A longer answer of the collector, or one of unknown length, is not read."""
_WARN_EVERY_S = 60.0

_KINDS = {kind: OpenTelemetryKind(kind.value) for kind in SpanKind}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FAILED = Status(StatusCode.ERROR)
_UNSET = Status(StatusCode.UNSET)

_log = get_logger(__name__)


class _ShortAnswers(requests.Session):
    """Sends requests, and reads no more than `ANSWER_BYTES` of each answer.

    The whole body would be read otherwise, even one that never ends. The exporter needs only the
    status.
    """

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Returns the answer. The body is empty if it is longer, or of unknown length."""
        answer = super().request(*args, **{**options, "stream": True})
        length = answer.headers.get("content-length", "")
        with answer:
            if re.fullmatch("[0-9]{1,5}", length) and int(length) <= ANSWER_BYTES:
                # Read as it was sent, because a short compressed text can become a long one.
                # The connection can be used again.
                answer.raw.read(decode_content=False)
        return answer


class OtlpSink:
    """Takes spans and sends them in batches. Implements `SpanSink`.

    `add` always returns at once: spans are dropped and counted when the queue is full.

    Args:
        url: Where the batches are posted.
        headers: Headers of the requests.
        telemetry: Counts the spans by outcome.
        interval_s: How often a batch that is not full is sent, in seconds.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        telemetry: Telemetry,
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        # Each failed request would be logged there, some of them several times.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(
            url,
            headers=headers,
            timeout=TIMEOUT_S,
            compression=Compression.Gzip,
            session=_ShortAnswers(),
        )
        self._url = url
        self._interval_s = interval_s
        self._scope = InstrumentationScope("strata", release())
        self._resources: dict[str, Resource] = {}
        self._unsent: deque[Span] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        self._warn_at = 0.0
        self._dropped = telemetry.counter(TRACE_SPANS, outcome="dropped")
        # Only the thread changes these.
        self._exported = telemetry.counter(TRACE_SPANS, outcome="exported")
        self._failed = telemetry.counter(TRACE_SPANS, outcome="failed")
        # A daemon: the process may end while a collector does not answer.
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        """Takes a span that has ended."""
        if len(self._unsent) >= MAX_WAITING:
            self._dropped.inc()
            return
        self._unsent.append(span)
        if len(self._unsent) == BATCH:
            self._wake.set()

    async def close(self) -> None:
        """Sends the waiting spans for `CLOSING_S` at most; stops at once if exports fail."""
        self._closing = True
        self._wake.set()
        latest = time.monotonic() + (0.0 if self._failing else CLOSING_S)
        while self._thread.is_alive() and time.monotonic() < latest:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _work(self) -> None:
        while True:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            # Read first: spans that are added later than the end is set are not expected.
            closing = self._closing
            while self._unsent:
                self._send()
            if closing:
                return

    def _send(self) -> None:
        waiting = self._unsent
        batch = [waiting.popleft() for _ in range(min(len(waiting), BATCH))]
        try:
            result = self._exporter.export([self._converted(span) for span in batch])
        except Exception as error:  # noqa: BLE001 - the thread must continue
            result = SpanExportResult.FAILURE
            _log.warning("spans not converted", error=type(error).__name__)
        self._failing = result is not SpanExportResult.SUCCESS
        if not self._failing:
            self._exported.inc(len(batch))
            return
        self._failed.inc(len(batch))
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + _WARN_EVERY_S
            _log.warning("spans not exported", collector=self._url, spans=len(batch))

    def _converted(self, span: Span) -> ReadableSpan:
        trace_id = int(span.trace_id, 16)
        context = SpanContext(trace_id, int(span.span_id, 16), False, _SAMPLED)
        parent = None
        if span.parent_id:
            remote = span.kind is SpanKind.SERVER
            parent = SpanContext(trace_id, int(span.parent_id, 16), remote, _SAMPLED)
        attributes = span.attributes
        if span.error_type:
            attributes["error.type"] = span.error_type
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource(span.service),
            attributes=attributes,
            kind=_KINDS[span.kind],
            status=_FAILED if span.error_type else _UNSET,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _resource(self, service: str) -> Resource:
        resource = self._resources.get(service)
        if resource is None:
            resource = self._resources[service] = Resource(
                {
                    "service.namespace": "strata",
                    "service.name": service,
                    "service.version": release(),
                    "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
                }
            )
        return resource
