"""Messages between service and tool runner keep every value unchanged."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.api.tool_runner.v1 import sandbox_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.sandbox import (
    Failure,
    Isolation,
    Limits,
    RunResult,
    RunStatus,
    SandboxRun,
)
from strata.tool_execution.clients.sandbox import run_to_proto, to_isolation, to_result
from strata.tool_runner.convert import sandbox as convert

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
WHOLE = st.integers(1, 1 << 40)
SECONDS = st.floats(0.001, 1e6)
# Derived from the fields, so that a new field is included.
LIMITS = st.fixed_dictionaries(
    {field.name: SECONDS if field.type == "float" else WHOLE for field in fields(Limits)}
).map(lambda limits: Limits(**limits))  # type: ignore[arg-type]
RUNS = st.builds(
    SandboxRun,
    source=TEXT,
    function=TEXT,
    arguments_json=TEXT,
    environment=st.dictionaries(TEXT, TEXT, max_size=3),
    hosts=st.lists(TEXT, max_size=3).map(tuple),
    packages=st.none() | TEXT,
    limits=LIMITS,
    minimum=st.sampled_from(Isolation),
)
RESULTS = st.builds(
    RunResult,
    status=st.sampled_from(RunStatus),
    value_json=TEXT,
    failure=st.none() | st.builds(Failure, TEXT, TEXT, TEXT),
    detail=TEXT,
    stdout=TEXT,
    stderr=TEXT,
    isolation=st.sampled_from(Isolation),
    wall_seconds=SECONDS,
    cpu_seconds=SECONDS,
    peak_bytes=WHOLE,
)
DEFAULTS = SandboxRun("def f(): pass", "f")


@security_examples
@given(RUNS)
def test_a_call_is_unchanged_after_conversion(run: SandboxRun) -> None:
    sent = run_to_proto(run).SerializeToString()
    assert convert.to_run(pb.RunCodeRequest.FromString(sent)) == run


@security_examples
@given(RESULTS)
def test_a_result_is_unchanged_after_conversion(result: RunResult) -> None:
    sent = convert.result_to_proto(result).SerializeToString()
    assert to_result(pb.RunCodeResponse.FromString(sent)) == result


def test_the_generators_cover_every_field_of_calls_and_results() -> None:
    """Ensures that the conversion tests cover fields that are added later."""
    # Whether code can make nested calls depends on the method that is called.
    assert {field.name for field in fields(SandboxRun)} - {"answerer"} == {
        *("source", "function", "arguments_json", "environment", "hosts", "packages", "limits"),
        "minimum",
    }
    assert {field.name for field in fields(RunResult)} == {
        *("status", "value_json", "failure", "detail", "stdout", "stderr", "isolation"),
        *("wall_seconds", "cpu_seconds", "peak_bytes"),
    }


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_a_missing_limit_is_refused(name: str) -> None:
    without = run_to_proto(DEFAULTS)
    without.limits.ClearField(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=f"limits.{name}"):
        convert.to_run(without)


def test_limits_that_are_not_numbers_are_refused() -> None:
    request = run_to_proto(replace(DEFAULTS, limits=replace(Limits(), wall_seconds=float("nan"))))
    with pytest.raises(InvalidArgumentError, match="wall_seconds"):
        convert.to_run(request)


def test_isolation_levels_of_another_release_are_refused() -> None:
    assert to_isolation(99) is Isolation.NONE
    request = run_to_proto(DEFAULTS)
    request.minimum = 99  # type: ignore[assignment]
    with pytest.raises(InvalidArgumentError, match="minimum"):
        convert.to_run(request)
