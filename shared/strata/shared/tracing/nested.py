"""Child spans of the span of the call being served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata.shared.context import current, use
from strata.shared.tracing.spans import Attributes, Span, SpanKind


@contextmanager
def nested_span(
    name: str, attributes: Attributes | None = None, *, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span | None]:
    """Records the block as a span; spans begun in the block are parts of it.

    Not for a block of an asynchronous generator that yields: the context of its caller would
    change.

    Yields:
        The span; None if the call is not traced.
    """
    context = current()
    if context.span is None:
        yield None
        return
    span = context.span.child(name, kind, attributes)
    try:
        with use(context.with_span(span)):
            yield span
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        span.end()
