"""The calls of Qdrant's gRPC API that the vector index makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import Message

from strata.shared.release import release
from strata.shared.search.qdrant_wire import (
    collections,
    collections_service,
    common,
    points,
    points_service,
)
from strata.shared.tracing.nested import nested_span
from strata.shared.tracing.spans import SpanKind

_GRPC_PORT = 6334
_CHANNEL_OPTIONS = (
    ("grpc.primary_user_agent", f"Strata/{release()}"),
    ("grpc.keepalive_time_ms", 30_000),
    # gRPC's default maximum is two minutes; a restarted engine must be reachable at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


def connect(url: str, api_key: str | None = None) -> QdrantClient:
    """Returns a client that connects at its first call.

    It belongs to the event loop in which it is made.

    Args:
        url: ``http://host:port`` or ``https://…``, with the port of the gRPC API (6334).
        api_key: Sent with every request.

    Raises:
        ValueError: The address has another form.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the address of the vector index is http(s)://host:port")
    target = f"{parts.hostname}:{parts.port or _GRPC_PORT}"
    if parts.scheme == "http":
        return QdrantClient(grpc.aio.insecure_channel(target, _CHANNEL_OPTIONS), api_key)
    credentials = grpc.ssl_channel_credentials()
    return QdrantClient(grpc.aio.secure_channel(target, credentials, _CHANNEL_OPTIONS), api_key)


class QdrantClient:
    """Sends requests over a channel that it owns.

    No call has a deadline: the caller limits the time, and its end cancels the call.
    """

    def __init__(self, channel: grpc.aio.Channel, api_key: str | None = None) -> None:
        self._channel = channel
        self._metadata = (("api-key", api_key),) if api_key else ()
        self._methods = _methods(channel)

    async def collection_exists(self, name: str) -> bool:
        """Returns whether a collection or an alias has this name."""
        request = collections.CollectionExistsRequest(collection_name=name)
        reply: collections.CollectionExistsResponse = await self.send(request)
        return reply.result.exists

    async def create_collection(self, request: collections.CreateCollection) -> None:
        """Creates a collection."""
        await self.send(request)

    async def delete_collection(self, name: str) -> None:
        """Deletes a collection; no error if it does not exist."""
        await self.send(collections.DeleteCollection(collection_name=name))

    async def collection_info(self, name: str) -> collections.CollectionInfo:
        """Returns the configuration of a collection, and its state."""
        request = collections.GetCollectionInfoRequest(collection_name=name)
        reply: collections.GetCollectionInfoResponse = await self.send(request)
        return reply.result

    async def collection_names(self) -> list[str]:
        """Returns the names of all collections."""
        reply: collections.ListCollectionsResponse = await self.send(
            collections.ListCollectionsRequest()
        )
        return [description.name for description in reply.collections]

    async def aliases(self) -> dict[str, str]:
        """Returns the collection of every alias."""
        reply: collections.ListAliasesResponse = await self.send(collections.ListAliasesRequest())
        return {alias.alias_name: alias.collection_name for alias in reply.aliases}

    async def change_aliases(self, operations: Sequence[collections.AliasOperations]) -> None:
        """Applies all operations at once, or none."""
        await self.send(collections.ChangeAliases(actions=operations))

    async def create_field_index(self, request: points.CreateFieldIndexCollection) -> None:
        """Indexes a field of the payload."""
        await self.send(request)

    async def upsert(self, request: points.UpsertPoints) -> None:
        """Stores points, and replaces those with the same ids."""
        await self.send(request)

    async def delete(self, collection: str, conditions: common.Filter) -> None:
        """Deletes all points that meet the conditions, and waits until that is done."""
        selector = points.PointsSelector(filter=conditions)
        await self.send(points.DeletePoints(collection_name=collection, points=selector, wait=True))

    async def count(self, collection: str, conditions: common.Filter, *, exact: bool) -> int:
        """Returns how many points meet the conditions, exactly or about."""
        request = points.CountPoints(collection_name=collection, filter=conditions, exact=exact)
        reply: points.CountResponse = await self.send(request)
        return reply.result.count

    async def query_batch(self, request: points.QueryBatchPoints) -> points.QueryBatchResponse:
        """Returns the points that match each query of a batch, best first."""
        reply: points.QueryBatchResponse = await self.send(request)
        return reply

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    async def send(self, request: Message) -> Any:
        """Sends a request to the method of the engine that takes it; returns the reply."""
        kind = type(request)
        operation = kind.__name__
        attributes = {"db.system.name": "qdrant", "db.operation.name": operation}
        with nested_span(operation, attributes, kind=SpanKind.CLIENT):
            return await self._methods[kind](request, metadata=self._metadata)


def _methods(channel: grpc.aio.Channel) -> dict[type[Message], Any]:
    """Returns the method of the engine for every type of request."""
    administration: Any = collections_service.CollectionsStub(channel)  # type: ignore[no-untyped-call]
    documents: Any = points_service.PointsStub(channel)  # type: ignore[no-untyped-call]
    return {
        collections.CollectionExistsRequest: administration.CollectionExists,
        collections.CreateCollection: administration.Create,
        collections.DeleteCollection: administration.Delete,
        collections.GetCollectionInfoRequest: administration.Get,
        collections.ListCollectionsRequest: administration.List,
        collections.ListAliasesRequest: administration.ListAliases,
        collections.ChangeAliases: administration.UpdateAliases,
        points.CreateFieldIndexCollection: documents.CreateFieldIndex,
        points.UpsertPoints: documents.Upsert,
        points.DeletePoints: documents.Delete,
        points.CountPoints: documents.Count,
        points.QueryBatchPoints: documents.QueryBatch,
    }
