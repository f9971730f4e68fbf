"""Interface of the store of delayed runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class DelayedRunStore(Protocol):
    """Store of delayed runs, which start at a later time."""

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """Returns the ids of the delayed runs that act with the scopes of a key."""
        ...
