"""Runs are recorded and replayed: a build that does the same shows no difference."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest

from image_samples import png
from strata.agent_loop.convert.recordings import recording_to_json
from strata.agent_loop.domain.agent.agents import MessagePackaging
from strata.agent_loop.domain.agent.groups import GroupMember, GroupTool
from strata.agent_loop.domain.agent.response_formats import ResponseFormat
from strata.agent_loop.domain.agent.tool_rules import ToolRule, rule_from_json
from strata.agent_loop.domain.conversation.messages import MessageInput
from strata.agent_loop.domain.model.chat import (
    ImagePart,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolSchema,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.ports import BoundModel
from strata.agent_loop.domain.run.events import ModelRequestSent
from strata.agent_loop.domain.run.runs import TranscriptRange
from strata.agent_loop.domain.tools import Tool
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.replay.recording import Recording
from strata.agent_loop.replay.replay import replay
from strata.api.agent_loop.v1 import turn_service_pb2 as pb
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.agent_types import AgentType
from strata.shared.messages import MessageRole
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import HAND_OVER, ToolEffect
from unit.agent_loop.compaction.full_windows import full
from unit.agent_loop.loop import gated
from unit.agent_loop.loop.coding import coded, coding_harness
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.json_replies import ANY, INVALID, TEXT, VALID, harness_with
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.replay.recorded import pieces_of, record


async def run_and_record(harness: LoopHarness, *replies: Any, **fields: Any) -> Recording:
    request = harness.request(**fields)
    sink = await harness.run(request, *replies)
    return await record(harness, request, sink.events)


def v2(harness: LoopHarness, *, thoughts: bool = False) -> LoopHarness:
    model = replace(harness.agent.model, put_inner_thoughts_in_kwargs=thoughts)
    use(harness, replace(harness.agent, type=AgentType.MEMGPT_V2, model=model))
    return harness


def use(harness: LoopHarness, agent: Any) -> None:
    harness.agent = agent
    harness.ports.agents.agent = agent  # type: ignore[attr-defined]


def assert_whole(recording: Recording) -> None:
    """Asserts that the recording contains everything that was sent."""
    assert not recording.notes
    for step in recording.steps:
        if step.request is not None:
            text = step.request.text
            assert None not in (text.system, text.options, text.messages)


async def assert_same(recording: Recording) -> None:
    assert_whole(recording)
    replayed = await replay(recording)
    assert replayed.difference is None
    assert replayed.steps == len(recording.steps)
    assert not replayed.unknown


async def test_run_with_tools_is_replayed() -> None:
    harness = LoopHarness()
    harness.tools.failing = {"reads"}
    await harness.run(harness.request("Earlier."), reply("Yes."))
    recording = await run_and_record(
        harness, harness.calls("keyed", "acts"), harness.calls("reads", "nothing"), reply("Done.")
    )
    assert len(recording.window) == 2
    assert [len(step.calls) for step in recording.steps] == [2, 1, 0]
    await assert_same(recording)


async def test_earlier_system_messages_are_reconstructed() -> None:
    harness = LoopHarness()

    def edit() -> None:
        harness.memory.text = harness.memory.text.replace("empty", "full")

    harness.tools.on_edit = edit
    recording = await run_and_record(harness, harness.calls("edits"), reply("Done."))
    assert "empty" in recording.system
    assert "full" in recording.steps[1].memory.section
    await assert_same(recording)


async def test_a_reply_that_was_requested_twice_is_replayed() -> None:
    harness = LoopHarness()
    await harness.run(harness.request("Earlier."), reply("Yes."))
    harness.memory.text = harness.memory.text.replace("empty", "full")
    recording = await run_and_record(harness, reply(""), reply("Done."))
    assert "empty" in recording.system
    await assert_same(recording)


async def test_run_is_recorded_after_later_runs_have_changed_memory() -> None:
    harness = LoopHarness()
    request = harness.request("First.")
    first = await harness.run(request, reply("One."))
    harness.memory.text = harness.memory.text.replace("empty", "full")
    second_request = harness.request("Second.")
    second = await harness.run(second_request, reply("Two."))
    later = [
        pb.RecordRunRequest(
            later=pb.LaterChange(after=call.request.system, change=call.request.system_change)
        )
        for piece in pieces_of(harness, second_request, second.events)
        for call in piece.event.model_calls
        if call.request.HasField("system_change")
    ]
    assert len(later) == 1
    await assert_same(await record(harness, request, first.events, later))
    without = await record(harness, request, first.events)
    assert without.steps[0].request is not None
    assert without.steps[0].request.text.system is None
    assert any("system message" in note for note in without.notes)
    replayed = await replay(without)
    assert replayed.difference is None
    assert replayed.unknown == ("steps[0].request.system",)


@pytest.mark.parametrize("thoughts", [False, True])
async def test_run_of_the_v2_loop_is_replayed(thoughts: bool) -> None:
    harness = v2(LoopHarness(), thoughts=thoughts)
    call = ToolCall("call_1", "reads", '{"thinking": "Hm. \\"So\\"", "request_heartbeat": true}')
    recording = await run_and_record(
        harness, reply("", call), reply("", ToolCall("call_2", "acts", '{"a":1}')), reply("Text.")
    )
    assert recording.steps[0].messages[-1].hidden
    if thoughts:
        assert any(isinstance(p, ReasoningPart) for p in recording.steps[0].messages[0].parts)
    await assert_same(recording)


async def test_a_run_that_asks_for_approval_and_its_answer_are_replayed() -> None:
    harness = LoopHarness()
    tools = tuple(
        replace(t, requires_approval=t.name == "acts") for t in harness.tools.toolset.tools
    )
    harness.tools.toolset = replace(harness.tools.toolset, tools=tools)
    request = harness.request()
    asked = await harness.run(request, harness.calls("reads", "acts"))
    assert asked.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    await assert_same(await record(harness, request, asked.events))
    answer = gated.with_answer(harness, gated.yes(gated.asked(harness)))
    answered = await harness.run(answer, reply("Done."))
    assert sum(harness.tools.acted.values()) == 1
    recording = await record(harness, answer, answered.events)
    assert [call.name for step in recording.steps for call in step.calls] == ["reads", "acts"]
    await assert_same(recording)
    assert sum(harness.tools.acted.values()) == 1


async def test_recording_of_a_window_that_was_compacted_is_replayed() -> None:
    harness = await full()
    for text in ("Last.", "Later."):
        harness.tools.text = "t" * 4_000
        request = harness.request(text + "q" * 400)
        replies = [harness.calls(name) for name in ("reads", "keyed", "edits") * 3]
        sink = await harness.run(request, *replies, reply("Done."))
        recording = await record(harness, request, sink.events)
        assert any(step.summaries for step in recording.steps)
        await assert_same(recording)
    # The last run compacts before its first request, and in its middle.
    assert any(step.summaries for step in recording.steps[1:])


async def test_run_that_was_taken_over_is_replayed() -> None:
    harness = LoopHarness()
    request = harness.request()
    harness.model.replies.extend(
        [harness.calls("keyed", "acts"), harness.calls("reads"), reply("Done.")]
    )
    events = []
    harness.fate.last = harness.fate.calls + 9
    sink = Sink()
    with pytest.raises(Died):
        await Turn(harness.ports, request, sink).run()
    events += sink.events
    harness.fate.last = None
    again = await harness.run(replace(request, attempt=2))
    events += again.events
    recording = await record(harness, request, events)
    assert recording.turn.attempts == 2
    await assert_same(recording)


async def test_first_difference_in_the_prompt_is_reported_with_its_path() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, harness.calls("reads"), reply("Done."))
    changed = replace(recording, agent=replace(recording.agent, system="Another base."))
    difference = (await replay(changed)).difference
    assert difference is not None
    assert difference.path == "steps[0].request.system"
    assert "-Base." in difference.diff
    assert "+Another base." in difference.diff


async def test_the_first_difference_in_the_rules_is_reported() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, harness.calls("reads"), reply("Done."))
    rule: ToolRule = rule_from_json({"type": "exit_loop", "tool_name": "reads"})
    changed = replace(recording, agent=replace(recording.agent, tool_rules=(rule,)))
    difference = (await replay(changed)).difference
    assert difference is not None
    assert difference.path.startswith("steps[0].request.options")


async def test_first_difference_in_the_order_of_tools_is_reported() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, reply("Done."))
    tools = replace(recording.tools, tools=recording.tools.tools[::-1])
    difference = (await replay(replace(recording, tools=tools))).difference
    assert difference is not None
    assert difference.path == "steps[0].request.options.tools[0].name"
    assert (difference.recorded, difference.replayed) == ("keyed", "blocks")


async def test_first_difference_in_shown_messages_is_reported() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, reply("Done."))
    packaging = MessagePackaging(pack_user_messages=True)
    changed = replace(recording, agent=replace(recording.agent, packaging=packaging))
    difference = (await replay(changed)).difference
    assert difference is not None
    assert difference.path == "steps[0].request.messages[0].content[0].text"
    assert difference.recorded == "Hi."


async def test_running_a_call_that_the_recorded_run_refused_is_a_difference() -> None:
    harness = LoopHarness()
    use(harness, replace(harness.agent, tools=("keyed",)))
    recording = await run_and_record(harness, harness.calls("acts"), reply("Done."))
    changed = replace(recording, agent=replace(recording.agent, tools=("keyed", "acts")))
    unchecked = [
        replace(step, request=replace(step.request, text=type(step.request.text)()))
        for step in changed.steps
        if step.request
    ]
    difference = (await replay(replace(changed, steps=tuple(unchecked)))).difference
    assert difference is not None
    assert difference.path == "steps[0].calls"
    assert "runs acts" in difference.summary


async def test_earlier_or_later_end_of_the_run_is_reported() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, harness.calls("reads"), reply("Done."))
    shorter = replace(recording, turn=replace(recording.turn, max_steps=1))
    difference = (await replay(shorter)).difference
    assert difference is not None
    assert "ends the run here (max_steps)" in difference.summary
    recording = await run_and_record(harness, harness.calls("reads"), max_steps=1)
    longer = replace(recording, turn=replace(recording.turn, max_steps=2))
    difference = (await replay(longer)).difference
    assert difference is not None
    assert "asks the model once more" in difference.summary


async def test_run_in_which_another_model_answered_is_replayed() -> None:
    harness = LoopHarness()
    fallback = LoopHarness().model
    fallback.replies = [harness.calls("reads"), reply("Done.")]
    settings = replace(harness.models.settings, handle="test/other", model="other")
    harness.models.others["test/other"] = BoundModel(fallback, settings)
    model = replace(harness.agent.model, fallback_models=("test/other",))
    use(harness, replace(harness.agent, model=model))
    recording = await run_and_record(harness, ModelError(ModelErrorKind.REFUSED, "No."))
    assert [step.model for step in recording.steps] == ["test/other", "test/other"]
    await assert_same(recording)


async def test_a_failed_run_is_replayed_up_to_the_failed_request() -> None:
    harness = LoopHarness()
    recording = await run_and_record(
        harness, harness.calls("reads"), ModelError(ModelErrorKind.REFUSED, "No.")
    )
    assert recording.end.stop_reason is StopReason.LLM_API_ERROR
    assert [len(step.messages) for step in recording.steps] == [2, 0]
    assert_whole(recording)
    assert (await replay(recording)).difference is None
    tools = replace(recording.tools, tools=recording.tools.tools[1:])
    difference = (await replay(replace(recording, tools=tools))).difference
    assert difference is not None


async def test_a_run_that_ended_with_an_internal_error_is_replayed() -> None:
    harness = v2(LoopHarness())
    recording = await run_and_record(harness, reply("Only text."))
    assert recording.end.stop_reason is StopReason.NO_TOOL_CALL
    await assert_same(recording)


async def test_a_run_that_only_stores_messages_is_replayed() -> None:
    harness = LoopHarness()
    recording = await run_and_record(harness, record_only=True)
    assert recording.steps == ()
    await assert_same(recording)


async def test_code_that_called_tools_is_replayed_without_running_it() -> None:
    harness, coding = coding_harness()
    request = harness.request()
    sink = await harness.run(request, coded(harness, ["keyed", "acts"]), reply("Done."))
    recording = await record(harness, request, sink.events)
    ran = len(coding.answers)
    await assert_same(recording)
    assert len(coding.answers) == ran == 2


async def test_cancelled_run_is_replayed_up_to_the_cancellation() -> None:
    harness = LoopHarness()
    request, sink, control = harness.request(), Sink(), TurnControl()
    harness.model.replies.extend([harness.calls("reads"), harness.calls("blocks")])
    turn = asyncio.create_task(Turn(harness.ports, request, sink, control).run())
    await harness.tools.running.wait()
    control.cancelled = True
    turn.cancel()
    await turn
    recording = await record(harness, request, sink.events)
    assert recording.end.stop_reason is StopReason.CANCELLED
    assert len(recording.steps) == 2
    await assert_same(recording)


async def test_run_of_a_memory_agent_is_replayed() -> None:
    harness = LoopHarness()
    await harness.run(harness.request("Earlier."), reply("Yes."))
    conversation = harness.agent.default_conversation_id
    read = TranscriptRange(harness.agent.id, conversation, -1, 2)
    recording = await run_and_record(
        harness, harness.calls("reads"), reply("Done."), text="", transcript=read
    )
    assert recording.window == ()
    await assert_same(recording)


async def test_run_with_an_image_is_replayed_without_its_bytes() -> None:
    harness = LoopHarness()
    image = ImagePart("image/png", data=png())
    request = replace(
        harness.request(), inputs=[MessageInput(MessageRole.USER, (TextPart("Look."), image))]
    )
    sink = await harness.run(request, reply("A dot."))
    recording = await record(harness, request, sink.events)
    await assert_same(recording)
    assert b"base64" not in recording_to_json(recording)


async def test_a_changed_tool_return_is_a_difference_in_the_next_request() -> None:
    harness = LoopHarness()
    harness.tools.text = "x" * 100
    recording = await run_and_record(harness, harness.calls("reads"), reply("Done."))
    returned = recording.steps[0].messages[1]
    tool_return = replace(returned.tool_returns[0], content=returned.tool_returns[0].content + " ")
    step = replace(
        recording.steps[0],
        messages=(recording.steps[0].messages[0], replace(returned, parts=(tool_return,))),
    )
    difference = (await replay(replace(recording, steps=(step, recording.steps[1])))).difference
    assert difference is not None
    assert difference.path == "steps[1].request.messages[2].content[0].text"


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda harness, events: events.pop(), "not over"),
        (lambda harness, events: events.pop(0), "before its messages"),
        (lambda harness, events: harness.recall.log.clear(), "no longer stored"),
        (
            lambda harness, events: harness.recall.log.pop(harness.recall.messages[1].id),
            "in its window are no longer stored",
        ),
    ],
)
async def test_run_with_deleted_data_is_not_recorded(spoil: Any, error: str) -> None:
    harness = LoopHarness()
    await harness.run(harness.request("Earlier."), reply("Yes."))
    request = harness.request()
    events = (await harness.run(request, reply("Done."))).events
    spoil(harness, events)
    with pytest.raises(FailedPreconditionError, match=error) as raised:
        await record(harness, request, events)
    assert raised.value.reason is Reason.RUN_NOT_RECORDABLE


async def test_long_replay_yields_to_other_tasks() -> None:
    harness = LoopHarness()
    calls = [harness.calls("reads", "acts") for _ in range(3)]
    recording = await run_and_record(harness, *calls, reply("Done."))
    replaying = asyncio.create_task(replay(recording))
    turns = 0
    while not replaying.done():
        await asyncio.sleep(0)
        turns += 1
    # Without yielding to others in each step there are as many as tasks begin, four.
    assert turns > len(recording.steps) + 2


async def test_a_run_without_request_digests_cannot_be_recorded() -> None:
    harness = LoopHarness()
    request = harness.request()
    sink = await harness.run(request, reply("Done."))
    events = [
        replace(event, digest=None) if isinstance(event, ModelRequestSent) else event
        for event in sink.events
    ]
    with pytest.raises(FailedPreconditionError, match="release"):
        await record(harness, request, events)


async def test_run_with_a_response_format_of_the_agent_is_replayed() -> None:
    harness = harness_with()
    recording = await run_and_record(harness, reply(VALID))
    assert recording.agent.response_format == harness.agent.response_format
    await assert_same(recording)


@pytest.mark.parametrize(("response_format", "text"), [(TEXT, "It is warm."), (ANY, "{}")])
async def test_run_with_a_response_format_of_its_message_is_replayed(
    response_format: ResponseFormat, text: str
) -> None:
    harness = harness_with()
    recording = await run_and_record(harness, reply(text), response_format=response_format)
    assert recording.agent.response_format == response_format
    await assert_same(recording)


async def test_run_that_called_the_tool_of_its_group_is_not_recorded() -> None:
    harness = LoopHarness()
    schema = {"type": "object", "properties": {"agent": {"type": "string"}}}
    tool = Tool(ToolSchema(HAND_OVER, "Hands over.", schema), ToolEffect.READ_ONLY)
    tools = harness.tools.toolset
    harness.tools.toolset = replace(tools, tools=(*tools.tools, tool))
    member = GroupMember("agent-2", "Bo", "Knows boats.")
    request = harness.request(group_tool=GroupTool(HAND_OVER, (member,)))
    call = ToolCall("call-1", HAND_OVER, '{"agent": "Bo"}')
    sink = await harness.run(request, reply("", call), reply("Done."))
    # Outside of the run the tool is not available.
    harness.tools.toolset = tools
    with pytest.raises(FailedPreconditionError, match="only in runs of their group") as raised:
        await record(harness, request, sink.events)
    assert raised.value.reason is Reason.RUN_NOT_RECORDABLE


async def test_run_in_which_a_reply_was_corrected_is_not_recorded() -> None:
    harness = harness_with()
    request = harness.request()
    sink = await harness.run(request, reply(INVALID), reply(VALID))
    with pytest.raises(FailedPreconditionError, match="correct its reply"):
        await record(harness, request, sink.events)


async def test_run_whose_prompt_a_provider_refused_as_too_long_is_replayed() -> None:
    harness = await full()
    request = harness.request("Last " + "q" * 10)
    overflow = ModelError(ModelErrorKind.CONTEXT_OVERFLOW, "too long")
    sink = await harness.run(request, overflow, overflow, harness.calls("reads"), reply("Done."))
    recording = await record(harness, request, sink.events)
    assert [step.refusals for step in recording.steps] == [(overflow.kind,) * 2, ()]
    assert recording.steps[0].summaries
    await assert_same(recording)


async def test_run_whose_images_a_provider_refused_is_replayed() -> None:
    harness = LoopHarness()
    image = ImagePart("image/png", data=png())
    request = replace(harness.request(), inputs=[MessageInput(MessageRole.USER, (image,))])
    refused = ModelError(ModelErrorKind.IMAGES_REFUSED, "no")
    sink = await harness.run(request, refused, reply("I see nothing."))
    recording = await record(harness, request, sink.events)
    assert recording.steps[0].refusals == (refused.kind,)
    await assert_same(recording)


async def test_a_recording_contains_no_keys_and_no_addresses() -> None:
    harness = LoopHarness()
    secret = replace(
        harness.models.settings, api_key="sk-private", base_url="http://inner", key_owner="Ada"
    )
    harness.models.settings = secret
    key = SealedKey("test", "", b"sealed-private")
    use(harness, replace(harness.agent, model_keys=(key,), metadata={"crm": "private"}))
    data = recording_to_json(await run_and_record(harness, reply("Done.")))
    for private in (b"private", b"inner", b"Ada", base64.b64encode(key.sealed)):
        assert private not in data


async def test_agent_and_tools_that_were_changed_since_are_noted() -> None:
    harness = LoopHarness()
    request = harness.request()
    sink = await harness.run(request, reply("Done."))
    use(
        harness,
        replace(
            harness.agent, system="Another base.", model_keys=(SealedKey("test", "", b"sealed"),)
        ),
    )
    harness.tools.toolset = replace(harness.tools.toolset, tools=harness.tools.toolset.tools[1:])
    recording = await record(harness, request, sink.events)
    assert recording.agent.system == "Base."
    assert recording.agent.model_keys == ()
    [note] = recording.notes
    assert "tools and options" in note
    replayed = await replay(recording)
    assert replayed.difference is None
    assert replayed.unknown == ("steps[0].request.options",)
