"""The structured tool mode, with a server that simulates a small local model."""

import json
from dataclasses import replace
from typing import Any

import pytest

from doubles.bench import LOOKUP, Bench, collect, request
from doubles.script import Reply, cut, say
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    FinishReason,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind


def action(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


async def test_a_message_streams_as_plain_text(openai_bench: Bench) -> None:
    text = 'She said "hi" \\ and left.\nThen: 👋 ü'
    written = say(action("say", message=text), piece=3, usage=(10, 5))
    openai_bench.server.script(replace(written, pause=0.02))
    seen, reply = await openai_bench.ask(structured_tools=True)
    assert reply.text == text
    assert len([event for event in seen if isinstance(event, TextDelta)]) > 3
    assert reply.tool_calls == ()
    assert reply.finish_reason is FinishReason.STOP
    assert reply.usage.total_tokens == 15


async def test_an_action_becomes_a_tool_call(openai_bench: Bench) -> None:
    openai_bench.server.script(say(action("lookup", query="Ana")))
    _, reply = await openai_bench.ask(structured_tools=True)
    assert reply.text == ""
    assert [(one.name, json.loads(one.arguments)) for one in reply.tool_calls] == [
        ("lookup", {"query": "Ana"})
    ]
    assert reply.finish_reason is FinishReason.TOOL_CALLS


async def test_tools_are_described_in_the_prompt_and_the_schema(openai_bench: Bench) -> None:
    openai_bench.server.script(say(action("say", message="ok")))
    system = "Be kind.\n\n<memory_blocks>\nAna\n</memory_blocks>\n\n<memory_metadata>\n"
    asked = replace(request(), messages=[ChatMessage.system(system), ChatMessage.user("hi")])
    await collect(openai_bench.model(structured_tools=True), asked)
    call = openai_bench.server.requests[0]
    assert "tools" not in call.body
    assert call.system.startswith("Be kind.")
    # A small model would fill in every field of the schema.
    assert "- lookup(query): Looks something up." in call.system
    assert call.system.index("- lookup") < call.system.index("<memory_blocks>")
    options = call.body["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [o["properties"]["tool"]["const"] for o in options] == ["say", "lookup"]
    assert list(options[1]["properties"]["arguments"]["properties"]) == ["query"]


async def test_a_memory_edit_does_not_change_the_prompt_before_the_memory(
    openai_bench: Bench,
) -> None:
    openai_bench.server.respond(lambda _: say(action("say", message="ok")))
    systems: list[str] = []
    for memory in ("Ana", "Ana, a nurse"):
        system = f"Be kind.\n\n<memory_blocks>\n{memory}\n</memory_blocks>"
        messages = [ChatMessage.system(system), ChatMessage.user("hi")]
        model = openai_bench.model(structured_tools=True)
        await collect(model, replace(request(), messages=messages))
        systems.append(openai_bench.server.requests[-1].system)
    before, after = (system.split("<memory_blocks>") for system in systems)
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    ("choice", "actions"),
    [
        (ToolChoice.required(), ["lookup"]),
        (ToolChoice.named("lookup"), ["lookup"]),
        (ToolChoice.none(), ["say"]),
    ],
)
async def test_tool_choice_narrows_the_schema(
    openai_bench: Bench, choice: ToolChoice, actions: list[str]
) -> None:
    openai_bench.server.script(say(action(actions[0], message="ok")))
    asked = replace(request(), tool_choice=choice)
    await collect(openai_bench.model(structured_tools=True), asked)
    schema = openai_bench.server.requests[0].body["response_format"]["json_schema"]["schema"]
    assert [o["properties"]["tool"]["const"] for o in schema["anyOf"]] == actions


async def test_earlier_turns_are_shown_as_actions(openai_bench: Bench) -> None:
    openai_bench.server.script(say(action("say", message="ok")))
    messages = [
        ChatMessage.system("sys"),
        ChatMessage.user("find both"),
        ChatMessage.assistant(
            "Looking.",
            [ToolCall("1", "lookup", '{"query": "a"}'), ToolCall("2", "lookup", "not json")],
        ),
        ChatMessage.tool("1", "A"),
        ChatMessage.tool("2", "B"),
        ChatMessage.assistant("Here they are."),
        ChatMessage.user("thanks"),
    ]
    asked = replace(request(), messages=messages)
    await collect(openai_bench.model(structured_tools=True), asked)
    sent = openai_bench.server.requests[0].body["messages"][1:]
    hint = "[The user does not see this result. Answer the user, or take the next action.]"
    assert [(m["role"], m["content"]) for m in sent] == [
        ("user", "find both"),
        ("assistant", action("say", message="Looking.")),
        ("user", "[go on]"),
        ("assistant", action("lookup", query="a")),
        ("user", f"[result of lookup] A\n{hint}\n\n[go on]"),
        ("assistant", action("lookup", invalid_arguments="not json")),
        ("user", f"[result of lookup] B\n{hint}"),
        ("assistant", action("say", message="Here they are.")),
        ("user", "thanks"),
    ]
    assert openai_bench.server.violations == []


async def test_an_unusable_reply_is_requested_again(openai_bench: Bench) -> None:
    openai_bench.server.script(
        say('{"tool": "lookup", "argu', usage=(10, 5)),
        say(action("lookup", query="x"), usage=(10, 5)),
    )
    _, reply = await openai_bench.ask(structured_tools=True)
    assert reply.tool_calls[0].name == "lookup"
    assert reply.usage.total_tokens == 30


INSERT = ToolSchema(
    "memory_insert",
    "Inserts text.",
    {
        "type": "object",
        "properties": {"label": {"type": "string"}, "new_str": {"type": "string"}},
        "required": ["label", "new_str"],
    },
)
DOG = '{"new_str": "Dog: Rex.", "label": "human"}'
REPEATED_DOG = action("memory_insert", label="human", new_str="Dog: Rex.")


def after_call(name: str, arguments: str, *later: ChatMessage) -> ModelRequest:
    messages = [
        ChatMessage.system("sys"),
        ChatMessage.user("My dog is called Rex."),
        ChatMessage.assistant("", [ToolCall("1", name, arguments)]),
        ChatMessage.tool("1", "OK"),
        *later,
    ]
    return replace(request(), messages=messages, tools=(LOOKUP, INSERT))


async def test_an_edit_of_memory_is_not_repeated_but_the_user_gets_a_message(
    openai_bench: Bench,
) -> None:
    openai_bench.server.script(
        say(REPEATED_DOG, usage=(10, 5)), say(action("say", message="A nice name!"), usage=(10, 5))
    )
    model = openai_bench.model(structured_tools=True)
    seen, reply = await collect(model, after_call("memory_insert", DOG))
    assert (reply.text, reply.tool_calls) == ("A nice name!", ())
    assert reply.usage.total_tokens == 30
    assert "".join(event.text for event in seen if isinstance(event, TextDelta)) == reply.text
    first, second = (
        request.body["response_format"]["json_schema"]["schema"]["anyOf"]
        for request in openai_bench.server.requests
    )
    names = [option["properties"]["tool"]["const"] for option in first]
    assert names == ["say", "lookup", "memory_insert"]
    assert [option["properties"]["tool"]["const"] for option in second] == ["say"]


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        pytest.param(
            after_call("lookup", '{"query": "a"}'), action("lookup", query="a"), id="other tool"
        ),
        pytest.param(
            after_call("memory_insert", DOG),
            action("memory_insert", label="human", new_str="Cat: Tom."),
            id="other arguments",
        ),
        pytest.param(
            after_call("memory_insert", DOG, ChatMessage.user("Again!")), REPEATED_DOG, id="asked"
        ),
        pytest.param(
            replace(after_call("memory_insert", DOG), tool_choice=ToolChoice.required()),
            REPEATED_DOG,
            id="required",
        ),
    ],
)
async def test_a_call_that_may_have_a_use_is_made(
    openai_bench: Bench, asked: ModelRequest, written: str
) -> None:
    openai_bench.server.script(say(written))
    _, reply = await collect(openai_bench.model(structured_tools=True), asked)
    assert [call.name for call in reply.tool_calls] == [json.loads(written)["tool"]]
    assert len(openai_bench.server.requests) == 1


