"""The process of the embedded vector engine.

    python -m strata.standalone.vectors.server --folder FOLDER --port PORT

It serves Qdrant's gRPC API on 127.0.0.1 to callers that send the key in FOLDER/api_key, and
writes FOLDER/server.json when it is ready. One process per folder; SIGTERM flushes and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from strata.protocol.errors import FailedPreconditionError
from strata.shared.event_loop import loop_factory
from strata.shared.logs import configure_logging
from strata.shared.mapped_pages import release_pages_below
from strata.shared.search import qdrant_wire as wire
from strata.standalone.files import write_atomically
from strata.standalone.locks import FolderLock
from strata.standalone.ports import EXIT_PORT_TAKEN
from strata.standalone.vectors.servicers import (
    CollectionsServicer,
    PointsServicer,
    RootServicer,
)
from strata.standalone.vectors.worker import EngineWorker

MAX_MESSAGE_BYTES = 64 << 20
FLUSH_SECONDS = 3.0
STOP_GRACE_SECONDS = 5.0
LOCK_WAIT_SECONDS = 15.0
EXIT_LOCKED = 75


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every call without the key in the metadata `api-key`, as Qdrant does."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Passes the call on, or answers UNAUTHENTICATED in its place."""
        for name, sent in handler_call_details.invocation_metadata or ():
            if name == "api-key":
                key = sent if isinstance(sent, bytes) else sent.encode()
                if hmac.compare_digest(key, self._key):
                    return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid api-key is required")


def build_server(worker: EngineWorker, key: str) -> grpc.aio.Server:
    """Returns the server with all services added, not yet bound or started."""
    server = grpc.aio.server(
        interceptors=[ApiKeyInterceptor(key)],
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # gRPC shares ports by default: two engines could split one port's calls.
            ("grpc.so_reuseport", 0),
            # Clients ping during long calls; with the default they would be disconnected.
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ],
    )
    # The client's package has no types for its generated services.
    adders: list[tuple[Any, object]] = [
        (wire.points_service.add_PointsServicer_to_server, PointsServicer(worker)),
        (wire.collections_service.add_CollectionsServicer_to_server, CollectionsServicer(worker)),
        (wire.root_service.add_QdrantServicer_to_server, RootServicer()),
    ]
    for add, servicer in adders:
        add(servicer, server)
    return server


async def _lock(folder: Path) -> FolderLock:
    """Takes the folder, waiting for a predecessor that is still flushing."""
    lock = FolderLock(folder / "lock", f"the vector store {folder}")
    end = asyncio.get_running_loop().time() + LOCK_WAIT_SECONDS
    while True:
        try:
            lock.acquire()
        except FailedPreconditionError:
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.05)
        else:
            return lock


async def serve(folder: Path, port: int) -> None:
    """Serves the folder until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    lock = await _lock(folder)
    worker = EngineWorker(folder)
    await worker.open()
    # To load a collection, the engine reads the index of each payload field: 4 MB of mostly empty
    # pages each, 85 MB for the collections of an empty Strata.
    release_pages_below(folder)
    server = build_server(worker, (folder / "api_key").read_text().strip())
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    write_atomically(folder / "server.json", json.dumps({"pid": os.getpid(), "port": port}))
    flusher = asyncio.create_task(worker.flush_every(FLUSH_SECONDS))
    await stopping.wait()
    await server.stop(STOP_GRACE_SECONDS)
    flusher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await flusher
    await worker.close()
    lock.release()


def main(arguments: list[str] | None = None) -> int:
    """Runs the process; returns its exit code."""
    parser = argparse.ArgumentParser(description="The embedded vector engine.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    configure_logging("WARNING", "console")
    try:
        # uvloop has less latency between the socket and the worker's thread.
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(options.folder, options.port))
    except FailedPreconditionError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_LOCKED
    except RuntimeError as error:  # how grpc reports an address in use
        sys.stderr.write(f"{error}\n")
        return EXIT_PORT_TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
