"""The common base of the servicers: access to the worker, and errors as gRPC statuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.errors import UnsupportedError, VectorsError
from strata.standalone.vectors.filter_rewriter import FilterRewriter
from strata.standalone.vectors.worker import EngineWorker

_Response = TypeVar("_Response")
Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Any, Context], Awaitable[Any]]


def _answering(handler: Handler) -> Handler:
    async def answer(self: Any, request: Any, context: Context) -> Any:
        try:
            return await handler(self, request, context)
        except VectorsError as error:
            await context.abort(error.status, str(error))

    return answer


def _refusing(name: str) -> Handler:
    async def refuse(_self: Any, _request: Any, context: Context) -> None:
        error = UnsupportedError(f"the method {name}")
        await context.abort(error.status, str(error))

    return refuse


def complete(servicer: type) -> type:
    """Wraps the methods of a servicer to map their errors; missing methods are refused by name."""
    for base in servicer.__mro__[1:-1]:
        for name in vars(base):
            if name[0].isupper():
                own = vars(servicer).get(name)
                setattr(servicer, name, _answering(own) if own else _refusing(name))
    return servicer


class EngineServicer:
    """A servicer that reads and writes shards through the worker."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker

    async def read(
        self, name: str, work: Callable[[edge.EdgeShard], _Response]
    ) -> tuple[_Response, float]:
        """Returns the result of `work` on a collection's shard, and the seconds it took."""
        return await self._worker.run(lambda store: work(store.shard(name)))

    async def search(
        self, name: str, work: Callable[[edge.EdgeShard, FilterRewriter], _Response]
    ) -> tuple[_Response, float]:
        """Like `read`; `work` also gets the filter rewriter of the collection."""
        return await self._worker.run_now(
            lambda store: work(store.shard(name), store.filter_rewriter(name))
        )

    async def write(
        self, name: str, build: Callable[[], list[edge.UpdateOperation]]
    ) -> wire.points.PointsOperationResponse:
        """Applies the operations that `build` makes to a collection."""
        _, seconds = await self._worker.run(lambda store: store.update(name, build()))
        result = wire.points.UpdateResult(operation_id=0, status=wire.points.UpdateStatus.Completed)
        return wire.points.PointsOperationResponse(result=result, time=seconds)