async def test_two_invalid_replies_are_an_error(openai_bench: Bench) -> None:
    openai_bench.server.script(say('{"tool": "lookup", "argu'), say('{"what": 1}'))
    with pytest.raises(ModelError) as caught:
        await openai_bench.ask(structured_tools=True)
    assert caught.value.kind is ModelErrorKind.INVALID_REPLY
    assert len(openai_bench.server.requests) == 2


async def test_a_message_cut_at_the_limit_is_kept(openai_bench: Bench) -> None:
    whole = action("say", message="A very long story")
    openai_bench.server.script(say(whole[:-8], finish="length"))
    _, reply = await openai_bench.ask(structured_tools=True)
    assert reply.text == "A very long "
    assert reply.finish_reason is FinishReason.LENGTH


async def test_plain_text_is_accepted_as_an_answer(openai_bench: Bench) -> None:
    openai_bench.server.script(say("Hello there."))
    _, reply = await openai_bench.ask(structured_tools=True)
    assert reply.text == "Hello there."


async def test_reasoning_of_a_failed_try_is_not_lost(openai_bench: Bench) -> None:
    openai_bench.server.script(
        Reply(reasoning="Hm.", text='{"x": 1}'),
        Reply(reasoning="Ah.", text=action("say", message="ok")),
    )
    _, reply = await openai_bench.ask(structured_tools=True)
    assert reply.reasoning == "Hm.Ah."


async def test_errors_of_the_model_are_passed_on(openai_bench: Bench) -> None:
    openai_bench.server.script(cut(after=3, text=action("say", message="A story that breaks")))
    with pytest.raises(ModelError) as caught:
        await openai_bench.ask(structured_tools=True)
    assert caught.value.kind is ModelErrorKind.CUT_OFF


async def test_without_tools_the_mode_is_off(openai_bench: Bench) -> None:
    openai_bench.server.script(say("A summary."))
    _, reply = await collect(openai_bench.model(structured_tools=True), request(tools=()))
    assert reply.text == "A summary."
    assert "response_format" not in openai_bench.server.requests[0].body


async def test_a_tool_named_say_keeps_its_name(openai_bench: Bench) -> None:
    tool = replace(LOOKUP, name="say")
    openai_bench.server.script(say(action("say", query="x")))
    _, reply = await collect(openai_bench.model(structured_tools=True), request(tools=[tool]))
    assert reply.tool_calls[0].name == "say"
    schema = openai_bench.server.requests[0].body["response_format"]["json_schema"]["schema"]
    names = [o["properties"]["tool"]["const"] for o in schema["anyOf"]]
    assert names == ["say_to_user", "say"]
