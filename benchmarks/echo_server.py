"""A gRPC echo server: the floor of one hop.

Bare `grpc.aio` on the same kind of event loop as Strata, in its own process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from strata.shared.event_loop import loop_factory

METHOD = "/benchmarks.Echo/Echo"


async def _echo(request: bytes, _: Any) -> bytes:
    return request


class _Handler(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self._echo: Any = grpc.unary_unary_rpc_method_handler(_echo)

    def service(self, _: grpc.HandlerCallDetails) -> Any:
        return self._echo


async def serve() -> None:
    """Serves until it is ended."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"PORT {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())
