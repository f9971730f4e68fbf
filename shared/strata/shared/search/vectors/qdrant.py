"""The vector index on Qdrant: a server, a cluster, or the process of the embedded engine.

The same gRPC client reaches all of them.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeVar

import grpc

from strata.protocol.errors import FailedPreconditionError, InternalError, Reason
from strata.shared.search.fusion import FLOOR, FusionConfig, Hit, fuse
from strata.shared.search.qdrant_wire import collections, common, points
from strata.shared.search.vectors.circuit_breaker import CircuitBreaker
from strata.shared.search.vectors.client import QdrantClient
from strata.shared.search.vectors.collections import (
    DENSE,
    SPARSE,
    alias_creation,
    alias_deletion,
    creation_request,
    dense_dim,
    index_requests,
)
from strata.shared.search.vectors.filters import (
    documents_filter,
    first_chunks,
    project_filter,
    tenant_corpus,
    tenant_filter,
)
from strata.shared.search.vectors.index import (
    Collection,
    IndexedDocument,
    Preference,
    SparseVector,
    StartGate,
    Where,
)
from strata.shared.search.vectors.points import (
    candidates_of,
    points_of,
    put_sparse,
    result_fields,
    upsert_request,
)
from strata.shared.search.vectors.qdrant_errors import (
    CLIENT_ERRORS,
    EngineDownError,
    is_cut_connection,
    status_of,
    to_strata_error,
)

_T = TypeVar("_T")

_DEPTH_PER_HIT = 3
# Building a message of this many points takes about 2 ms, which blocks the event loop.
_UPSERT_POINTS = 64
_DELETE_DOCUMENTS = 512
_RETRY_AFTER_SECONDS = 0.05
_CORPUS_SECONDS = 2.0
_LONGEST_CORPUS_SECONDS = 600.0
_MAX_CORPORA = 10_000


@dataclass(frozen=True, slots=True)
class QdrantConfig:
    """How collections are made and requests are sent.

    Attributes:
        read_timeout: Seconds for a search or count, including a retry.
        write_timeout: Seconds for a change, including a retry.
        shard_number: Shards of a new collection; None for the engine's default.
        replication_factor: Copies of each shard of a new collection.
        write_consistency_factor: Copies that must confirm a write.
        fusion: Weights of the two arms of a search.
    """

    read_timeout: float = 5.0
    write_timeout: float = 30.0
    shard_number: int | None = None
    replication_factor: int = 1
    write_consistency_factor: int = 1
    fusion: FusionConfig = field(default_factory=lambda: FusionConfig(floor=FLOOR))


class QdrantIndex:
    """A `VectorIndex` on Qdrant. It owns the client: `close` closes it."""

    def __init__(
        self,
        client: QdrantClient,
        config: QdrantConfig | None = None,
        circuit: CircuitBreaker | None = None,
    ) -> None:
        self._client = client
        self._config = config or QdrantConfig()
        self._circuit = circuit or CircuitBreaker("the vector index")
        self._corpora: dict[tuple[str, str], tuple[int, float]] = {}

    async def ensure(
        self, collection: Collection, model_id: str, dim: int, *, generation: str | None = None
    ) -> str:
        """See `VectorIndex.ensure`."""
        generation = generation or collection.generation(model_id)
        _check_generation(collection, generation)
        if not await self._read("exists", lambda: self._client.collection_exists(generation)):
            await self._create(generation, dim)
        info = await self._read("info", lambda: self._client.collection_info(generation))
        _check_dim(generation, info, dim)
        for request in index_requests(collection, generation, info):
            await self._write("create_index", partial(self._client.create_field_index, request))
        if await self.serving(collection) is None:
            await self._change_aliases(alias_creation(collection.name, generation))
        return generation

    async def serving(self, collection: Collection) -> str | None:
        """See `VectorIndex.serving`."""
        aliases = await self._read("aliases", self._client.aliases)
        return aliases.get(collection.name)

    async def generations(self, collection: Collection) -> list[str]:
        """See `VectorIndex.generations`."""
        names = await self._read("collections", self._client.collection_names)
        prefix = f"{collection.name}__"
        return sorted(name for name in names if name.startswith(prefix))

    async def switch(self, collection: Collection, generation: str) -> None:
        """See `VectorIndex.switch`."""
        _check_generation(collection, generation)
        await self._change_aliases(
            alias_deletion(collection.name), alias_creation(collection.name, generation)
        )

    async def drop(self, collection: Collection, generation: str) -> None:
        """See `VectorIndex.drop`."""
        _check_generation(collection, generation)
        if await self.serving(collection) == generation:
            raise FailedPreconditionError(
                f"{generation} serves; switch to another generation first",
                reason=Reason.IN_USE,
                metadata={"used_by": collection.name},
            )
        await self._write("drop", lambda: self._client.delete_collection(generation))

    async def upsert(
        self,
        collection: Collection,
        project_id: str,
        documents: Sequence[IndexedDocument],
        *,
        generation: str | None = None,
        replace: bool = False,
    ) -> None:
        """See `VectorIndex.upsert`."""
        tenant_filter(collection, project_id, Where())  # refuses a missing project
        target = _target(collection, generation)
        chunks = points_of(collection, project_id, documents)
        while batch := list(islice(chunks, _UPSERT_POINTS)):
            request = upsert_request(target, batch)
            await self._write("upsert", partial(self._client.upsert, request))
        if replace:
            await self._delete_surplus_chunks(target, project_id, documents)

    async def query(
        self,
        collection: Collection,
        project_id: str,
        *,
        dense: Sequence[float] | None = None,
        sparse: SparseVector | None = None,
        where: Where | None = None,
        prefer: Sequence[Preference] = (),
        limit: int = 10,
        generation: str | None = None,
        unrelated: float | None = None,
        dense_weight: float = 1.0,
        floor_share: float = 1.0,
        newest_share: float = 0.0,
        uncut: bool = False,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """See `VectorIndex.query`."""
        where = where or Where()
        conditions = tenant_filter(collection, project_id, where)
        if dense is None and sparse is None:
            raise InternalError("a search needs a dense or a sparse vector")
        if where.matches_nothing or limit < 1 or (dense is None and not sparse):
            return []
        target = _target(collection, generation)
        depth = max(collection.depth, limit * _DEPTH_PER_HIT)
        fields = result_fields(collection, prefer, newest=newest_share > 0)
        batch = points.QueryBatchPoints(collection_name=target)
        if dense is not None:
            arm = _add_arm(batch, DENSE, conditions, depth, fields)
            arm.query.nearest.dense.data.extend(dense)
        if sparse:
            arm = _add_arm(batch, SPARSE, conditions, depth, fields)
            put_sparse(arm.query.nearest.sparse, sparse)
            arm.params.CopyFrom(tenant_corpus(project_id))
        if after is not None:
            await after()
        reply = await self._read("query", partial(self._client.query_batch, batch))
        scores = {
            arm.using: candidates_of(collection, matches.result, prefer)
            for arm, matches in zip(batch.query_points, reply.result, strict=True)
        }
        return fuse(
            scores.get(DENSE, []),
            scores.get(SPARSE, []),
            limit=len(scores) * depth if uncut else limit,
            depth=depth,
            config=self._fusion(collection, unrelated),
            corpus=await self._corpus_size(target, project_id) if sparse else 1,
            dense_weight=dense_weight,
            floor_share=floor_share,
            newest_share=newest_share,
            weak=weak,
        )

    async def delete(
        self,
        collection: Collection,
        project_id: str,
        document_ids: Sequence[str],
        *,
        generation: str | None = None,
    ) -> None:
        """See `VectorIndex.delete`."""
        target = _target(collection, generation)
        for ids in _slices(document_ids):
            await self._delete_points(target, documents_filter(project_id, ids))

    async def delete_where(
        self,
        collection: Collection,
        project_id: str,
        where: Where,
        *,
        generation: str | None = None,
    ) -> None:
        """See `VectorIndex.delete_where`."""
        conditions = tenant_filter(collection, project_id, where)
        if not where.matches_nothing:
            await self._delete_points(_target(collection, generation), conditions)

    async def count(
        self,
        collection: Collection,
        project_id: str,
        where: Where | None = None,
        *,
        generation: str | None = None,
    ) -> int:
        """See `VectorIndex.count`."""
        where = where or Where()
        conditions = first_chunks(tenant_filter(collection, project_id, where))
        if where.matches_nothing:
            return 0
        target = _target(collection, generation)
        return await self._read("count", lambda: self._client.count(target, conditions, exact=True))

    async def is_empty(self, collection: Collection, generation: str) -> bool:
        """See `VectorIndex.is_empty`."""
        _check_generation(collection, generation)
        everything = common.Filter()
        count = partial(self._client.count, generation, everything, exact=False)
        return await self._read("count", count) == 0

    async def check(self) -> None:
        """See `VectorIndex.check`."""
        await self._read("aliases", self._client.aliases)

    async def close(self) -> None:
        """See `VectorIndex.close`."""
        await self._client.close()

    def _fusion(self, collection: Collection, unrelated: float | None) -> FusionConfig:
        config = self._config.fusion
        if not collection.is_chat:
            config = replace(config, order=None)
        return config if unrelated is None else replace(config, dense_low=unrelated)

    async def _corpus_size(self, target: str, project_id: str) -> int:
        """Returns the cached number of points of the project; only its logarithm matters."""
        now = asyncio.get_running_loop().time()
        count, until = self._corpora.get((target, project_id), (0, 0.0))
        if now < until:
            return count
        conditions = project_filter(project_id)
        count = await self._read(
            "count", lambda: self._client.count(target, conditions, exact=False)
        )
        if len(self._corpora) >= _MAX_CORPORA:
            self._corpora.clear()
        # A large number changes slowly and takes longer to count.
        seconds = min(_CORPUS_SECONDS * max(1.0, count / 1_000), _LONGEST_CORPUS_SECONDS)
        self._corpora[(target, project_id)] = (count, now + seconds)
        return count

    async def _create(self, generation: str, dim: int) -> None:
        request = creation_request(
            generation,
            dim,
            shard_number=self._config.shard_number,
            replication_factor=self._config.replication_factor,
            write_consistency_factor=self._config.write_consistency_factor,
        )
        try:
            await self._write("create", lambda: self._client.create_collection(request))
        except InternalError as error:
            # Another replica may have created it.
            cause = error.__cause__
            if cause is None or status_of(cause) is not grpc.StatusCode.ALREADY_EXISTS:
                raise

    async def _change_aliases(self, *operations: collections.AliasOperations) -> None:
        await self._write("aliases", lambda: self._client.change_aliases(operations))

    async def _delete_surplus_chunks(
        self, target: str, project_id: str, documents: Sequence[IndexedDocument]
    ) -> None:
        ids_by_length: dict[int, list[str]] = defaultdict(list)
        for document in documents:
            ids_by_length[len(document.chunks)].append(document.id)
        for length, document_ids in ids_by_length.items():
            for ids in _slices(document_ids):
                surplus = documents_filter(project_id, ids, from_chunk=length)
                await self._delete_points(target, surplus)

    async def _delete_points(self, target: str, conditions: common.Filter) -> None:
        await self._write("delete", lambda: self._client.delete(target, conditions))

    async def _read(self, operation: str, call: Callable[[], Awaitable[_T]]) -> _T:
        return await self._call(operation, call, self._config.read_timeout)

    async def _write(self, operation: str, call: Callable[[], Awaitable[_T]]) -> _T:
        return await self._call(operation, call, self._config.write_timeout)

    async def _call(self, operation: str, call: Callable[[], Awaitable[_T]], seconds: float) -> _T:
        """Runs an operation with a time limit and one retry after a lost connection; maps errors.

        All operations are idempotent.
        """
        with self._circuit.guard():
            try:
                async with asyncio.timeout(seconds):
                    return await _again_if_cut(call)
            except CLIENT_ERRORS as error:
                cause: Exception = error
                failure = to_strata_error(error, operation)
                if isinstance(failure, EngineDownError):
                    raise failure from error
        raise failure from cause


async def _again_if_cut(call: Callable[[], Awaitable[_T]]) -> _T:
    try:
        return await call()
    except CLIENT_ERRORS as error:
        if not is_cut_connection(error):
            raise
    await asyncio.sleep(_RETRY_AFTER_SECONDS)
    return await call()


def _add_arm(
    batch: points.QueryBatchPoints,
    name: str,
    conditions: common.Filter,
    depth: int,
    fields: list[str],
) -> points.QueryPoints:
    """Adds a search by one of the vectors to a batch; returns it, without the vector.

    It is built in place, because adding a finished message to another copies it.
    """
    arm = batch.query_points.add()
    arm.collection_name = batch.collection_name
    arm.using = name
    arm.filter.CopyFrom(conditions)
    arm.limit = depth
    arm.with_payload.include.fields.extend(fields)
    return arm


def _target(collection: Collection, generation: str | None) -> str:
    if generation is None:
        return collection.name
    _check_generation(collection, generation)
    return generation


def _check_dim(generation: str, info: collections.CollectionInfo, dim: int) -> None:
    size = dense_dim(info)
    if size != dim:
        raise FailedPreconditionError(
            f"the collection {generation} holds vectors of {size} dimensions, not {dim}",
            reason=Reason.MODEL_NOT_CONFIGURED,
            metadata={"collection": generation, "expected": dim, "found": size},
        )


def _check_generation(collection: Collection, generation: str) -> None:
    if not generation.startswith(f"{collection.name}__"):
        raise InternalError(f"{generation} is not a generation of {collection.name}")


def _slices(document_ids: Sequence[str]) -> list[Sequence[str]]:
    count = math.ceil(len(document_ids) / _DELETE_DOCUMENTS)
    return [
        document_ids[number * _DELETE_DOCUMENTS : (number + 1) * _DELETE_DOCUMENTS]
        for number in range(count)
    ]
