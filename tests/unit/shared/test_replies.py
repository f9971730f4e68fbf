"""The addressed text of agents' messages."""

from __future__ import annotations

import pytest

from strata.api.common.v1 import message_pb2 as pb
from strata.shared.replies import BETWEEN_TEXTS, as_text, words_of


def text(words: str, *, beside_call: bool = False) -> pb.Part:
    return pb.Part(text=pb.TextPart(text=words, beside_call=beside_call))


def call(name: str, arguments: str, *, heartbeat: bool | None = None) -> pb.Part:
    return pb.Part(
        tool_call=pb.ToolCallPart(
            tool_call_id="c", name=name, arguments=arguments, request_heartbeat=heartbeat
        )
    )


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([text("Hello"), text(" Ada")], ["Hello Ada"]),
        ([text("  ")], []),
        ([text("Let me look."), call("grep_files", "{}")], ["Let me look."]),
        ([call("send_message", '{"message": "Hello"}')], ["Hello"]),
        ([text("She is back."), call("send_message", '{"message": "Hello"}')], ["Hello"]),
        ([text("I look first."), call("grep_files", "{}", heartbeat=False)], []),
        ([text("I look first.", beside_call=True), call("grep_files", "{}")], []),
        ([text("I say hello.", beside_call=True), call("send_message", "{")], []),
        ([call("send_message", '{"message": " "}')], []),
        ([call("send_message", '{"message": 1}')], []),
        ([call("send_message", "{"), text("Hello")], ["Hello"]),
    ],
)
def test_the_text_of_an_assistant_message_is_extracted(
    parts: list[pb.Part], words: list[str]
) -> None:
    assert words_of(pb.Message(role=pb.ROLE_ASSISTANT, parts=parts)) == words
    assert words_of(pb.Message(role=pb.ROLE_USER, parts=parts)) == []
    assert as_text(pb.Message(role=pb.ROLE_USER, parts=parts)) == pb.Message(
        role=pb.ROLE_USER, parts=parts
    )


def thought(words: str) -> pb.Part:
    return pb.Part(reasoning=pb.ReasoningPart(text=words))


def returned(name: str, status: pb.ToolStatus.ValueType) -> pb.Part:
    part = pb.ToolReturnPart(tool_call_id="c", name=name, status=status, content="{}")
    return pb.Part(tool_return=part)


HELLO = call("send_message", '{"message": "Hello"}')
GREP = call("grep_files", "{}")
V2_GREP = call("grep_files", "{}", heartbeat=True)
BAD = call("send_message", "{")


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([text("Hello")], [text("Hello")]),
        ([HELLO], [text("Hello")]),
        ([thought("Hm."), HELLO], [thought("Hm."), text("Hello")]),
        ([text("She is back."), HELLO], [thought("She is back."), text("Hello")]),
        ([text("Let me look."), GREP], [text("Let me look."), GREP]),
        ([text("I look."), V2_GREP], [thought("I look."), V2_GREP]),
        ([text("I look.", beside_call=True), GREP], [thought("I look."), GREP]),
        ([text("I say hello.", beside_call=True), BAD], [thought("I say hello."), BAD]),
        ([HELLO, GREP, HELLO], [text("Hello"), GREP, text(f"{BETWEEN_TEXTS}Hello")]),
        ([text("Hello"), BAD], [text("Hello"), BAD]),
        ([call("send_message", '{"message": "\\ud83d"}')], [text("?")]),
    ],
)
def test_sent_text_replaces_send_message_calls(parts: list[pb.Part], shown: list[pb.Part]) -> None:
    message = pb.Message(role=pb.ROLE_ASSISTANT, id="m", parts=parts)
    result = as_text(message)
    assert result == pb.Message(role=pb.ROLE_ASSISTANT, id="m", parts=shown)
    assert (result is message) is (parts == shown)
    assert list(message.parts) == parts
    # The agent's words are the same in both forms.
    assert not words_of(message) or "".join(words_of(result)).replace(BETWEEN_TEXTS, "") == "".join(
        words_of(message)
    )


def test_returns_of_send_message_are_omitted() -> None:
    sent = returned("send_message", pb.TOOL_STATUS_OK)
    failed = returned("send_message", pb.TOOL_STATUS_FAILED)
    other = returned("grep_files", pb.TOOL_STATUS_OK)

    def shown(*parts: pb.Part) -> pb.Message | None:
        return as_text(pb.Message(role=pb.ROLE_TOOL, id="m", parts=parts))

    assert shown(sent) is None
    for kept in (failed, other):
        assert (
            shown(sent, kept) == shown(kept) == pb.Message(role=pb.ROLE_TOOL, id="m", parts=[kept])
        )


def test_call_in_a_request_for_approval_is_not_shown_as_sent() -> None:
    message = pb.Message(role=pb.ROLE_APPROVAL, parts=[HELLO])
    assert as_text(message) is message
    message.parts.insert(0, text("I greet her.", beside_call=True))
    shown = pb.Message(role=pb.ROLE_APPROVAL, parts=[thought("I greet her."), HELLO])
    assert as_text(message) == shown
