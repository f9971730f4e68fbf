"""The model doubles: they refuse invalid requests."""

from typing import Any

import httpx2
import pytest

from doubles import memory_persona
from doubles.model_server import ModelServer
from doubles.script import call

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OPENAI_BREACHES: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "narrator", "content": "x"}]},
    {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "orphan"}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}]},
    {"messages": [{"role": "assistant", "content": None}]},
    {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "user", "content": "too early"},
            {"role": "tool", "tool_call_id": "c1", "content": "late"},
        ]
    },
    {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
            {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ]
    },
    {"tool_choice": "auto"},
    {"stream_options": {"include_usage": True}},
    {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "strict": True,
                    "parameters": {
                        "type": "object",
                        "properties": {"x": {"type": "string"}},
                        "required": [],
                        "additionalProperties": False,
                    },
                },
            }
        ]
    },
]
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
USER = {"role": "user", "content": "hi"}
ANTHROPIC_BREACHES: list[dict[str, Any]] = [
    {"max_tokens": None},
    {"temperature": 1.0},
    {"messages": [{"role": "assistant", "content": "first"}]},
    {"messages": [USER, {"role": "assistant", "content": "prefill"}]},
    {"messages": [USER, USER]},
    {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user", "content": [RESULT]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " "}]}]},
    {"messages": [USER, {"role": "assistant", "content": [USE]}, USER]},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [{"type": "text", "text": "before"}, RESULT]},
        ]
    },
    {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "x", "signature": "forged"}],
            },
            USER,
        ]
    },
    {"thinking": {"type": "enabled", "budget_tokens": 5000}},
]


async def post(url: str, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(url, json=body, headers={"anthropic-version": "2026-10-21"})


@pytest.mark.parametrize("breach", OPENAI_BREACHES)
async def test_openai_breaches_are_refused(server: ModelServer, breach: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [USER], **breach}
    answer = await post(f"{server.openai_url}/chat/completions", body)
    assert answer.status_code == 400
    assert len(server.violations) == 1


@pytest.mark.parametrize("breach", ANTHROPIC_BREACHES)
async def test_anthropic_breaches_are_refused(server: ModelServer, breach: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 2000, "messages": [USER], **breach}
    answer = await post(f"{server.anthropic_url}/v1/messages", body)
    assert answer.status_code == 400
    assert len(server.violations) == 1


async def test_whole_answers_have_the_shape_of_the_apis(server: ModelServer) -> None:
    server.script(call("f", {"x": 1}), call("f", {"x": 1}))
    openai = await post(f"{server.openai_url}/chat/completions", {"model": "m", "messages": [USER]})
    anthropic = await post(
        f"{server.anthropic_url}/v1/messages", {"model": "m", "max_tokens": 9, "messages": [USER]}
    )
    [choice] = openai.json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert anthropic.json()["content"][0]["input"] == {"x": 1}
    assert server.violations == []


async def test_a_request_after_the_end_of_the_script_is_a_violation(server: ModelServer) -> None:
    body = {"model": "m", "messages": [USER]}
    answer = await post(f"{server.openai_url}/chat/completions", body)
    assert answer.status_code == 400
    assert server.violations == ["a request came after the end of the script"]


async def test_embeddings_depend_on_the_text(server: ModelServer) -> None:
    answer = await post(f"{server.openai_url}/embeddings", {"model": "m", "input": ["a", "b", "a"]})
    first, second, third = (item["embedding"] for item in answer.json()["data"])
    assert first == third != second


async def test_the_persona_uses_its_memory_and_reports(server: ModelServer) -> None:
    server.respond(memory_persona.answer)
    tool = {
        "type": "function",
        "function": {"name": "memory_insert", "parameters": {"type": "object"}},
    }
    ask = {"role": "user", "content": "remember I like tea"}
    body: dict[str, Any] = {"model": "m", "messages": [ask], "tools": [tool]}
    first = (await post(f"{server.openai_url}/chat/completions", body)).json()
    message = first["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "memory_insert"
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "edited"}
    body["messages"] = [ask, message, result]
    second = (await post(f"{server.openai_url}/chat/completions", body)).json()
    assert "edited" in second["choices"][0]["message"]["content"]
    assert server.violations == []
