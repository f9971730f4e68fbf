"""Records the requests to Qdrant, and determines the projects that they access."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from strata.shared.search.qdrant_wire import collections, common, points
from strata.shared.search.vectors.client import QdrantClient

# Requests about collections and aliases, which hold no data of a project.
ADMINISTRATION = (
    collections.CollectionExistsRequest,
    collections.CreateCollection,
    collections.GetCollectionInfoRequest,
    collections.ListCollectionsRequest,
    collections.ListAliasesRequest,
    collections.ChangeAliases,
    points.CreateFieldIndexCollection,
)


class RecordingClient(QdrantClient):
    """Records requests and passes them on to another client."""

    def __init__(self, client: QdrantClient) -> None:
        self._client = client
        self.requests: list[Message] = []

    @property
    def on_documents(self) -> list[Message]:
        """The requests on documents, in order."""
        return [request for request in self.requests if not isinstance(request, ADMINISTRATION)]

    async def send(self, request: Message) -> Any:
        self.requests.append(request)
        return await self._client.send(request)

    async def close(self) -> None:
        await self._client.close()


def tenants_of(conditions: common.Filter) -> set[str]:
    """Returns the projects that a filter requires."""
    return {
        condition.field.match.keyword
        for condition in conditions.must
        if condition.field.key == "project_id"
        and condition.field.match.WhichOneof("match_value") == "keyword"
    }


def projects_of(request: Message) -> set[str]:
    """Returns the projects that a request reads or writes.

    Raises:
        AssertionError: The kind of request is unknown.
    """
    match request:
        case points.QueryBatchPoints():
            tenants = [tenants_of(arm.filter) for arm in request.query_points]
            tenants += [
                tenants_of(arm.params.idf.corpus)
                for arm in request.query_points
                if arm.HasField("params")
            ]
            return set.union(*tenants) if all(len(one) == 1 for one in tenants) else set()
        case points.CountPoints():
            return tenants_of(request.filter)
        case points.DeletePoints():
            return tenants_of(request.points.filter)
        case points.UpsertPoints():
            return {point.payload["project_id"].string_value for point in request.points}
    raise AssertionError(f"a request of a kind not known here: {type(request).__name__}")
