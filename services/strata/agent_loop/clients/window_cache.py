"""Caches the windows that this process has read, so that a turn reads only new messages."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from strata.agent_loop.convert.messages import window_from_proto
from strata.agent_loop.domain.conversation.messages import Window
from strata.agent_loop.domain.ports import CommittedStep
from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.shared.record_fields import replace

WINDOW_CACHE_BYTES = 16 << 20
"""Size of the cache of windows: some 4,000 messages."""
# Approximate size of a message in addition to its text, with the forms that are kept with it.
_MESSAGE_BYTES = 3_000


@dataclass(frozen=True, slots=True)
class CachedWindow:
    """A window as it was at the beginning of an earlier turn, or after one of its steps.

    Attributes:
        window: The window.
        size: Its approximate size in bytes.
    """

    window: Window
    size: int

    def to_proto(self) -> window_pb.HeldWindow:
        """Returns the request field with the range of messages that this process holds."""
        messages = self.window.messages
        return window_pb.HeldWindow(
            revision=self.window.revision,
            message_count=len(messages),
            last_message_id=messages[-1].id,
        )

    def with_step(self, step: CommittedStep, size: int) -> CachedWindow:
        """Returns the window after a step; this one if it was also changed in another way.

        Args:
            step: The step.
            size: Approximate size of its messages in bytes.
        """
        window = self.window
        if step.revision != window.revision + 1:
            return self
        after = replace(
            window,
            messages=(*window.messages, *step.messages),
            revision=step.revision,
            message_count=step.message_count,
        )
        return CachedWindow(after, self.size + size)


def size_of(message: message_pb2.Message) -> int:
    """Returns the approximate size of a message in the cache, in bytes."""
    return _MESSAGE_BYTES + message.ByteSize()


def whole_window(
    response: window_pb.BeginTurnResponse, cached: CachedWindow | None
) -> CachedWindow:
    """Returns the window of a turn that has begun, with the messages that recall left out.

    Args:
        response: The response.
        cached: The part of the window that the agent loop has, as in the request.
    """
    window = window_from_proto(response.window)
    sizes = [size_of(message) for message in response.window.messages]
    unchanged = response.unchanged_count
    if not unchanged:
        return CachedWindow(window, sum(sizes))
    assert cached is not None  # else recall leaves nothing out
    system, *added = window.messages
    messages = (system, *cached.window.messages[1 : 1 + unchanged], *added)
    return CachedWindow(replace(window, messages=messages), cached.size + sum(sizes[1:]))


class WindowCache:
    """Holds windows by project and conversation; drops the least recently used ones.

    Args:
        limit: Maximum size of all windows together in bytes, approximately.
    """

    def __init__(self, limit: int = WINDOW_CACHE_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._windows: OrderedDict[tuple[str, str], CachedWindow] = OrderedDict()

    def get(self, key: tuple[str, str]) -> CachedWindow | None:
        """Returns a window; None if it is not held."""
        return self._windows.get(key)

    def put(self, key: tuple[str, str], window: CachedWindow) -> None:
        """Adds a window, or replaces it."""
        earlier = self._windows.pop(key, None)
        self._size += window.size - (earlier.size if earlier is not None else 0)
        self._windows[key] = window
        while self._size > self._limit:
            self._size -= self._windows.popitem(last=False)[1].size
