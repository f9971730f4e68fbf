"""SandboxService: runs calls in the sandbox of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.tool_execution.domain.sandbox import Sandbox
from strata.tool_execution.runner import convert

Context = Any


class SandboxServicer(pb_grpc.SandboxServiceServicer):
    """Runs calls.

    Args:
        sandbox: Where.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def GetIsolation(
        self, request: pb.GetIsolationRequest, context: Context
    ) -> pb.GetIsolationResponse:
        """Says what keeps code from the machine here."""
        level = pb.SandboxIsolation.ValueType(self._sandbox.isolation)
        return pb.GetIsolationResponse(isolation=level)

    async def RunCode(
        self, request: pb.RunCodeRequest, context: Context
    ) -> AsyncIterator[pb.RunCodeResponse]:
        """Runs one call to its end."""
        yield convert.result_to_proto(await self._sandbox.run(convert.to_run(request)))
