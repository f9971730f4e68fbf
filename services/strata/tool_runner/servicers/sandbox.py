"""gRPC servicer of SandboxService: runs calls in the sandbox of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.protocol.errors import invalid_field
from strata.shared.sandbox import RunResult
from strata.tool_runner.convert import sandbox as convert
from strata.tool_runner.sandbox.on_demand import SandboxOnDemand

Context = Any


class SandboxServicer(pb_grpc.SandboxServiceServicer):
    """Runs calls in a sandbox.

    Args:
        sandbox: The sandbox.
    """

    def __init__(self, sandbox: SandboxOnDemand) -> None:
        self._sandbox = sandbox

    async def GetIsolation(
        self, request: pb.GetIsolationRequest, context: Context
    ) -> pb.GetIsolationResponse:
        """Returns the isolation of this runner, after starting its sandbox if requested."""
        sandbox = self._sandbox if request.running_only else await self._sandbox.start()
        level = pb.SandboxIsolation.ValueType(sandbox.isolation)
        return pb.GetIsolationResponse(isolation=level)

    async def RunCode(
        self, request: pb.RunCodeRequest, context: Context
    ) -> AsyncIterator[pb.RunCodeResponse]:
        """Runs one call to its end."""
        yield convert.result_to_proto(await self._sandbox.run(convert.to_run(request)))

    async def RunAskingCode(
        self, request_iterator: AsyncIterator[pb.RunAskingCodeRequest], context: Context
    ) -> AsyncIterator[pb.RunAskingCodeResponse]:
        """Runs one call to its end; sends the questions of its code to the client."""
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or not first.HasField("run"):
            raise invalid_field("run", "must come first")
        events: asyncio.Queue[pb.RunAskingCodeResponse] = asyncio.Queue()

        async def ask(question: str) -> str:
            events.put_nowait(pb.RunAskingCodeResponse(question_json=question))
            answer = await anext(requests, None)
            if answer is None or not answer.HasField("answer_json"):
                raise invalid_field("answer_json", "must follow a question")
            return answer.answer_json

        async def run() -> RunResult:
            return await self._sandbox.run(replace(convert.to_run(first.run), answerer=ask))

        task = asyncio.create_task(run())
        task.add_done_callback(lambda _: events.put_nowait(pb.RunAskingCodeResponse()))
        try:
            while (event := await events.get()).WhichOneof("message"):
                yield event
            yield pb.RunAskingCodeResponse(result=convert.result_to_proto(task.result()))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
