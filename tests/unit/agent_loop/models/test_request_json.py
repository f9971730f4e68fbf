"""The JSON of requests, and the canonical form of their options, with tools encoded once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    JsonReply,
    ModelRequest,
    ModelSettings,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.domain.run.request_digest import json_of, options_json
from strata.agent_loop.models.openai_api import chat_completions_wire, responses_wire
from strata.agent_loop.models.openai_api.request_json import encoded_request

PARAMETERS = {"type": "object", "properties": {"t\u00e9xt": {"type": "string"}}}
TOOLS = (
    ToolSchema("first", 'Says "yes" or \u201cno\u201d.', PARAMETERS, strict=True),
    ToolSchema("second", "Line\nbreak \U0001f600", {"type": "object", "properties": {}}),
)
REQUESTS = (
    ModelRequest([ChatMessage.system("System."), ChatMessage.user("Hi.")], TOOLS),
    ModelRequest([ChatMessage.system("System."), ChatMessage.user("Hi.")], TOOLS[:1], max_tokens=7),
    ModelRequest(
        [ChatMessage.user("Hi.")],
        TOOLS,
        tool_choice=ToolChoice.named("second"),
        parallel_tool_calls=False,
        response_format=JsonReply(PARAMETERS, "answer", "An answer."),
    ),
    ModelRequest([ChatMessage.user("Hi.")]),
)
SETTINGS = ModelSettings(handle="openai/gpt", endpoint_type="openai", model="gpt")


def forms(request: ModelRequest) -> list[dict[str, Any]]:
    return [
        chat_completions_wire.build(request, SETTINGS, official=official)
        for official in (True, False)
    ] + [responses_wire.build(request, SETTINGS, official=True, learnt=responses_wire.Learnt())]


@pytest.mark.parametrize("request_", REQUESTS)
def test_request_is_the_same_json_whether_its_tools_are_new_or_were_sent(
    request_: ModelRequest,
) -> None:
    for _ in range(2):
        for body in forms(request_):
            assert json.loads(encoded_request(body)) == json.loads(json.dumps(body))
            assert ("tools" in body) == bool(request_.tools)


def test_request_with_a_number_that_json_cannot_express_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encoded_request({"temperature": float("nan")})


@pytest.mark.parametrize("request_", REQUESTS)
def test_canonical_options_are_those_of_the_whole_request(request_: ModelRequest) -> None:
    names = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "max_tokens")
    expected = json_of({name: getattr(request_, name) for name in names})
    assert options_json(request_) == expected
    assert options_json(request_) == expected
