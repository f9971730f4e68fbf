"""Any conversation becomes a valid request for each known service, checked by its rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles import openai_dialect, services
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    JsonReply,
    ModelRequest,
    ModelSettings,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.models.conversation_repair import CONTINUE, repair
from strata.agent_loop.models.openai_api import chat_completions_wire as openai_wire
from strata.agent_loop.models.presets.table import PRESETS, preset_of, preset_of_product, quirks_of
from strata.standalone.compose.model import USUAL_ADDRESSES
from unit.agent_loop.models.random_conversations import CHOICES, CONVERSATIONS, TOOLS

SERVICES = [preset.name for preset in PRESETS.values() if preset.dialect == "openai"]
MODELS = ["m", "reasons", "mistralai/m"]
SCHEMA = {"type": "object", "properties": {"reply": {"type": "string"}}}
CALLING = ChatMessage(
    ChatRole.ASSISTANT,
    (ReasoningPart("I should look."), TextPart("Looking.")),
    (ToolCall("call_" + "a" * 24, "a", "{}"),),
)
RETURN = ChatMessage.tool("call_" + "a" * 24, "found")


def body_for(
    service: str,
    messages: Sequence[ChatMessage],
    *,
    model: str = "m",
    choice: ToolChoice | None = None,
    tools: Sequence[ToolSchema] = TOOLS,
    **more: Any,
) -> dict[str, Any]:
    schema = more.pop("schema", None)
    settings = ModelSettings(
        f"s/{model}", "openai", model, quirks=quirks_of(service, model), **more
    )
    reply = None if schema is None else JsonReply(schema)
    asked = ModelRequest(messages, tools, choice or ToolChoice(), response_format=reply)
    return openai_wire.build(asked, settings, official=False)


@pytest.mark.parametrize("service", SERVICES)
@settings(max_examples=25)
@given(
    conversation=CONVERSATIONS,
    model=st.sampled_from(MODELS),
    choice=CHOICES,
    tools=st.sampled_from([TOOLS, []]),
    schema=st.sampled_from([None, SCHEMA]),
    limit=st.sampled_from([None, 50]),
)
def test_every_service_accepts_any_conversation(
    service: str,
    conversation: list[ChatMessage],
    model: str,
    choice: ToolChoice,
    tools: list[ToolSchema],
    schema: dict[str, Any] | None,
    limit: int | None,
) -> None:
    messages = [ChatMessage.system("You are a test."), *conversation]
    body = body_for(
        service, messages, model=model, choice=choice, tools=tools, schema=schema, max_tokens=limit
    )
    openai_dialect.check(body)
    assert services.refusal(service, body) is None


@pytest.mark.parametrize("service", SERVICES)
def test_no_text_of_the_conversation_is_lost(service: str) -> None:
    texts = ["You are a test.", "one", "two", "Looking.", "found", "three", "alert", "done"]
    messages = [
        ChatMessage.system(texts[0]),
        *map(ChatMessage.user, texts[1:3]),
        CALLING,
        RETURN,
        ChatMessage.user("three"),
        ChatMessage.system("alert"),
        ChatMessage.assistant("done"),
    ]
    sent = body_for(service, messages)["messages"]
    places = [str(sent).index(text) for text in texts]
    assert places == sorted(places)


@given(st.lists(st.text(max_size=12), unique=True, max_size=20))
def test_ids_of_a_fixed_length_are_unique_and_stay_the_same(ids: list[str]) -> None:
    pattern = re.compile("[a-zA-Z0-9]{9}")
    conversation = [
        message
        for one in ids
        for message in (
            ChatMessage.assistant("", [ToolCall(one, "a", "{}")]),
            ChatMessage.tool(one, "r"),
        )
    ]
    sent = repair(conversation, 9)
    wire_ids = [call.id for message in sent for call in message.tool_calls]
    assert all(map(pattern.fullmatch, wire_ids))
    assert len(set(wire_ids)) == len(ids)
    assert [m.tool_call_id for m in sent if m.role is ChatRole.TOOL] == wire_ids
    half = repair(conversation[: len(conversation) // 4 * 2], 9)
    assert half == sent[: len(half)]


def test_valid_ids_are_sent_unchanged() -> None:
    [sent] = repair([ChatMessage.assistant("", [ToolCall("iRvM4muS4", "a", "{}")])], 9)[:1]
    assert sent.tool_calls[0].id == "iRvM4muS4"


def test_mistral_gets_a_reply_between_a_return_and_a_message_of_the_user() -> None:
    sent = body_for("mistral", [ChatMessage.user("hi"), CALLING, RETURN, ChatMessage.user("go on")])
    assert [one["role"] for one in sent["messages"]] == [
        *("user", "assistant", "tool", "assistant", "user")
    ]
    assert "stream_options" not in sent
    last = body_for("mistral", [ChatMessage.user("hi"), ChatMessage.assistant("Hello")])
    assert last["messages"][-1] == {"role": "user", "content": CONTINUE}


def test_deepseek_gets_its_reasoning_back_and_does_not_reason_before_a_forced_call() -> None:
    messages = [ChatMessage.user("hi"), CALLING, RETURN]
    sent = body_for("deepseek", messages, reasoning_effort="high")
    assert sent["messages"][1]["reasoning_content"] == "I should look."
    assert sent["reasoning_effort"] == "high"
    forced = body_for("deepseek", messages, choice=ToolChoice.required(), reasoning_effort="high")
    assert forced["thinking"] == {"type": "disabled"}
    assert "reasoning_effort" not in forced
    assert "reasoning_content" not in body_for("deepseek", messages, tools=[])["messages"][1]
    assert "reasoning_content" not in body_for("groq", messages)["messages"][1]


def test_deepseek_gets_the_schema_of_the_reply_in_the_prompt() -> None:
    sent = body_for("deepseek", [ChatMessage.user("hi")], schema=SCHEMA, tools=[])
    assert sent["response_format"] == {"type": "json_object"}
    assert '"reply"' in sent["messages"][0]["content"]


def test_lmstudio_gets_only_the_forced_tool() -> None:
    tools = [*TOOLS, ToolSchema("b", "B.", {"type": "object", "properties": {}})]
    sent = body_for("lmstudio", [ChatMessage.user("hi")], choice=ToolChoice.named("a"), tools=tools)
    assert sent["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["a"]
    free = body_for("lmstudio", [ChatMessage.user("hi")], tools=tools)
    assert len(free["tools"]) == 2


def test_openrouter_gets_a_reasoning_object() -> None:
    messages = [ChatMessage.user("hi")]
    effort = body_for("openrouter", messages, reasoning_effort="low", max_reasoning_tokens=99)
    assert effort["reasoning"] == {"effort": "low"}
    assert "reasoning_effort" not in effort
    budget = body_for("openrouter", messages, max_reasoning_tokens=99)
    assert budget["reasoning"] == {"max_tokens": 99}
    assert "reasoning" not in body_for("openrouter", messages)


@pytest.mark.parametrize(
    ("service", "model", "name"),
    [
        ("xai", "m", "max_completion_tokens"),
        # At OpenAI a model with this name would count as a reasoning model.
        ("mistral", "gpt-5", "max_tokens"),
        ("fireworks", "accounts/fireworks/models/gpt-oss-120b", "max_tokens"),
        ("ollama", "gpt-5", "max_tokens"),
        ("vllm", "gpt-5", "max_tokens"),
    ],
)
def test_the_limit_of_the_reply_has_the_parameter_name_of_the_service(
    service: str, model: str, name: str
) -> None:
    assert body_for(service, [ChatMessage.user("hi")], model=model, max_tokens=5)[name] == 5


def test_ollama_gets_no_unknown_parameters() -> None:
    assert "parallel_tool_calls" not in body_for("ollama", [ChatMessage.user("hi")])
    assert "parallel_tool_calls" in body_for("vllm", [ChatMessage.user("hi")])


def test_detected_local_servers_are_known_services() -> None:
    for address in USUAL_ADDRESSES:
        preset = preset_of(preset_of_product(address.product))
        assert preset.base_url == address.base_url
    assert preset_of_product("Mistral") == preset_of_product("unheard of") == ""


def test_openai_and_unknown_servers_get_equal_requests() -> None:
    messages = [
        ChatMessage.system("s"),
        CALLING,
        RETURN,
        ChatMessage.user("u"),
        ChatMessage.system("t"),
    ]
    assert body_for("openai", messages, schema=SCHEMA) == body_for("", messages, schema=SCHEMA)


def test_lmstudio_sees_a_message_of_the_user_before_the_first_call() -> None:
    messages = [ChatMessage.system("S"), CALLING, RETURN, ChatMessage.user("hi")]
    roles = [message["role"] for message in body_for("lmstudio", messages)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    others = [message["role"] for message in body_for("groq", messages)["messages"]]
    assert others == ["system", "assistant", "tool", "user"]
