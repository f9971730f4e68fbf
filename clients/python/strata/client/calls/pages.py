"""The pages of a list."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, TypeVar


class Page(Protocol):
    """A response of a List call."""

    next_page_token: str


PageT = TypeVar("PageT", bound=Page)


async def pages(
    method: Callable[[Any], Awaitable[PageT]], request: Any
) -> AsyncGenerator[PageT, None]:
    """Yields the pages of a list; each is requested when the one before has been read.

    Args:
        method: The method of a stub.
        request: The request for the first page; its ``page_token`` is set here.
    """
    while True:
        page = await method(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token
