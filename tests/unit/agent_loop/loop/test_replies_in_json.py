"""JSON replies: validated and corrected once before they are shown."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from strata.agent_loop.context.requests import Offer
from strata.agent_loop.domain.agent.response_formats import ResponseFormat
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.model.chat import (
    ChatRole,
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolCallDelta,
    ToolSchema,
)
from strata.agent_loop.domain.run.events import StepRestarted, TextPiece, ToolCallPiece
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.loop.replies_in_json import checked
from strata.protocol.errors import Reason
from strata.shared.agent_types import AgentType
from strata.shared.messages import MessageRole
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import SEND_MESSAGE, SENT_MESSAGE, ToolEffect
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.in_memory_ports import Agents, Models, Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.json_replies import (
    ANY,
    INVALID,
    SCHEMA,
    TEXT,
    VALID,
    WEATHER,
    harness_with,
)
from unit.agent_loop.loop.loop_harness import LoopHarness, roles
from unit.agent_loop.loop.model_replies import reply

PROBLEM = "unknown 'town' (it takes 'city', 'note')"


class TalkingModel:
    """A model whose calls are streamed, piece by piece."""

    def __init__(self, harness: LoopHarness) -> None:
        self._model = harness.model

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async for event in self._model.stream(request):
            if isinstance(event, ModelReply):
                for index, call in enumerate(event.tool_calls):
                    for at in range(0, len(call.arguments), 7):
                        piece = call.arguments[at : at + 7]
                        yield ToolCallDelta(index, call.id, call.name, piece)
            yield event


def v2_harness(asked: ResponseFormat = WEATHER, **fields: Any) -> LoopHarness:
    """Returns a harness whose agent answers through `send_message`."""
    tools = (SEND_MESSAGE, "reads")
    harness = harness_with(asked, type=AgentType.MEMGPT_V2, tools=tools, **fields)
    parameters = {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "The text."}},
        "required": ["message"],
        "additionalProperties": False,
    }
    send = Tool(ToolSchema(SEND_MESSAGE, "", parameters), ToolEffect.READ_ONLY, keyed=True)
    harness.tools.toolset = ToolSet((send, *harness.tools.toolset.tools))
    harness.tools.text = SENT_MESSAGE
    harness.models = Models(TalkingModel(harness), harness.models.settings)  # type: ignore[arg-type]
    harness.ports = replace(harness.ports, models=harness.models)
    return harness


def send(message: Any, number: int = 1, **more: Any) -> ModelReply:
    arguments = {"message": message, **more, "request_heartbeat": False}
    return reply("", ToolCall(f"call_{number}", SEND_MESSAGE, json.dumps(arguments)))


def streamed(harness: LoopHarness, **fields: Any) -> RunRequest:
    return harness.request("Rome?", stream_tokens=True, **fields)


def shown(sink: Sink) -> str:
    return "".join(piece.text for piece in sink.of(TextPiece))


async def test_the_schema_is_sent_and_a_valid_reply_is_shown_at_once() -> None:
    harness = harness_with()
    sink = await harness.run(streamed(harness), reply(VALID))
    [request] = harness.model.requests
    assert request.response_format is not None
    assert request.response_format.schema == {**SCHEMA, "additionalProperties": False}
    assert request.response_format.name == "weather"
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert [piece.text for piece in sink.of(TextPiece)] == [VALID]
    assert harness.recall.messages[-1].text == VALID


@pytest.mark.parametrize(
    "written",
    [
        '```json\n{"city": "Rome"}\n```',
        '\n{"city":"Rome"}\n',
        '{"city": "Rome", "note": null}',
        '{"city": "Paris", "city": "\\u0052ome"}',
    ],
)
async def test_a_reply_is_stored_as_canonical_json(written: str) -> None:
    harness = harness_with()
    sink = await harness.run(streamed(harness), reply(written))
    assert shown(sink) == harness.recall.messages[-1].text == VALID


async def test_invalid_reply_is_corrected_once_and_never_shown_or_stored() -> None:
    harness = harness_with()
    sink = await harness.run(streamed(harness), reply(INVALID), reply(VALID))
    first, second = harness.model.requests
    assert list(second.messages[: len(first.messages)]) == list(first.messages)
    echo, correction = second.messages[len(first.messages) :]
    assert (echo.role, echo.text) == (ChatRole.ASSISTANT, INVALID)
    assert correction.role is ChatRole.USER
    assert PROBLEM in correction.text
    assert second.response_format == first.response_format

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert shown(sink) == VALID
    [restarted] = sink.of(StepRestarted)
    assert PROBLEM in restarted.reason
    assert roles(harness) == ["system", "user", "assistant"]
    assert sink.outcome.step_count == 1
    assert sink.outcome.usage.prompt_tokens == 20


@pytest.mark.parametrize(
    ("asked", "written", "problem"),
    [
        (WEATHER, INVALID, PROBLEM),
        (WEATHER, "It is warm.", "it is not valid JSON"),
        (WEATHER, '["Rome"]', "it is JSON, but not an object"),
        (WEATHER, '{"city": 3}', "'city' is wrong: 3 is not of type 'string'"),
        (ANY, "It is warm.", "it is not valid JSON"),
        (ANY, '"Rome"', "it is JSON, but not an object"),
    ],
)
async def test_second_invalid_reply_ends_the_run_with_the_first_violation(
    asked: ResponseFormat, written: str, problem: str
) -> None:
    harness = harness_with(asked)
    sink = await harness.run(streamed(harness), reply(written), reply(written))
    assert sink.outcome.stop_reason is StopReason.INVALID_LLM_RESPONSE
    failure = sink.outcome.failure
    assert failure is not None
    assert failure.reason is Reason.MODEL_REPLY_INVALID
    assert problem in failure.message
    assert not shown(sink)
    assert roles(harness) == ["system", "user"]


async def test_a_reply_cut_within_its_json_is_not_requested_again() -> None:
    harness = harness_with()
    sink = await harness.run(streamed(harness), reply('{"city": "Ro', finish=FinishReason.LENGTH))
    assert sink.outcome.stop_reason is StopReason.MAX_TOKENS_EXCEEDED
    assert sink.outcome.failure is not None
    assert "max_output_tokens" in sink.outcome.failure.message
    assert not shown(sink)
    assert roles(harness) == ["system", "user"]


async def test_text_next_to_calls_is_not_validated() -> None:
    harness = harness_with()
    looking = replace(harness.calls("reads"), content=reply("I look.").content)
    sink = await harness.run(streamed(harness), looking, reply(VALID))
    assert shown(sink) == f"I look.{VALID}"
    assert roles(harness) == ["system", "user", "assistant", "tool", "assistant"]


async def test_message_overrides_the_format_of_the_agent() -> None:
    harness = harness_with()
    sink = await harness.run(streamed(harness, response_format=TEXT), reply("It is warm."))
    assert shown(sink) == "It is warm."
    assert harness.model.requests[0].response_format is None
    await harness.run(streamed(harness, response_format=ANY), reply(INVALID))
    asked = harness.model.requests[1].response_format
    assert asked is not None
    assert asked.schema is None


async def test_schema_of_a_stored_agent_that_is_refused_now_ends_the_run() -> None:
    harness = harness_with(replace(WEATHER, schema_json='{"$id": "https://example.org"}'))
    sink = await harness.run(streamed(harness))
    assert sink.outcome.stop_reason is StopReason.ERROR
    assert sink.outcome.failure is not None
    assert "'$id'" in sink.outcome.failure.message


async def test_schema_counts_as_part_of_every_request() -> None:
    large = {"type": "object", "properties": {"a": {"description": "x" * 60_000}}}
    harness = harness_with(replace(WEATHER, schema_json=json.dumps(large)))
    harness.models.settings = replace(harness.models.settings, context_window=4096)
    sink = await harness.run(streamed(harness))
    assert sink.outcome.stop_reason is StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT


async def until_done(harness: LoopHarness, replies: list[ModelReply], died_at: int | None) -> Sink:
    """Runs a turn whose first attempt dies at a number of port calls."""
    request = streamed(harness)
    harness.model.replies = list(replies)
    harness.fate.last = died_at
    try:
        return await harness.run(request)
    except Died:
        harness.fate.last = None
    # A reply that is not journalled is requested again.
    stored = any(m.role is MessageRole.ASSISTANT for m in harness.recall.messages)
    resumed = harness.journal.rows.get(request.run_id, (0, None))[1]
    harness.model.replies = [] if stored or resumed else list(replies)
    return await harness.run(replace(request, attempt=2))


@pytest.mark.parametrize("loop", ["v3", "v2"])
@pytest.mark.parametrize("valid", [True, False], ids=["corrected", "failed"])
async def test_a_run_with_a_crash_at_any_point_ends_like_one_without(
    loop: str, valid: bool
) -> None:
    def replies() -> list[ModelReply]:
        texts = [INVALID, VALID if valid else INVALID]
        if loop == "v3":
            return [reply(text) for text in texts]
        return [send(json.loads(text), n) for n, text in enumerate(texts)]

    make = harness_with if loop == "v3" else v2_harness
    whole = make()
    expected = (await until_done(whole, replies(), None)).outcome.stop_reason
    assert expected is (StopReason.END_TURN if valid else StopReason.INVALID_LLM_RESPONSE)
    calls = whole.fate.calls
    assert calls > 6
    for died_at in range(1, calls):
        harness = make()
        sink = await until_done(harness, replies(), died_at)
        assert sink.outcome.stop_reason is expected, died_at
        assert roles(harness) == roles(whole), died_at
        assert INVALID not in str([m.parts for m in harness.recall.messages])
        assert "town" not in str(sink.of(TextPiece) + sink.of(ToolCallPiece))


async def test_v2_offers_the_schema_as_the_message_and_stores_json_text() -> None:
    harness = v2_harness()
    sink = await harness.run(streamed(harness), send({"city": "Rome"}))
    [request] = harness.model.requests
    # The format does not apply to the reply's text: a call is required.
    assert request.response_format is None
    parameters = request.tools[0].parameters
    assert parameters["properties"]["message"] == {
        **SCHEMA,
        "additionalProperties": False,
        "description": "The weather.",
    }
    assert list(parameters["properties"]) == ["message"]

    assert sink.outcome.stop_reason is StopReason.END_TURN
    [call] = harness.recall.messages[2].tool_calls
    assert json.loads(call.arguments) == {"message": VALID}
    assert [c.arguments for batch in harness.tools.batches for c in batch.calls] == [call.arguments]
    assert "".join(piece.arguments for piece in sink.of(ToolCallPiece)) == call.arguments
    returned = json.loads(harness.recall.messages[3].tool_returns[0].content)
    assert returned["message"] == SENT_MESSAGE


async def test_v2_shows_earlier_messages_as_the_objects_that_the_model_wrote() -> None:
    harness = v2_harness()
    await harness.run(streamed(harness), send({"city": "Rome"}))
    await harness.run(streamed(harness), send({"city": "Paris"}, 2))
    [earlier] = [m.tool_calls[0] for m in harness.model.requests[1].messages if m.tool_calls]
    assert json.loads(earlier.arguments)["message"] == {"city": "Rome"}
    # With another format the text is unchanged.
    await harness.run(streamed(harness, response_format=TEXT), send("Hello.", 3))
    called = [m.tool_calls[0] for m in harness.model.requests[2].messages if m.tool_calls]
    assert [json.loads(call.arguments)["message"] for call in called] == [
        VALID,
        '{"city": "Paris"}',
    ]


async def test_v2_accepts_an_object_of_any_form() -> None:
    harness = v2_harness(ANY)
    await harness.run(streamed(harness), send({"any": [1]}))
    assert harness.model.requests[0].tools[0].parameters["properties"]["message"] == {
        "type": "object"
    }
    [call] = harness.recall.messages[2].tool_calls
    assert json.loads(call.arguments) == {"message": '{"any": [1]}'}


async def test_v2_accepts_json_that_was_written_as_text() -> None:
    harness = v2_harness()
    sink = await harness.run(streamed(harness), send(VALID))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert not sink.of(StepRestarted)


async def test_v2_invalid_message_is_corrected_before_the_tool_runs() -> None:
    harness = v2_harness()
    sink = await harness.run(streamed(harness), send({"town": "Rome"}), send({"city": "Rome"}, 2))
    first, second = harness.model.requests
    echo, correction = second.messages[len(first.messages) :]
    assert [call.name for call in echo.tool_calls] == [SEND_MESSAGE]
    assert (correction.role, correction.tool_call_id) == (ChatRole.TOOL, "call_1")
    assert PROBLEM in correction.text
    assert len(harness.tools.batches) == 1
    assert roles(harness) == ["system", "user", "assistant", "tool"]
    pieces = "".join(piece.arguments for piece in sink.of(ToolCallPiece))
    assert json.loads(pieces) == {"message": VALID}
    assert sink.outcome.stop_reason is StopReason.END_TURN


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (send("It is warm."), "it is not valid JSON"),
        (send([1]), "it is JSON, but not an object"),
        (send(None), "the argument 'message' is missing"),
        (reply("", ToolCall("c", SEND_MESSAGE, "{")), "the arguments are not valid JSON"),
        (send({"town": "Rome"}), PROBLEM),
    ],
)
async def test_v2_second_invalid_message_ends_the_run(call: ModelReply, problem: str) -> None:
    harness = v2_harness()
    sink = await harness.run(streamed(harness), call, call)
    assert sink.outcome.stop_reason is StopReason.INVALID_LLM_RESPONSE
    assert sink.outcome.failure is not None
    assert problem in sink.outcome.failure.message
    assert not harness.tools.batches
    assert not sink.of(ToolCallPiece)
    assert roles(harness) == ["system", "user"]


async def test_v2_other_calls_are_streamed_while_they_are_written() -> None:
    harness = v2_harness()
    other = reply("", ToolCall("call_1", "reads", '{"request_heartbeat": true}'))
    sink = await harness.run(streamed(harness), other, send({"city": "Rome"}, 2))
    kinds = [(piece.name, piece.arguments) for piece in sink.of(ToolCallPiece)]
    assert kinds[0][0] == "reads"
    assert kinds[-1] == (SEND_MESSAGE, json.dumps({"message": VALID}))


async def test_v2_call_beside_an_invalid_message_is_not_run_before_the_correction() -> None:
    harness = v2_harness()
    both = replace(
        send({"town": "Rome"}),
        tool_calls=(
            ToolCall("call_0", "reads", "{}"),
            *send({"town": "Rome"}).tool_calls,
        ),
    )
    await harness.run(streamed(harness), both, send({"city": "Rome"}, 2))
    first, second = harness.model.requests
    _, read, _ = second.messages[len(first.messages) :]
    assert read.text == "This call was not run, because of the call beside it."
    assert [c.name for batch in harness.tools.batches for c in batch.calls] == [SEND_MESSAGE]


async def test_v2_text_in_place_of_a_call_still_ends_with_no_tool_call() -> None:
    harness = v2_harness()
    sink = await harness.run(streamed(harness), reply("It is warm."))
    assert sink.outcome.stop_reason is StopReason.NO_TOOL_CALL


async def test_v2_agent_without_tools_replies_by_the_schema() -> None:
    harness = harness_with(type=AgentType.MEMGPT_V2, tools=())
    harness.tools.toolset = ToolSet(())
    sink = await harness.run(streamed(harness), reply(INVALID), reply(VALID))
    assert harness.model.requests[0].response_format is not None
    assert shown(sink) == VALID
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_v2_thinking_stays_the_first_argument() -> None:
    model = replace(LoopHarness().agent.model, put_inner_thoughts_in_kwargs=True)
    harness = v2_harness(model=model)
    sink = await harness.run(streamed(harness), send({"city": "Rome"}, thinking="Rome, then."))
    names = list(harness.model.requests[0].tools[0].parameters["properties"])
    assert names == ["thinking", "message"]
    assert "".join(piece.arguments for piece in sink.of(ToolCallPiece)) == json.dumps(
        {"message": VALID}
    )


async def test_v3_agent_with_send_message_is_offered_the_schema_too() -> None:
    harness = v2_harness()
    harness.agent = replace(
        harness.agent,
        type=AgentType.LETTA_V1,
        tool_rules=(ToolRule(ToolRuleType.EXIT_LOOP, SEND_MESSAGE),),
    )
    harness.ports = replace(harness.ports, agents=Agents(harness.agent))
    call = reply("", ToolCall("c", SEND_MESSAGE, '{"message": {"city": "Rome"}}'))
    sink = await harness.run(streamed(harness), call)
    assert harness.model.requests[0].response_format is not None
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    [stored] = harness.recall.messages[2].tool_calls
    assert json.loads(stored.arguments) == {"message": VALID}


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (f"```json\n{VALID}\n```", VALID),
        (f"\n ```  \n{VALID}\n ``` \n", VALID),
        (f"```json\n{VALID}", None),
        ("```", None),
        # Models that have to write JSON sometimes continue with line breaks up to their limit.
        ("```json\n" + "\n" * 100_000, None),
        ("```json\n" + "\n```\n" * 30_000 + "x", None),
        (" " * 100_000, None),
    ],
)
def test_a_code_fence_is_removed_in_linear_time(text: str, stored: str | None) -> None:
    offer = Offer(ToolSet(()), json_reply=WEATHER.json_reply)
    result = checked(reply(text), offer)
    assert (None if result.problem else result.reply.text) == stored


async def test_half_surrogate_in_a_reply_is_not_in_the_error() -> None:
    harness = harness_with()
    sink = await harness.run(None, reply('{"\\ud800": "\ud800"}'), reply(VALID))
    (restarted,) = sink.of(StepRestarted)
    restarted.reason.encode()
    for message in harness.model.requests[-1].messages:
        message.text.encode()
    assert sink.outcome.stop_reason is StopReason.END_TURN
