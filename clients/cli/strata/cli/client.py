"""The client of the commands: stubs, lookup by name, and lists of several pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.cli.connection import Target
from strata.client import services
from strata.client.calls.agents import is_agent_id
from strata.client.calls.pages import pages
from strata.client.errors import UnreachableError
from strata.client.services import Services, is_transport_failure, open_channel
from strata.protocol.errors import NotFoundError, Reason, UnavailableError

ResultT = TypeVar("ResultT")

_PAGE_SIZE = 500


class GatewayClient(Services):
    """Stubs of one gateway's services, and lookup of agents by name."""

    async def agent(self, name_or_id: str) -> agent_service_pb2.Agent:
        """Returns an agent by id or by name.

        Raises:
            NotFoundError: There is none (``AGENT_NOT_FOUND``).
        """
        by_id = is_agent_id(name_or_id)
        request = agent_service_pb2.GetAgentRequest(
            agent_id=name_or_id if by_id else "", name="" if by_id else name_or_id
        )
        try:
            response = await self.agents.GetAgent(request)
        except NotFoundError as error:
            raise NotFoundError(
                f'There is no agent "{name_or_id}". List them with: strata agents list',
                reason=Reason.AGENT_NOT_FOUND,
            ) from error
        return response.agent

    async def agent_id(self, name_or_id: str) -> str:
        """Returns the id of an agent; an id is not looked up.

        Raises:
            NotFoundError: There is no agent of that name (``AGENT_NOT_FOUND``).
        """
        return name_or_id if is_agent_id(name_or_id) else (await self.agent(name_or_id)).id


class ListResponse(Protocol):
    """A response of a List call: one page of a list."""

    next_page_token: str


ListResponseT = TypeVar("ListResponseT", bound=ListResponse)


async def first_of(
    call: Callable[[Any], Awaitable[ListResponseT]], request: Any, items: str, limit: int
) -> ListResponseT:
    """Reads pages until there are `limit` items, and returns them as one response.

    Args:
        call: The method of a stub.
        request: The request with its filters; its page fields are set here.
        items: Name of the repeated field.
        limit: Maximum number of items.
    """
    whole: ListResponseT | None = None
    while True:
        have = len(getattr(whole, items)) if whole is not None else 0
        request.page_size = min(_PAGE_SIZE, limit - have)
        page = await call(request)
        if whole is None:
            whole = page
        else:
            getattr(whole, items).extend(getattr(page, items))
            whole.next_page_token = page.next_page_token
        request.page_token = page.next_page_token
        if not page.next_page_token or len(getattr(whole, items)) >= limit:
            return whole


async def all_of(
    call: Callable[[Any], Awaitable[ListResponseT]], request: Any, items: str
) -> ListResponseT:
    """Reads all pages, as large as the server makes them, and returns them as one response.

    Args:
        call: The method of a stub.
        request: The request; its page token is set here.
        items: Name of the repeated field.
    """
    whole: ListResponseT | None = None
    async for page in pages(call, request):
        if whole is None:
            whole = page
        else:
            getattr(whole, items).extend(getattr(page, items))
    assert whole is not None
    whole.next_page_token = ""
    return whole


async def item_named(
    call: Callable[[Any], Awaitable[ListResponse]],
    request: Any,
    items: str,
    name_or_id: str,
    *,
    kind: str,
    command: str,
    reason: Reason,
) -> Any:
    """Returns the first item of a list with this name or id.

    Args:
        call: The method of a stub.
        request: The request with its filters; its page fields are set here.
        items: Name of the repeated field, whose messages have ``id`` and ``name``.
        name_or_id: The name or the id.
        kind: What the items are, for the error.
        command: The command that lists them, for the error.
        reason: Reason of the error.

    Raises:
        NotFoundError: There is none.
    """
    request.page_size = _PAGE_SIZE
    async for page in pages(call, request):
        for item in getattr(page, items):
            if name_or_id in (item.id, item.name):
                return item
    raise NotFoundError(
        f'There is no {kind} "{name_or_id}". List them with: {command}', reason=reason
    )


def new_request_id() -> str:
    """Returns a new idempotency key, so that a call that the channel retries takes effect once."""
    return services.new_request_id("cli")


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[GatewayClient]:
    """Opens a connection to a gateway for the length of the block.

    Raises:
        UnreachableError: Nothing answers there.
    """
    try:
        async with open_channel(target.address, target.api_key, tls=target.tls) as channel:
            yield GatewayClient(channel)
    except UnavailableError as error:
        if not is_transport_failure(error):
            raise
        raise UnreachableError(
            f"No gateway answers at {target.address}. {target.advice}"
        ) from error


def talk(target: Target, work: Callable[[GatewayClient], Awaitable[ResultT]]) -> ResultT:
    """Connects to a gateway, runs `work` and returns its result."""

    async def main() -> ResultT:
        async with connected(target) as client:
            return await work(client)

    return asyncio.run(main())
