"""``send_message``: the argument is the message, and the return is a constant."""

from __future__ import annotations

import json

import pytest

from integration.tool_execution.conftest import Tools, refusal

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_send_message_returns_the_constant_of_the_specification(tools: Tools) -> None:
    (ended,) = await tools.run(("send_message", {"message": "Hello!"}))
    packed = json.loads(ended.tool_return.content)
    assert (packed["status"], packed["message"]) == ("OK", "Sent message successfully.")
    assert not ended.memory_edits


async def test_a_message_without_text_is_refused_with_the_name_of_the_argument(
    tools: Tools,
) -> None:
    (ended,) = await tools.run(("send_message", {"text": "Hello!"}))
    assert "message" in refusal(ended)
