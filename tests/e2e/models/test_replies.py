"""Replies in all dialects."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.bench import Bench, collect, request
from doubles.script import Call, Reply, call, say
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    FinishReason,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
)
from strata.agent_loop.models.streaming import MAX_REPLY_BYTES, ReplySize


async def test_text_streams_in_pieces(bench: Bench) -> None:
    paused = replace(say("Grüße an alle, die mitlesen 👋", usage=(100, 7)), pause=0.02)
    bench.server.script(paused)
    seen, reply = await bench.ask()
    assert reply.text == "Grüße an alle, die mitlesen 👋"
    assert len([event for event in seen if isinstance(event, TextDelta)]) > 1
    assert reply.finish_reason is FinishReason.STOP
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (100, 7)
    assert reply.usage.total_tokens == 107
    assert not reply.usage.estimated
    assert bench.server.violations == []


async def test_cached_tokens_are_included_in_the_prompt_tokens(bench: Bench) -> None:
    bench.server.script(say("Yes.", usage=(100, 7), cached=60))
    _, reply = await bench.ask()
    assert (reply.usage.prompt_tokens, reply.usage.cached_input_tokens) == (100, 60)


async def test_a_reply_can_have_text_and_several_calls(bench: Bench) -> None:
    calls = (Call("lookup", {"query": "ä"}), Call("lookup", {"query": "b", "limit": 3}))
    bench.server.script(Reply(text="Let me see.", calls=calls))
    seen, reply = await bench.ask(parallel_tool_calls=True)
    assert reply.text == "Let me see."
    assert [one.arguments for one in reply.tool_calls] == [one.raw for one in calls]
    assert len({one.id for one in reply.tool_calls}) == 2
    assert reply.finish_reason is FinishReason.TOOL_CALLS
    assert {event.index for event in seen if isinstance(event, ToolCallDelta)} == {0, 1}


async def test_a_call_without_arguments_has_an_empty_object(bench: Bench) -> None:
    bench.server.script(call("lookup", ""))
    _, reply = await bench.ask()
    assert reply.tool_calls[0].arguments == "{}"


async def test_malformed_arguments_are_returned_unchanged(bench: Bench) -> None:
    bench.server.script(call("lookup", '{"query": "unfinished'))
    _, reply = await bench.ask()
    assert reply.tool_calls[0].arguments == '{"query": "unfinished'


@pytest.mark.parametrize("arguments", ['{"query": "unfinished', "[1, 2]", "null", "4"])
async def test_a_turn_continues_after_broken_arguments(bench: Bench, arguments: str) -> None:
    bench.server.script(call("lookup", arguments), say("Sorry."))
    _, first = await bench.ask()
    asked = request()
    answered = ChatMessage.tool(first.tool_calls[0].id, "arguments are not valid JSON")
    messages = [*asked.messages, first.to_message(), answered]
    _, second = await collect(bench.model(), replace(asked, messages=messages))
    assert second.text == "Sorry."
    assert bench.server.violations == []
    assert bench.server.requests[-1].answered == ["arguments are not valid JSON"]


async def test_an_empty_reply_is_not_an_error(bench: Bench) -> None:
    bench.server.script(Reply())
    _, reply = await bench.ask()
    assert reply.is_empty
    assert reply.finish_reason is FinishReason.STOP


async def test_a_reply_cut_at_the_token_limit_keeps_its_text(bench: Bench, dialect: str) -> None:
    words = {"openai": "length", "anthropic": "max_tokens", "openai_responses": "max_output_tokens"}
    bench.server.script(say("cut sh", finish=words[dialect]))
    _, reply = await bench.ask()
    assert (reply.text, reply.finish_reason) == ("cut sh", FinishReason.LENGTH)


async def test_reasoning_is_kept_apart_from_text(bench: Bench) -> None:
    bench.server.script(Reply(reasoning="They greet me.", text="Hello!"))
    _, reply = await bench.ask()
    assert (reply.reasoning, reply.text) == ("They greet me.", "Hello!")


async def test_missing_usage_is_estimated_and_marked(bench: Bench) -> None:
    bench.server.script(say("No numbers here, I am afraid.", report_usage=False))
    _, reply = await bench.ask()
    assert reply.usage.estimated
    assert reply.usage.prompt_tokens > 0
    assert reply.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("choice", "openai", "anthropic"),
    [
        (ToolChoice(), "auto", {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice.required(), "required", {"type": "any", "disable_parallel_tool_use": True}),
        (ToolChoice.none(), "none", {"type": "none"}),
        (
            ToolChoice.named("lookup"),
            {"type": "function", "function": {"name": "lookup"}},
            {"type": "tool", "name": "lookup", "disable_parallel_tool_use": True},
        ),
    ],
)
async def test_tool_choice_is_sent_in_the_form_of_the_dialect(
    bench: Bench, dialect: str, choice: ToolChoice, openai: object, anthropic: object
) -> None:
    bench.server.script(say("ok"))
    await collect(bench.model(), replace(request(), tool_choice=choice))
    expected = anthropic if dialect == "anthropic" else openai
    if dialect == "openai_responses" and choice.name:
        expected = {"type": "function", "name": choice.name}
    assert bench.server.requests[0].body["tool_choice"] == expected


async def test_a_request_overrides_parallel_calls(bench: Bench, dialect: str) -> None:
    bench.server.script(say("ok"))
    asked = replace(request(), parallel_tool_calls=False)
    await collect(bench.model(parallel_tool_calls=True), asked)
    body = bench.server.requests[0].body
    if dialect == "anthropic":
        assert body["tool_choice"]["disable_parallel_tool_use"] is True
    else:
        assert body["parallel_tool_calls"] is False


async def test_without_tools_no_tool_parameter_is_sent(bench: Bench) -> None:
    bench.server.script(say("ok"))
    await collect(bench.model(), request(tools=()))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(bench.server.requests[0].body)


async def test_a_damaged_history_is_still_accepted(bench: Bench) -> None:
    """Unanswered and orphan calls, ids used twice, empty messages, a lone surrogate."""
    same = "call_0"
    messages = [
        ChatMessage.system("sys"),
        ChatMessage.tool("gone", "an orphan"),
        ChatMessage.user("one"),
        ChatMessage.assistant("", [ToolCall(same, "lookup", "{}")]),
        ChatMessage.user("in between"),
        ChatMessage.tool(same, "late"),
        ChatMessage.assistant(
            "", [ToolCall(same, "lookup", "{}"), ToolCall("x" * 60, "lookup", "")]
        ),
        ChatMessage.assistant("   "),
        ChatMessage.system("a notice"),
        ChatMessage.user("broken \ud800 surrogate"),
        ChatMessage.assistant("the end"),
    ]
    bench.server.script(say("fine"))
    _, reply = await collect(bench.model(), ModelRequest(messages))
    assert reply.text == "fine"
    assert bench.server.violations == []


_HUGE = "ä\n" * 1_500_000


@pytest.mark.parametrize(
    "huge",
    [
        Reply(text=_HUGE, piece=50_000),
        Reply(text="x" * 4_000_000, piece=4_000_000),
        Reply(text="y", reasoning=_HUGE, piece=50_000),
        Reply(calls=[Call("lookup", '{"query": "' + "z" * 3_000_000 + '"}')], piece=50_000),
        Reply(calls=[Call("lookup", "{}")] * 20_000),
    ],
    ids=["text", "text in one piece", "reasoning", "arguments", "empty calls"],
)
async def test_reply_ends_at_its_largest_size(bench: Bench, huge: Reply) -> None:
    bench.server.script(huge)
    _, reply = await bench.ask()
    assert reply.finish_reason is FinishReason.LENGTH
    calls = [call.name + call.arguments for call in reply.tool_calls]
    size = len("".join([reply.text, reply.reasoning, *calls]).encode())
    assert size <= MAX_REPLY_BYTES
    assert len(reply.tool_calls) <= MAX_REPLY_BYTES // 64
    if not reply.tool_calls:
        assert size > MAX_REPLY_BYTES - 200
    assert reply.usage.estimated


@given(st.lists(st.text(max_size=20)), st.integers(0, 100))
def test_the_pieces_of_a_reply_are_taken_up_to_the_size_limit(
    pieces: list[str], limit: int
) -> None:
    size, taken = ReplySize(limit), ""
    for piece in pieces:
        if size.full:
            break
        taken += size.take(piece)
    whole = "".join(pieces)
    assert whole.startswith(taken)
    assert len(taken.encode()) <= limit
    assert size.full or taken == whole
