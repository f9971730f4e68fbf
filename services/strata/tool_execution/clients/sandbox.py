"""Client of the tool runner, and the conversion of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.api.tool_runner.v1 import sandbox_service_pb2_grpc as pb_grpc
from strata.protocol.errors import UnavailableError
from strata.protocol.stream_completion import complete_in_background
from strata.shared.bidi_call import call_and_answer
from strata.shared.metric_names import SANDBOX_CALLS, SANDBOX_ISOLATION
from strata.shared.sandbox import Answerer, Failure, Isolation, RunResult, RunStatus, SandboxRun
from strata.shared.telemetry import Telemetry

_LEVELS = frozenset(int(level) for level in Isolation)


class SandboxClient:
    """Runs calls in the tool runner; implements `strata.shared.sandbox.Sandbox`.

    Args:
        stub: Sandbox service of the runner.
        telemetry: Metrics of isolation and calls; None for no metrics.
    """

    def __init__(
        self, stub: pb_grpc.SandboxServiceStub, telemetry: Telemetry | None = None
    ) -> None:
        self._stub = stub
        self._telemetry = telemetry or Telemetry()
        self._isolation = Isolation.NONE
        self._connected = False
        self._preparing: asyncio.Task[None] | None = None

    @property
    def isolation(self) -> Isolation:
        """Isolation of the runner, as of the last call; NONE before the first one."""
        return self._isolation

    async def connect(self) -> None:
        """Reads the isolation of the runner, which starts its sandbox for this if needed.

        Raises:
            UnavailableError: The runner does not answer, or cannot start its sandbox.
        """
        response = await self._stub.GetIsolation(pb.GetIsolationRequest())
        self._set_isolation(to_isolation(response.isolation))
        self._connected = True

    async def check(self) -> Isolation:
        """Returns the isolation of the runner; NONE if its sandbox has not started.

        Raises:
            UnavailableError: The runner does not answer.
        """
        response = await self._stub.GetIsolation(pb.GetIsolationRequest(running_only=True))
        return to_isolation(response.isolation)

    def prepare(self) -> None:
        """Connects in the background, so that expected calls need not wait for it."""
        if not self._connected and (self._preparing is None or self._preparing.done()):
            self._preparing = asyncio.create_task(self.connect())
            # Retrieves the exception: the next call connects again and raises it.
            self._preparing.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def run(self, run: SandboxRun) -> RunResult:
        """Runs one call to its end. Cancelling it kills every process of the call.

        If a runner that was connected can no longer be reached, it is unknown whether the call
        was started. The result is KILLED, not REFUSED, and the call is not sent again.

        Raises:
            UnavailableError: The runner or the answerer of the run cannot be reached.
        """
        if not self._connected:
            await self.connect()
        result = await self._run(run)
        self._telemetry.counter(
            SANDBOX_CALLS, isolation=result.isolation.label, status=result.status.value
        ).inc()
        return result

    async def _run(self, run: SandboxRun) -> RunResult:
        answerer_errors: list[UnavailableError] = []
        try:
            if run.answerer is None:
                call = self._stub.RunCode(run_to_proto(run))
                async for response in call:
                    # The stream has only one message.
                    complete_in_background(call)
                    return self._result_of(response)
            else:
                answered_run = self._run_with_answers(run, run.answerer, answerer_errors)
                async with aclosing(answered_run) as responses:
                    async for last in responses:
                        return self._result_of(last.result)
        except UnavailableError as error:
            if error in answerer_errors:
                raise
        detail = "The call was lost: the process that runs tools has ended."
        return RunResult(RunStatus.KILLED, detail=detail, isolation=self._isolation)

    def _run_with_answers(
        self, run: SandboxRun, answerer: Answerer, answerer_errors: list[UnavailableError]
    ) -> AsyncGenerator[pb.RunAskingCodeResponse, None]:
        """Runs a call and answers the questions of its code; yields the result.

        Adds errors of the answerer to `answerer_errors`, to distinguish them from the runner's.
        """

        async def answer(question: str) -> pb.RunAskingCodeRequest:
            try:
                return pb.RunAskingCodeRequest(answer_json=await answerer(question))
            except UnavailableError as error:
                answerer_errors.append(error)
                raise

        def answer_to(
            response: pb.RunAskingCodeResponse,
        ) -> Coroutine[Any, Any, pb.RunAskingCodeRequest] | None:
            return answer(response.question_json) if response.HasField("question_json") else None

        first = pb.RunAskingCodeRequest(run=run_to_proto(run))
        # The first response that is not a question is the result.
        return call_and_answer(
            self._stub.RunAskingCode, first, answer_to, lambda _: True, ends=lambda _: True
        )

    def _result_of(self, response: pb.RunCodeResponse) -> RunResult:
        """Returns the result in a response, and notes the isolation of the runner."""
        result = to_result(response)
        self._set_isolation(result.isolation)
        return result

    def _set_isolation(self, isolation: Isolation) -> None:
        if self._connected and isolation is self._isolation:
            return
        self._isolation = isolation
        for level in Isolation:
            gauge = self._telemetry.gauge(SANDBOX_ISOLATION, isolation=level.label)
            gauge.set(float(level is isolation))

    async def close(self) -> None:
        """Stops connecting. Calls end with their streams; the channel belongs to the service."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)


def run_to_proto(run: SandboxRun) -> pb.RunCodeRequest:
    """Returns the wire form of a call."""
    return pb.RunCodeRequest(
        source=run.source,
        function=run.function,
        arguments_json=run.arguments_json,
        environment=run.environment,
        hosts=run.hosts,
        packages=run.packages,
        limits=pb.SandboxLimits(**run.limits.by_name()),
        minimum=pb.SandboxIsolation.ValueType(run.minimum),
    )


def to_result(wire: pb.RunCodeResponse) -> RunResult:
    """Returns the result of a call.

    Raises:
        ValueError: This release does not know the status.
    """
    failure = wire.failure
    return RunResult(
        status=RunStatus(wire.status),
        value_json=wire.value_json,
        failure=Failure(failure.type, failure.message, failure.traceback)
        if wire.HasField("failure")
        else None,
        detail=wire.detail,
        stdout=wire.stdout,
        stderr=wire.stderr,
        isolation=to_isolation(wire.isolation),
        wall_seconds=wire.wall_seconds,
        cpu_seconds=wire.cpu_seconds,
        peak_bytes=wire.peak_bytes,
    )


def to_isolation(wire: int) -> Isolation:
    """Returns an isolation level; NONE for a level that is unknown to this release."""
    return Isolation(wire) if wire in _LEVELS else Isolation.NONE
