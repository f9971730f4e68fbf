"""Calls of the gateway's methods on behalf of an HTTP request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2
from strata.gateway.auth.authenticator import API_KEY_HEADER
from strata.shared.ids import is_id
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.interceptors.observe import REQUEST_ID_KEY, TRACEPARENT_KEY

# The headers of a request that a call takes over as its metadata.
_FORWARDED = (AUTHORIZATION_KEY, API_KEY_HEADER, REQUEST_ID_KEY, TRACEPARENT_KEY)
_APPROVALS_PAGE = 100
_IDENTITY = "identity"
_SHOWN = 40

RunEvents = AsyncGenerator[run_event_pb2.RunEvent]
"""Events of a run, to its end."""


class HeaderLookup(Protocol):
    """The headers of a request, by lower-case name."""

    def get(self, name: str, /) -> str | None:
        """Returns the value of a header; None if it is missing."""
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
    """Returns the id of a call in the logs, from its trailing metadata."""
    value = trailing.get(REQUEST_ID_KEY)
    return value if isinstance(value, str) else None


def agent_request(agent: str) -> agent_service_pb2.GetAgentRequest:
    """Returns the request for an agent that a client names by id or by name."""
    if is_id(agent, "agent"):
        return agent_service_pb2.GetAgentRequest(agent_id=agent)
    return agent_service_pb2.GetAgentRequest(name=agent)


async def events_of_run(call: Any) -> RunEvents:
    """Returns the events of a call that streams a run.

    Raises:
        grpc.aio.AioRpcError: The call failed.
    """
    try:
        async for response in call:
            event: run_event_pb2.RunEvent = response.event
            yield event
    finally:
        # If the client has left, the call is over; the run continues.
        call.cancel()


async def approvals_of(
    runs: Any, agent_id: str, metadata: Any, *, conversation_id: str = "", include_decided: bool
) -> AsyncIterator[run_service_pb2.Approval]:
    """Yields the requests for decisions about tool calls of an agent, the oldest first.

    Args:
        runs: A stub of the run service.
        agent_id: The agent.
        metadata: The caller's credentials.
        conversation_id: One of its conversations; empty for all.
        include_decided: Whether to yield decided ones too.

    Raises:
        grpc.aio.AioRpcError: A call failed.
    """
    token = ""
    while True:
        page = await runs.ListApprovals(
            run_service_pb2.ListApprovalsRequest(
                agent_id=agent_id,
                conversation_id=conversation_id,
                include_decided=include_decided,
                page_size=_APPROVALS_PAGE,
                page_token=token,
            ),
            metadata=metadata,
        )
        for approval in page.approvals:
            yield approval
        token = page.next_page_token
        if not token:
            break


async def after_first(first: run_event_pb2.RunEvent, later_events: RunEvents) -> RunEvents:
    """Returns events whose first one was already read: that one, then the rest."""
    async with aclosing(later_events):
        yield first
        async for event in later_events:
            yield event


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
        HTTPException: It is compressed.
        ClientDisconnect: The client has left.
    """
    encoding = request.headers.get("content-encoding", _IDENTITY)
    if encoding.lower() != _IDENTITY:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The body has the content-encoding {encoding[:_SHOWN]!r}; send it without one.",
        )
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > limit:
            raise BodyTooLargeError(limit)
    return bytes(chunks)
