"""Calls a method by name with a serialised request, and checks the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from e2e.edge.contract import Method, statuses_of_reasons
from faults.live import Client
from strata.protocol.status import DETAILS_KEY, DOMAIN

# Text that only internals of the server contain.
_INTERNALS = re.compile(
    r"Traceback|, line \d+|\bline \d+ column|(?-i:\bLINE \d+)|"
    r"\.py\b|site-packages|\bat 0x[0-9a-f]+|_pb2|sqlalchemy|asyncpg|qdrant|"
    r"\bgrpc\b|postgres|\bselect\b.+\bfrom\b|\binsert into\b|\bupdate\b.+\bset\b|\brelation\b|"
    r"violates|\b[A-Z]\w+(?:Error|Exception)\b|127\.0\.0\.1|localhost",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Answer:
    """A status with its details, or the responses of a successful call.

    Attributes:
        status: Name of the status.
        reason: ``ErrorInfo.reason``; empty if there is none.
        message: The details of the status.
        metadata: ``ErrorInfo.metadata``.
        violations: Fields and descriptions of ``BadRequest``.
        responses: Serialised.
    """

    status: str
    reason: str = ""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Sequence[tuple[str, str]] = ()
    responses: Sequence[bytes] = ()

    @property
    def pair(self) -> tuple[str, str]:
        """Status and reason."""
        return self.status, self.reason

    @property
    def whole_text(self) -> str:
        """All its readable text."""
        return " | ".join(
            (
                self.message,
                *self.metadata.values(),
                *(text for violation in self.violations for text in violation),
            )
        )


async def ask(
    client: Client, path: str, request: bytes | None, metadata: Sequence[tuple[str, str]]
) -> Answer:
    """Calls a method of any shape with one serialised request, or with none at all."""
    call: Any
    unary_stream: Any = client.channel.unary_stream
    if request is None:
        call = client.channel.stream_stream(path)(metadata=metadata, timeout=30)
        await call.done_writing()
    else:
        # On the wire the shapes differ only in the number of messages. This client sends the
        # message and the end of the stream together, so a server that answers before it has read
        # everything does not break a write.
        call = unary_stream(path)(request, metadata=metadata, timeout=30)
    try:
        return Answer("OK", responses=[response async for response in call])
    except grpc.aio.AioRpcError as error:
        return _failed(error)


def _failed(error: grpc.aio.AioRpcError) -> Answer:
    rich = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            rich = status_pb2.Status.FromString(value)
            assert rich.code == error.code().value[0]
            assert rich.message == error.details()
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in rich.details:
        if not detail.Unpack(info):
            detail.Unpack(bad)
    assert not info.reason or info.domain == DOMAIN
    return Answer(
        error.code().name,
        info.reason,
        error.details() or "",
        dict(info.metadata),
        [(violation.field, violation.description) for violation in bad.field_violations],
    )


def judge(method: Method, answer: Answer) -> None:
    """Asserts that the contract names the answer and that it contains no internals."""
    if answer.status == "OK":
        return
    assert answer.pair in method.promised, (answer.pair, answer.message)
    assert answer.status in statuses_of_reasons()[answer.reason]
    assert answer.message
    leak = _INTERNALS.search(answer.whole_text)
    assert leak is None, (leak, answer.whole_text)
