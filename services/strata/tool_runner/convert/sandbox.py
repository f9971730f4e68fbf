"""Converts and validates messages of SandboxService."""

from __future__ import annotations

from dataclasses import asdict

from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.shared.checks import Checks
from strata.shared.sandbox import LIMIT_NAMES, Isolation, Limits, RunResult, SandboxRun

_LEVELS = frozenset(int(level) for level in Isolation)


def to_run(wire: pb.RunCodeRequest) -> SandboxRun:
    """Returns the call that a request describes.

    Raises:
        InvalidArgumentError: Fields are wrong; the error names all of them.
    """
    checks = Checks()
    limits = Limits(**{name: getattr(wire.limits, name) for name in LIMIT_NAMES})
    for name in limits.not_positive():
        checks.fail(f"limits.{name}", "must be above zero")
    checks.unless(wire.minimum in _LEVELS, "minimum", "is not a known isolation level")
    checks.done()
    return SandboxRun(
        source=wire.source,
        function=wire.function,
        arguments_json=wire.arguments_json,
        environment=dict(wire.environment),
        hosts=tuple(wire.hosts),
        packages=wire.packages if wire.HasField("packages") else None,
        limits=limits,
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
