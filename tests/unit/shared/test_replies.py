"""What an agent says to others."""

from __future__ import annotations

import pytest

from strata.api.common.v1 import message_pb2 as pb
from strata.shared.replies import words_of


def text(words: str) -> pb.Part:
    return pb.Part(text=pb.TextPart(text=words))


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
        ([call("send_message", '{"message": " "}')], []),
        ([call("send_message", '{"message": 1}')], []),
        ([call("send_message", "{"), text("Hello")], ["Hello"]),
    ],
)
def test_what_an_assistant_message_says(parts: list[pb.Part], words: list[str]) -> None:
    assert words_of(pb.Message(role=pb.ROLE_ASSISTANT, parts=parts)) == words
    assert words_of(pb.Message(role=pb.ROLE_USER, parts=parts)) == []
