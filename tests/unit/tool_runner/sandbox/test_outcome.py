"""The check of answers of a jailed process."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.shared.json_text import MAX_JSON_DEPTH
from strata.shared.sandbox import Limits, RunStatus
from strata.tool_runner.sandbox import outcome
from strata.tool_runner.sandbox.forkserver import Exit

LIMITS = Limits(result_bytes=1_000)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@security_examples
@given(st.binary(max_size=300))
def test_any_bytes_get_a_status(frame: bytes) -> None:
    assert outcome.verdict_of(frame, LIMITS).status in {RunStatus.BAD_RESULT, RunStatus.OK}


@security_examples
@given(st.dictionaries(st.sampled_from(["value", "error", "bad", "large", "x"]), JSON, max_size=2))
def test_any_json_answer_is_checked(answer: dict[str, object]) -> None:
    verdict = outcome.verdict_of(json.dumps(answer).encode(), LIMITS)
    verdict.value_json.encode()
    verdict.detail.encode()
    assert (verdict.value_json != "") == (verdict.status is RunStatus.OK)
    if verdict.failure:
        assert verdict.failure.type


@security_examples
@given(JSON)
def test_a_value_is_returned_unchanged_or_is_too_large(value: object) -> None:
    verdict = outcome.verdict_of(json.dumps({"value": value}).encode(), LIMITS)
    if verdict.status is RunStatus.OK:
        assert json.loads(verdict.value_json) == value
        assert len(verdict.value_json.encode()) <= LIMITS.result_bytes
    else:
        assert verdict.status is RunStatus.RESULT_TOO_LARGE
        assert len(json.dumps(value, ensure_ascii=False).encode()) > LIMITS.result_bytes


@security_examples
@given(st.integers(1, 300))
def test_the_depth_of_values_is_limited(depth: int) -> None:
    frame = b'{"value":' + b"[" * depth + b"]" * depth + b"}"
    status = outcome.verdict_of(frame, LIMITS).status
    assert status is (RunStatus.OK if depth <= MAX_JSON_DEPTH else RunStatus.BAD_RESULT)


def test_every_kind_of_process_end_has_a_status() -> None:
    def status(*args: object, **more: object) -> RunStatus:
        return outcome.ended(Exit(*args, **more), LIMITS).status  # type: ignore[arg-type]

    assert status(-9, cpu_seconds=20.0) is RunStatus.CPU
    assert status(-9, cpu_seconds=1.0) is RunStatus.KILLED
    assert status(-11, cpu_seconds=20.0) is RunStatus.KILLED
    assert status(-9, over="memory") is RunStatus.MEMORY
    assert status(-9, over="processes") is RunStatus.PROCESSES
    assert status(-9, over="disk") is RunStatus.KILLED
    assert status(-40) is RunStatus.KILLED
    assert "lost" in outcome.ended(Exit(-9, reason="the fork server ended"), LIMITS).detail


@security_examples
@given(TEXT, st.integers(0, 40))
def test_truncated_output_is_decoded(text: str, at: int) -> None:
    assert text.startswith(outcome.decode(text.encode()[:at]))


def test_a_failure_with_invalid_texts_is_cleaned() -> None:
    answer = {"error": {"type": "\ud800", "message": ["x"], "traceback": "t" * 10_000}}
    failure = outcome.verdict_of(json.dumps(answer).encode(), LIMITS).failure
    assert failure
    failure.type.encode()
    assert failure.message == ""
    assert len(failure.traceback) < 5_000
