"""Features of Anthropic's protocol."""

from dataclasses import replace

from doubles.bench import LOOKUP, Bench, collect, request
from doubles.script import Call, Reply, say
from strata.agent_loop.domain.model.chat import ChatMessage, ModelRequest, ReasoningPart, ToolChoice


async def test_thinking_is_replayed_with_its_signature(anthropic_bench: Bench) -> None:
    bench = anthropic_bench
    bench.server.script(
        Reply(reasoning="I should look.", calls=(Call("lookup", {"query": "x"}),)), say("Found.")
    )
    model = bench.model(model="claude-haiku-4-5", max_reasoning_tokens=2000)
    asked = request()
    _, first = await collect(model, asked)
    assert first.content[0] == ReasoningPart("I should look.", first.content[0].signature)  # type: ignore[union-attr]
    returned = ChatMessage.tool(first.tool_calls[0].id, "a result")
    messages = [*asked.messages, first.to_message(), returned]
    _, second = await collect(model, replace(asked, messages=messages))
    assert second.text == "Found."
    assert bench.server.violations == []
    body = bench.server.requests[1].body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "tool_use"]


async def test_newer_models_use_adaptive_thinking(anthropic_bench: Bench) -> None:
    anthropic_bench.server.script(say("ok"))
    await anthropic_bench.ask(model="claude-opus-5-5", reasoning_effort="high")
    body = anthropic_bench.server.requests[0].body
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "high"}


async def test_a_forced_call_omits_the_thinking_budget(anthropic_bench: Bench) -> None:
    anthropic_bench.server.script(say("ok"))
    model = anthropic_bench.model(model="claude-haiku-4-5", max_reasoning_tokens=2000)
    await collect(model, replace(request(), tool_choice=ToolChoice.required()))
    assert "thinking" not in anthropic_bench.server.requests[0].body


async def test_the_prompt_is_marked_for_the_cache(anthropic_bench: Bench) -> None:
    anthropic_bench.server.script(say("ok"))
    await anthropic_bench.ask()
    body = anthropic_bench.server.requests[0].body
    mark = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "You are a test.", "cache_control": mark}]
    assert body["messages"][-1]["content"][-1]["cache_control"] == mark
    assert "temperature" not in body


async def test_results_of_parallel_calls_share_one_turn(anthropic_bench: Bench) -> None:
    bench = anthropic_bench
    calls = (Call("lookup", {"query": "a"}), Call("lookup", {"query": "b"}))
    bench.server.script(Reply(calls=calls), say("both"))
    asked = ModelRequest([ChatMessage.user("go")], [LOOKUP])
    _, first = await collect(bench.model(), asked)
    # Stored in another order than the order of the calls.
    returns = [ChatMessage.tool(one.id, one.arguments) for one in reversed(first.tool_calls)]
    messages = [*asked.messages, first.to_message(), *returns, ChatMessage.user("and?")]
    await collect(bench.model(), replace(asked, messages=messages))
    last = bench.server.requests[1].body["messages"][-1]
    assert [b.get("content") or b["text"] for b in last["content"]] == [
        '{"query": "a"}',
        '{"query": "b"}',
        "and?",
    ]


async def test_both_key_headers_reach_compatible_servers(anthropic_bench: Bench) -> None:
    anthropic_bench.server.script(say("ok"))
    await anthropic_bench.ask(api_key="my-key")
    headers = anthropic_bench.server.requests[0].headers
    assert headers["x-api-key"] == "my-key"
