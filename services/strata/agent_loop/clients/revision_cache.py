"""A bounded cache of values with their revisions.

Unchanged values are not sent again by their service; a dropped entry costs one rendering.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class RevisionCache(Generic[ValueT]):
    """The last value and its revision, for the most recently used keys."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, tuple[str, ValueT]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[str, ValueT] | None:
        """Returns the revision and the value of a key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, revision: str, value: ValueT) -> None:
        """Stores a value; drops the least recently used one if the cache is full."""
        self._entries[key] = (revision, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
