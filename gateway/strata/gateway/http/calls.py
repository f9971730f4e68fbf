"""Calls of the gateway's methods on behalf of an HTTP request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from starlette.requests import Request

from strata.gateway.auth.authenticator import API_KEY_HEADER
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.interceptors.observe import REQUEST_ID_KEY, TRACEPARENT_KEY

# The headers of a request that a call takes over as its metadata.
_FORWARDED = (AUTHORIZATION_KEY, API_KEY_HEADER, REQUEST_ID_KEY, TRACEPARENT_KEY)


class HeaderLookup(Protocol):
    """The headers of a request, by lower-case name."""

    def get(self, name: str, /) -> str | None:
        """Returns the value of a header; None if it is not there."""
        ...


def metadata_of(headers: HeaderLookup) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call: the headers with credentials and with ids of the trace."""
    return tuple(_present(headers))


def _present(headers: HeaderLookup) -> Iterator[tuple[str, str]]:
    for name in _FORWARDED:
        value = headers.get(name)
        if value is not None:
            yield name, value


def request_id_in(trailing: Mapping[str, str | bytes]) -> str | None:
    """Returns the id by which the logs know a call, from its trailing metadata."""
    value = trailing.get(REQUEST_ID_KEY)
    return value if isinstance(value, str) else None


class BodyTooLargeError(Exception):
    """The body of a request is larger than allowed.

    Args:
        limit: The largest size in bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than the {limit} bytes allowed.")


async def read_body(request: Request, limit: int) -> bytes:
    """Returns the body of a request.

    Raises:
        BodyTooLargeError: It is larger than the limit.
        ClientDisconnect: The client has left.
    """
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > limit:
            raise BodyTooLargeError(limit)
    return bytes(chunks)
