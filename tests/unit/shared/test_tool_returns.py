"""Packed tool returns."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.tool_returns import MAX_RETURN_BYTES, pack

NOW = datetime(2026, 1, 20, 14, 13, 45, tzinfo=ZoneInfo("America/Los_Angeles"))


def test_the_packed_form_is_exact() -> None:
    content, truncated = pack("OK", "done", NOW, 100)
    assert content == (
        '{\n  "status": "OK",\n  "message": "done",\n  "time": "2026-01-20 02:13:45 PM PST-0800"\n}'
    )
    assert not truncated


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "None"), ({"a": [1]}, {"a": [1]}), ([{"b": "ü"}], [{"b": "ü"}]), (3, "3")],
)
def test_values_are_packed_as_json(value: Any, message: Any) -> None:
    assert json.loads(pack("OK", value, NOW, 100)[0])["message"] == message


def test_a_failure_has_the_status_failed() -> None:
    assert json.loads(pack("Failed", "no", NOW, 100)[0])["status"] == "Failed"


def test_a_long_return_is_truncated_with_the_correct_numbers() -> None:
    content, truncated = pack("OK", "x" * 5_092, NOW, 5_000)
    assert truncated
    message = json.loads(content)["message"]
    assert message == "x" * 5_000 + (
        " [NOTE: function output was truncated since it exceeded the character limit (5092 > 5000)]"
    )


@given(
    value=st.text() | st.dictionaries(st.text(), st.text()) | st.lists(st.text()),
    limit=st.integers(1, 50),
)
def test_packed_returns_are_valid_json_after_any_truncation(value: Any, limit: int) -> None:
    content, truncated = pack("OK", value, NOW, limit)
    message = json.loads(content)["message"]
    if not truncated:
        assert message == value


NESTED = st.recursive(
    st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
)


@pytest.mark.parametrize(
    "value",
    [
        "ä" * 1_000_000,
        '"\n\x01' * 300_000,
        json.loads("[" * 90 + ("1," * 20_000)[:-1] + "]" * 90),
        {"a": ["\x02" * 400_000]},
    ],
    ids=["two bytes each", "escapes", "indentation", "escapes in an object"],
)
def test_a_packed_return_has_a_maximum_size_and_stays_json(value: Any) -> None:
    content, _ = pack("OK", value, NOW, 1_000_000)
    assert len(content.encode()) <= MAX_RETURN_BYTES
    body = json.loads(content)
    assert body["status"] == "OK"
    assert "truncated" in body["message"]


@given(NESTED)
def test_ordinary_returns_are_packed_unchanged(value: Any) -> None:
    message = json.loads(pack("OK", value, NOW, 1_000_000)[0])["message"]
    assert message == (value if isinstance(value, str | list | dict) else json.dumps(value))
