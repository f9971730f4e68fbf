"""Client of the tool runner: a sandbox in another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.protocol.errors import UnavailableError
from strata.protocol.stream_completion import complete_in_background
from strata.shared.bidi_call import call_and_answer
from strata.shared.sandbox import Answerer, Isolation, Run, RunResult, RunStatus
from strata.tool_runner.convert import sandbox as convert


class RemoteSandbox:
    """Runs calls in a tool runner. Create it with `connect`.

    Args:
        stub: Sandbox service of the runner.
        isolation: Isolation level of the runner.
    """

    def __init__(self, stub: pb_grpc.SandboxServiceStub, isolation: Isolation) -> None:
        self._stub = stub
        self._isolation = isolation

    @classmethod
    async def connect(cls, stub: pb_grpc.SandboxServiceStub) -> RemoteSandbox:
        """Returns a client after reading the runner's isolation level.

        Raises:
            UnavailableError: The runner does not answer.
        """
        answer = await stub.GetIsolation(pb.GetIsolationRequest())
        return cls(stub, convert.to_isolation(answer.isolation))

    @property
    def isolation(self) -> Isolation:
        """Isolation level of the runner, as of the last call."""
        return self._isolation

    async def run(self, run: Run) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        If the runner cannot be reached, it is unknown whether the call was started. The result is
        KILLED, not REFUSED, and the call is not sent again.

        Raises:
            UnavailableError: The answerer of the run cannot be reached.
        """
        failed: list[UnavailableError] = []
        try:
            if run.answerer is None:
                call = self._stub.RunCode(convert.run_to_proto(run))
                async for answer in call:
                    # The stream has only one message.
                    complete_in_background(call)
                    return self._ended(answer)
            else:
                async with aclosing(self._asking(run, run.answerer, failed)) as responses:
                    async for last in responses:
                        return self._ended(last.result)
        except UnavailableError as error:
            if error in failed:
                raise
        detail = "The call was lost: the process that runs tools is gone."
        return RunResult(RunStatus.KILLED, detail=detail, isolation=self._isolation)

    def _asking(
        self, run: Run, answerer: Answerer, failed: list[UnavailableError]
    ) -> AsyncGenerator[pb.RunAskingCodeResponse, None]:
        async def answered(question: str) -> pb.RunAskingCodeRequest:
            try:
                return pb.RunAskingCodeRequest(answer_json=await answerer(question))
            except UnavailableError as error:
                # The answerer failed, not the runner.
                failed.append(error)
                raise

        def answer(
            response: pb.RunAskingCodeResponse,
        ) -> Coroutine[Any, Any, pb.RunAskingCodeRequest] | None:
            return answered(response.question_json) if response.HasField("question_json") else None

        first = pb.RunAskingCodeRequest(run=convert.run_to_proto(run))
        # The first response that is not a question is the result.
        return call_and_answer(
            self._stub.RunAskingCode, first, answer, lambda _: True, ends=lambda _: True
        )

    def _ended(self, wire: pb.RunCodeResponse) -> RunResult:
        result = convert.to_result(wire)
        self._isolation = result.isolation
        return result

    async def close(self) -> None:
        """Does nothing: calls end with their streams, and the channel belongs to the service."""
