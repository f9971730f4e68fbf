"""Locked processes that wait: each serves one call, of the shape that it was locked in for."""

from __future__ import annotations

from collections import OrderedDict, deque

from strata.tool_execution.sandbox.forkserver import Child, ForkServer
from strata.tool_execution.sandbox.shape import Shape


class Pool:
    """The spare processes, by shape. How many there are of each follows from what was called.

    Args:
        size: Spare processes together.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        # By last use, the most recent last.
        self._spares: OrderedDict[Shape, deque[Child]] = OrderedDict()

    def __len__(self) -> int:
        """Counts the spare processes."""
        return sum(map(len, self._spares.values()))

    def take(self, server: ForkServer, shape: Shape) -> Child | None:
        """Takes out a process of a fork server that waits in this shape; None if there is none."""
        spares = self._spares.get(shape, deque())
        while spares:
            # The one that has waited longest: it is the most likely to be ready.
            child = spares.popleft()
            if child.server is server and child.is_there:
                return child
            child.close()
        return None

    def refill(self, server: ForkServer, shape: Shape) -> None:
        """Fills up with processes of the shape that was just called.

        A shape that has none gets one in any case, in the place of another.

        Raises:
            OSError: No process can be had.
        """
        self._forget_ended()
        mine = self._spares.setdefault(shape, deque())
        self._spares.move_to_end(shape)
        if self._size and not mine and len(self) >= self._size:
            # Of the shape that has most, and among those of the one not used for longest.
            most = max(self._spares.values(), key=len)
            dropped = most.popleft()
            server.kill(dropped)
            dropped.close()
        while len(self) < self._size:
            mine.append(server.spawn(shape))
        for empty in [key for key, spares in self._spares.items() if not spares]:
            del self._spares[empty]

    def _forget_ended(self) -> None:
        for spares in self._spares.values():
            for child in [child for child in spares if not child.is_there]:
                spares.remove(child)
                child.close()

    def clear(self) -> None:
        """Lets go of all of them; their fork server has ended."""
        for spares in self._spares.values():
            for child in spares:
                child.close()
        self._spares.clear()
