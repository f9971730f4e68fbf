"""Records the requests to Qdrant, and tells which projects they read or write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdrant_client import AsyncQdrantClient, models

# Calls about collections and aliases, which hold no data of a project.
ADMINISTRATION = {
    "collection_exists",
    "create_collection",
    "get_collection",
    "get_collections",
    "create_payload_index",
    "get_aliases",
    "update_collection_aliases",
    "close",
}


class RecordingClient:
    """Passes calls on to a client and records them."""

    def __init__(self, client: AsyncQdrantClient) -> None:
        self._client = client
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return await method(*args, **kwargs)

        return call


def tenants_of(condition: models.Filter | None) -> set[object]:
    """Returns the projects that a condition of a filter requires."""
    assert condition is not None
    assert isinstance(condition.must, list)
    return {
        part.match.value
        for part in condition.must
        if isinstance(part, models.FieldCondition)
        and part.key == "project_id"
        and isinstance(part.match, models.MatchValue)
    }


def projects_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> set[object]:
    """Returns the projects that a request reads or writes.

    Raises:
        AssertionError: The kind of request is unknown.
    """
    match name:
        case "query_batch_points":
            tenants = [tenants_of(request.filter) for request in args[1]]
            tenants += [
                tenants_of(request.params.idf.corpus)
                for request in args[1]
                if request.params is not None
            ]
            return set.union(*tenants) if all(len(one) == 1 for one in tenants) else set()
        case "count":
            return tenants_of(kwargs["count_filter"])
        case "delete":
            return tenants_of(args[1].filter)
        case "set_payload":
            return tenants_of(kwargs["points"])
        case "upsert":
            return {point.payload["project_id"] for point in args[1]}
    raise AssertionError(f"a request of a kind not known here: {name}")
