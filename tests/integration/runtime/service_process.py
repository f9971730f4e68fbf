"""A small service for tests, run as a process: ``service_process.py KEY_FILE MODE``.

Its method answers after the requested number of milliseconds. The request ``waiting`` returns how
many calls are waiting; ``objects`` returns how many objects are frozen and how many are not;
``load`` creates more objects first. Modes: ``plain``; ``stuck`` never ends its start; ``broken``
fails in it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from strata.shared.server import run_service
from strata.shared.service import GrpcService, Service, Wiring
from strata.shared.settings import ServiceSettings


class ProcessSettings(ServiceSettings):
    mode: str = "plain"


_LOADED: list[list[None]] = []
_WAITING: set[object] = set()


async def wait(request: bytes, context: Any) -> bytes:
    if request == b"waiting":
        return str(len(_WAITING)).encode()
    if request == b"load":
        _LOADED.extend([None] for _ in range(50_000))
    if not request.isdigit():
        return f"{gc.get_freeze_count()} {len(gc.get_objects())}".encode()
    call = object()
    _WAITING.add(call)
    try:
        await asyncio.sleep(int(request) / 1000)
    finally:
        _WAITING.discard(call)
    classes = type(asyncio.get_running_loop()).__mro__
    return " ".join(one.__module__ for one in classes).encode()


def add(servicer: Any, server: Any) -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(servicer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("strata.testing.Wait", {"Wait": handler}),)
    )


async def build(settings: ProcessSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    stack.callback(print, "closed store", flush=True)
    stack.callback(print, "closed client", flush=True)
    if settings.mode == "stuck":
        sys.stdout.write("STARTING\n")
        sys.stdout.flush()
        await asyncio.sleep(60)
    if settings.mode == "broken":
        raise RuntimeError("the schema is not there")

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            sys.stdout.write("background ended\n")
            sys.stdout.flush()

    return Service(
        "waiting", [GrpcService("strata.testing.Wait", add, wait)], background=[background]
    )


if __name__ == "__main__":
    run_service(
        "waiting",
        build,
        ProcessSettings(
            mode=sys.argv[2],
            token_public_keys_file=Path(sys.argv[1]),
            drain_s=float(sys.argv[3]),
            grace_s=10,
        ),
    )
