"""`qdrant.Collections` and `qdrant.Qdrant`: collections, their aliases, and health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.servicers.base import Context, EngineServicer, complete
from strata.standalone.vectors.store import CollectionStore

# The version of Qdrant whose API is served; the client compares it with the client's version.
API_VERSION = "1.20.0"


@complete
class CollectionsServicer(EngineServicer, wire.collections_service.CollectionsServicer):
    """`qdrant.Collections`: collections and their aliases."""

    async def _do(
        self, work: Callable[[CollectionStore], object]
    ) -> wire.collections.CollectionOperationResponse:
        changed, seconds = await self._worker.run(work)
        return wire.collections.CollectionOperationResponse(
            result=changed is not False, time=seconds
        )

    async def Create(self, request: wire.collections.CreateCollection, context: Context) -> Any:
        """Makes a collection."""
        return await self._do(lambda store: store.create(request))

    async def Delete(self, request: wire.collections.DeleteCollection, context: Context) -> Any:
        """Deletes a collection."""
        return await self._do(lambda store: store.delete(request.collection_name))

    async def UpdateAliases(self, request: wire.collections.ChangeAliases, context: Context) -> Any:
        """Changes aliases atomically."""
        return await self._do(lambda store: store.change_aliases(request.actions))

    async def CollectionExists(
        self, request: wire.collections.CollectionExistsRequest, context: Context
    ) -> Any:
        """Returns whether a collection or alias exists."""
        name = request.collection_name
        exists, seconds = await self._worker.run(lambda store: store.exists(name))
        return wire.collections.CollectionExistsResponse(
            result=wire.collections.CollectionExists(exists=exists), time=seconds
        )

    async def List(self, request: wire.collections.ListCollectionsRequest, context: Context) -> Any:
        """Lists collections."""
        names, seconds = await self._worker.run(CollectionStore.names)
        return wire.collections.ListCollectionsResponse(
            collections=[wire.collections.CollectionDescription(name=name) for name in names],
            time=seconds,
        )

    async def Get(
        self, request: wire.collections.GetCollectionInfoRequest, context: Context
    ) -> Any:
        """Returns the configuration and the counts of a collection."""
        name = request.collection_name
        info, seconds = await self._worker.run(lambda store: store.info(name))
        return wire.collections.GetCollectionInfoResponse(result=info, time=seconds)

    async def ListAliases(
        self, request: wire.collections.ListAliasesRequest, context: Context
    ) -> Any:
        """Lists every alias."""
        pairs, seconds = await self._worker.run(CollectionStore.aliases)
        return _aliases_response(pairs, seconds)

    async def ListCollectionAliases(
        self, request: wire.collections.ListCollectionAliasesRequest, context: Context
    ) -> Any:
        """Lists the aliases of a collection."""
        name = request.collection_name
        pairs, seconds = await self._worker.run(lambda store: store.aliases(name))
        return _aliases_response(pairs, seconds)


@complete
class RootServicer(wire.root_service.QdrantServicer):
    """`qdrant.Qdrant`: the health check, which does not wait for the engine."""

    async def HealthCheck(self, request: wire.root.HealthCheckRequest, context: Context) -> Any:
        """Returns name and version."""
        return wire.root.HealthCheckReply(
            title="strata embedded vector engine", version=API_VERSION
        )


def _aliases_response(
    pairs: list[tuple[str, str]], seconds: float
) -> wire.collections.ListAliasesResponse:
    described = [
        wire.collections.AliasDescription(alias_name=alias, collection_name=collection)
        for alias, collection in pairs
    ]
    return wire.collections.ListAliasesResponse(aliases=described, time=seconds)
