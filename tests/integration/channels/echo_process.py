"""A replica of the echo service as a process: ``echo_process.py GENERATED KEY_FILE EFFECTS``.

Every method returns the id of the process; `Replace` and `Change` add a line with their text to the
file of effects first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from strata.shared.server import run_service
from strata.shared.service import GrpcService, Service, Wiring
from strata.shared.settings import ServiceSettings

sys.path.insert(0, sys.argv[1])
pb: Any = importlib.import_module("echo_pb2")
pb_grpc: Any = importlib.import_module("echo_pb2_grpc")
EFFECTS = Path(sys.argv[3])


class Servicer(pb_grpc.EchoServiceServicer):  # type: ignore[misc]
    """Answers with the id of its process."""

    async def Echo(self, request: Any, context: Any) -> Any:
        return pb.Note(text=request.text, number=os.getpid())

    async def Replace(self, request: Any, context: Any) -> Any:
        with EFFECTS.open("a") as file:  # noqa: ASYNC230 - as durable as it can be
            file.write(f"{request.text}\n")
        return pb.Note(text=request.text, number=os.getpid())

    async def Change(self, request: Any, context: Any) -> Any:
        return await self.Replace(request, context)

    async def Count(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.Note(text=request.text, number=os.getpid())


async def build(settings: ServiceSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service."""
    name = pb.DESCRIPTOR.services_by_name["EchoService"].full_name
    add = pb_grpc.add_EchoServiceServicer_to_server
    return Service("echo", [GrpcService(name, add, Servicer())])


if __name__ == "__main__":
    run_service(
        "echo",
        build,
        ServiceSettings(token_public_keys_file=Path(sys.argv[2]), drain_s=0.2, grace_s=1),
    )
