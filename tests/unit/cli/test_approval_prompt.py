"""The prompt shows each call completely and asks for a decision on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from strata.api.common.v1 import message_pb2
from strata.cli.chat.approval_prompt import ask_on_terminal
from strata.cli.chat.turn_view import untrusted_sources_line

REQUEST = message_pb2.ApprovalRequestPart(
    approval_id="approval-1",
    tool_calls=[
        message_pb2.ToolCallPart(tool_call_id="a", name="pay", arguments='{"to": "\\u001b[2Jx"}'),
        message_pb2.ToolCallPart(tool_call_id="b", name="send", arguments="not json \x1b[2J"),
    ],
    bindings=[message_pb2.ApprovalBinding(tool_call_id="a", arguments_hash="h")],
)


def typing(lines: Sequence[str]) -> Callable[[str], str]:
    left = list(lines)

    def read(_: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def test_each_call_gets_its_own_decision(capsys: pytest.CaptureFixture[str]) -> None:
    decisions = ask_on_terminal(REQUEST, typing(["perhaps", " Y ", "no", " Too late. "]))
    assert decisions == [
        message_pb2.ApprovalDecision(tool_call_id="a", approve=True, arguments_hash="h"),
        message_pb2.ApprovalDecision(tool_call_id="b", reason="Too late."),
    ]
    shown = capsys.readouterr().out
    assert "pay" in shown
    assert '"to"' in shown
    assert "\x1b" not in shown


def test_return_value_of_a_client_tool_is_typed_at_its_call() -> None:
    request = message_pb2.ApprovalRequestPart()
    request.CopyFrom(REQUEST)
    request.bindings[0].by_client = True
    bound = request.bindings.add(tool_call_id="b", by_client=True)
    bound.arguments_hash = "i"
    assert ask_on_terminal(request, typing(["42 ", "", "No map."])) == [
        message_pb2.ApprovalDecision(tool_call_id="a", client_return="42 ", arguments_hash="h"),
        message_pb2.ApprovalDecision(tool_call_id="b", reason="No map.", arguments_hash="i"),
    ]


@pytest.mark.parametrize("lines", [[], ["y"], ["y", "n"]])
def test_leaving_the_prompt_sends_no_decision(lines: list[str]) -> None:
    assert ask_on_terminal(REQUEST, typing(lines)) is None


def test_sources_of_untrusted_content_are_named_once() -> None:
    web = message_pb2.PROVENANCE_WEB
    sources = [
        message_pb2.TaintSource(label=web, message_id="message-1", tool_name="fetch_webpage"),
        message_pb2.TaintSource(label=web, message_id="message-2", tool_name="fetch_webpage"),
        message_pb2.TaintSource(label=web, block_label="human"),
        message_pb2.TaintSource(label=web, archival_tag="mail eve"),
    ]
    assert untrusted_sources_line(message_pb2.ApprovalRequestPart(taint=sources)) == (
        "The agent had read untrusted content: web by fetch_webpage, web in memory block human,"
        " web in the archival tag mail eve"
    )
    assert untrusted_sources_line(message_pb2.ApprovalRequestPart()) == ""
