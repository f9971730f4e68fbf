"""Texts on one line, diffs, and removal of control characters for terminals."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.api.common.v1 import message_pb2
from strata.cli.chat.turn_view import compact_arguments
from strata.cli.diffs import diff_text, unified_diff
from strata.cli.failures import error_lines, exit_code_of, reported_error
from strata.cli.messages import text_of
from strata.cli.output import print_json, safe
from strata.client.calls.agents import is_agent_id
from strata.client.errors import UnreachableError
from strata.protocol.errors import InternalError, NotFoundError, Reason
from strata.shared.ids import new_id
from strata.shared.one_line import UNSAFE_CODES, clipped
from strata.shared.tool_returns import packed, result_of


@given(st.text())
def test_safe_text_contains_no_control_characters_but_tab_and_newline(text: str) -> None:
    kept = safe(text)
    assert all(c in "\t\n" or not (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0) for c in kept)
    assert "\u202e" not in kept


@given(st.text(max_size=50), st.integers(1, 30))
def test_clipped_text_is_one_line_within_the_limit(text: str, limit: int) -> None:
    line = clipped(text, limit)
    assert len(line) <= limit
    assert "\n" not in line


def test_arguments_are_printed_compactly() -> None:
    assert compact_arguments('{"label": "human", "n": 3, "deep": {"a": [1]}}') == (
        'label="human", n=3, deep={"a": [1]}'
    )
    assert compact_arguments("") == ""
    assert compact_arguments('{"cut off') == '{"cut off'
    assert compact_arguments("[1]") == "[1]"
    assert len(compact_arguments(json.dumps({str(n): "x" * 500 for n in range(20)}))) <= 160


def test_the_value_of_a_packed_result_is_printed() -> None:
    assert result_of('{"status": "OK", "message": "fine", "time": "now"}') == "fine"
    assert result_of('{"status": "OK", "message": {"a": 1}}') == '{"a": 1}'
    assert result_of("no package") == "no package"
    assert result_of("[]") == "[]"


def test_a_diff_shows_changed_lines_only_and_not_too_many() -> None:
    before = "\n".join(f"line {n}" for n in range(20))
    after = before.replace("line 3", "LINE 3") + "\nmore"
    shown = [line.plain for line in diff_text(unified_diff(before, after), limit=10)]
    assert shown == ["- line 3", "+ LINE 3", "+ more"]
    shown = [line.plain for line in diff_text(unified_diff(before, after), limit=2)]
    assert shown == ["- line 3", "+ LINE 3", "… 1 more line"]
    assert unified_diff(before, before) == ""


def test_names_may_look_like_ids() -> None:
    assert is_agent_id(new_id("agent"))
    assert not is_agent_id("agent-12345678")
    assert not is_agent_id("agent-")
    assert not is_agent_id("bob")


def test_tool_calls_and_returns_are_printed_readably() -> None:
    content = packed("OK", "y", datetime.now(UTC))
    message = message_pb2.Message(
        parts=[
            message_pb2.Part(reasoning=message_pb2.ReasoningPart(text="hm")),
            message_pb2.Part(text=message_pb2.TextPart(text="I look.")),
            message_pb2.Part(
                tool_call=message_pb2.ToolCallPart(name="look", arguments='{"at": "x"}')
            ),
            message_pb2.Part(tool_return=message_pb2.ToolReturnPart(name="look", content=content)),
        ]
    )
    assert text_of(message) == 'I look. → look(at="x") ← look: y'


def test_errors_of_a_task_group_are_printed_as_one() -> None:
    inner = NotFoundError("Gone.", reason=Reason.RUN_NOT_FOUND)
    assert reported_error(ExceptionGroup("group", [ExceptionGroup("in it", [inner])])) is inner
    assert reported_error(ExceptionGroup("group", [inner, KeyError("x")])) is None
    assert reported_error(KeyError("x")) is None


def test_errors_are_printed_with_code_metadata_and_retry_delay() -> None:
    unreachable = UnreachableError("Nothing there.")
    assert (exit_code_of(unreachable), error_lines(unreachable)) == (3, ["Nothing there."])
    defect = InternalError("Something broke.", metadata={"incident_id": "i-1"}, retry_after=2.5)
    assert exit_code_of(defect) == 1
    assert error_lines(defect) == [
        "Something broke. [INTERNAL]",
        "  incident_id: i-1",
        "  Try again in 2.5 s.",
    ]


def test_json_has_no_control_characters_and_the_same_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document: dict[str, object] = {"name": "é\\\x9b2J\x7f\u202e\x1b[2J\n"}
    print_json(document)
    written = capsys.readouterr().out
    assert not set(written) & {chr(code) for code in UNSAFE_CODES}
    assert "é" in written
    assert json.loads(written) == document
