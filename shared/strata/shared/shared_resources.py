"""Resources that the services of one process share: opened once, closed by the last user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass
class _SharedResource:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    value: Any = None
    users: int = 0


class SharedResources:
    """Holds resources that are too large to have once per service, such as embedding models."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, _SharedResource] = {}

    async def share(
        self,
        key: Hashable,
        make: Callable[[AsyncExitStack], Awaitable[_T]],
        stack: AsyncExitStack,
    ) -> _T:
        """Returns the resource of a key; makes it at the first call.

        Args:
            key: Everything that decides which resource is made.
            make: Makes the resource, and puts its closing on the stack that it gets.
            stack: Releases the resource; it is closed when its last user has released it.
        """
        common = self._resources.setdefault(key, _SharedResource())
        async with common.lock:
            if not common.users:
                async with AsyncExitStack() as opening:
                    common.value = await make(opening)
                    common.stack = opening.pop_all()
            common.users += 1
        stack.push_async_callback(self._give_back, common)
        value: _T = common.value
        return value

    async def _give_back(self, common: _SharedResource) -> None:
        async with common.lock:
            common.users -= 1
            if not common.users:
                common.value = None
                await common.stack.aclose()
