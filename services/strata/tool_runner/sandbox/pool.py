"""Pool of locked processes that wait for a call. Each serves one call of its shape."""

from __future__ import annotations

from collections import OrderedDict, deque

from strata.tool_runner.sandbox.forkserver import Child, ForkServer
from strata.tool_runner.sandbox.shape import Shape


class Pool:
    """The waiting processes by shape. Their numbers follow the shapes of recent calls.

    Args:
        size: Number of waiting processes in total.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        # In order of last use, the most recent last.
        self._spares: OrderedDict[Shape, deque[Child]] = OrderedDict()

    def __len__(self) -> int:
        """Returns the number of waiting processes."""
        return sum(map(len, self._spares.values()))

    def take(self, server: ForkServer, shape: Shape) -> Child | None:
        """Removes and returns a waiting process of a shape; None if there is none."""
        spares = self._spares.get(shape, deque())
        while spares:
            # The oldest one is the most likely to be ready.
            child = spares.popleft()
            if child.server is server and child.is_alive:
                return child
            child.close()
        return None

    def refill(self, server: ForkServer, shape: Shape) -> None:
        """Fills the pool with processes of the shape of the last call.

        A shape without a process always gets one, even if it replaces another.

        Raises:
            OSError: No process can be started.
        """
        self._forget_ended()
        mine = self._spares.setdefault(shape, deque())
        self._spares.move_to_end(shape)
        if self._size and not mine and len(self) >= self._size:
            # Drops one of the shape with the most processes; of several, the least recently used.
            largest = max(self._spares.values(), key=len)
            _end(server, largest.popleft())
        while len(self) < self._size:
            mine.append(server.spawn(shape))
        for empty in [key for key, spares in self._spares.items() if not spares]:
            del self._spares[empty]

    def shrink(self, server: ForkServer, size: int) -> None:
        """Ends waiting processes until only a number is left, of the shapes of the last calls."""
        self._forget_ended()
        for spares in self._spares.values():
            while spares and len(self) > size:
                _end(server, spares.popleft())

    def _forget_ended(self) -> None:
        for spares in self._spares.values():
            for child in [child for child in spares if not child.is_alive]:
                spares.remove(child)
                child.close()

    def clear(self) -> None:
        """Closes all processes; their fork server has ended."""
        for spares in self._spares.values():
            for child in spares:
                child.close()
        self._spares.clear()


def _end(server: ForkServer, child: Child) -> None:
    server.kill(child)
    child.close()
