"""Converts messages of SandboxService between the wire and the domain."""

from __future__ import annotations

from dataclasses import asdict, fields

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.sandbox import (
    Failure,
    Isolation,
    Limits,
    Run,
    RunResult,
    RunStatus,
)

_LEVELS = frozenset(int(level) for level in Isolation)


def run_to_proto(run: Run) -> pb.RunCodeRequest:
    """Returns the wire form of a call."""
    return pb.RunCodeRequest(
        source=run.source,
        function=run.function,
        arguments_json=run.arguments_json,
        environment=run.environment,
        hosts=run.hosts,
        packages=run.packages,
        limits=pb.SandboxLimits(**asdict(run.limits)),
        minimum=pb.SandboxIsolation.ValueType(run.minimum),
    )


def to_run(wire: pb.RunCodeRequest) -> Run:
    """Returns the call that a request describes.

    Raises:
        InvalidArgumentError: Fields are wrong; the error names all of them.
    """
    violations = [
        FieldViolation(f"limits.{field.name}", "must be above zero")
        for field in fields(Limits)
        if not getattr(wire.limits, field.name) > 0
    ]
    if wire.minimum not in _LEVELS:
        violations.append(FieldViolation("minimum", "is not a known isolation level"))
    if violations:
        raise InvalidArgumentError(
            f"{violations[0].field} {violations[0].description}.", violations=violations
        )
    return Run(
        source=wire.source,
        function=wire.function,
        arguments_json=wire.arguments_json,
        environment=dict(wire.environment),
        hosts=tuple(wire.hosts),
        packages=wire.packages if wire.HasField("packages") else None,
        limits=Limits(**{field.name: getattr(wire.limits, field.name) for field in fields(Limits)}),
        minimum=Isolation(wire.minimum),
    )


def result_to_proto(result: RunResult) -> pb.RunCodeResponse:
    """Returns the wire form of a call's result."""
    wire = pb.RunCodeResponse(
        status=result.status.value,
        value_json=result.value_json,
        detail=result.detail,
        stdout=result.stdout,
        stderr=result.stderr,
        isolation=pb.SandboxIsolation.ValueType(result.isolation),
        wall_seconds=result.wall_seconds,
        cpu_seconds=result.cpu_seconds,
        peak_bytes=result.peak_bytes,
    )
    if result.failure is not None:
        wire.failure.CopyFrom(pb.SandboxFailure(**asdict(result.failure)))
    return wire


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
    """Returns an isolation level; NONE for a level that this release does not know."""
    return Isolation(wire) if wire in _LEVELS else Isolation.NONE
