"""Tool rules in a turn: what is offered, refused and overridden, and how the turn ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strata.agent_loop.context.exchanges import UnitKind, leaving, units_of
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import FinishReason, ToolCall, ToolChoice
from strata.agent_loop.domain.tools import ToolSet
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import (
    AUTO,
    REASON,
    child,
    conditional,
    first,
    harness_with,
    heartbeats,
    leaves,
    most,
    offered,
    parent,
    ran,
    required,
    return_messages,
    until_done,
)


async def test_without_rules_requests_and_journal_are_unchanged() -> None:
    harness = harness_with()
    await harness.run(None, harness.calls("reads", "keyed"), reply("Done."))

    assert offered(harness) == [(["keyed", "reads", "acts"], AUTO)] * 2
    assert [asked.parallel_tool_calls for asked in harness.model.requests] == [None, None]
    assert ran(harness) == [["reads", "keyed"]]


async def test_only_rules_about_approval_leave_parallel_calls_as_the_agent_has_them() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts")
    for rules, parallel in (((gate,), None), ((gate, most("reads", 2)), False)):
        harness = harness_with(*rules)
        await harness.run(None, reply("Done."))
        assert [asked.parallel_tool_calls for asked in harness.model.requests] == [parallel]


async def test_first_tool_is_forced_once_in_each_turn() -> None:
    harness = harness_with(first("keyed"))
    await harness.run(None, harness.calls("keyed"), reply("Done."))
    await harness.run(None, harness.calls("keyed"), reply("Done."))

    forced = (["keyed"], ToolChoice.named("keyed"))
    free = (["keyed", "reads", "acts"], AUTO)
    assert offered(harness) == [forced, free, forced, free]
    assert {asked.parallel_tool_calls for asked in harness.model.requests} == {False}


async def test_one_of_several_is_required_while_a_rule_is_active() -> None:
    harness = harness_with(child("keyed", "reads", "acts"), first("keyed"), first("reads"))
    await harness.run(None, harness.calls("keyed"), harness.calls("acts"), reply("Done."))

    assert offered(harness) == [
        (["keyed", "reads"], ToolChoice.required()),
        (["reads", "acts"], ToolChoice.required()),
        (["keyed", "reads", "acts"], AUTO),
    ]


async def test_children_are_allowed_only_after_their_parent() -> None:
    harness = harness_with(parent("keyed", "acts"))
    await harness.run(
        None, harness.calls("acts"), harness.calls("keyed"), harness.calls("acts"), reply("x")
    )

    assert [names for names, _ in offered(harness)] == [
        ["keyed", "reads"],
        ["keyed", "reads"],
        ["acts"],
        ["keyed", "reads"],
    ]
    assert offered(harness)[2][1] == ToolChoice.named("acts")
    assert ran(harness) == [["keyed"], ["acts"]]


async def test_refusal_names_the_allowed_tools_and_the_rules() -> None:
    harness = harness_with(most("keyed", 1), child("reads", "acts"))
    await harness.run(
        None, harness.calls("keyed"), harness.calls("keyed"), harness.calls("other"), reply("x")
    )

    refused = (
        "[ToolConstraintError] Cannot call {}, valid tools include: ['reads', 'acts'].\n"
        "** Hint: Possible rules that were violated:\n"
        "\t- <tool_rule>\nkeyed: at most 1 use(s) per response\n</tool_rule>"
    )
    assert return_messages(harness)[1:] == [refused.format("keyed"), refused.format("other")]
    assert harness.recall.messages[5].tool_returns[0].status is ToolStatus.FAILED


async def test_refused_calls_do_not_count_for_the_rules() -> None:
    harness = harness_with(most("keyed", 1), first("keyed"))
    harness.model.replies = [
        harness.calls("acts"),
        replace(harness.calls(), tool_calls=(ToolCall("broken", "keyed", "{"),)),
        harness.calls("keyed"),
        reply("Done."),
    ]
    await harness.run(None)

    forced = (["keyed"], ToolChoice.named("keyed"))
    assert offered(harness) == [forced, forced, forced, (["reads", "acts"], AUTO)]
    assert ran(harness) == [["keyed"]]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_the_maximum_count_applies_across_steps_and_within_a_reply(count: int) -> None:
    harness = harness_with(most("keyed", count))
    await harness.run(
        None, harness.calls("keyed"), harness.calls("keyed", "keyed", "reads"), reply("x")
    )

    assert [name for batch in ran(harness) for name in batch].count("keyed") == min(count, 3)
    assert "reads" in ran(harness)[-1], "the rest of the reply is not lost"
    assert len(ran(harness)) == 2, "calls that need no order are run together"
    assert_pairs_are_whole(harness.recall.messages)


@pytest.mark.parametrize(
    ("output", "next_tools", "choice"),
    [
        ("yes", ["acts"], ToolChoice.named("acts")),
        ("True", ["reads"], ToolChoice.named("reads")),
        ("other", ["keyed", "reads", "acts"], AUTO),
    ],
)
async def test_condition_depends_on_the_tools_output(
    output: str, next_tools: list[str], choice: ToolChoice
) -> None:
    harness = harness_with(conditional("keyed", {"yes": "acts", "true": "reads"}))
    harness.tools.text = output
    await harness.run(None, harness.calls("keyed"), reply("Done."))

    assert offered(harness)[1] == (next_tools, choice)


async def test_a_conditional_rule_without_a_match_allows_its_default_or_only_text() -> None:
    harness = harness_with(conditional("keyed", {"yes": "acts"}, default_child="reads"))
    await harness.run(None, harness.calls("keyed"), reply("Done."))
    assert offered(harness)[1] == (["reads"], ToolChoice.named("reads"))

    harness = harness_with(
        conditional("keyed", {"yes": "acts"}, require_output_mapping=True), required("acts")
    )
    sink = await harness.run(None, harness.calls("keyed"), harness.calls("acts"), reply("Done."))
    assert offered(harness)[1] == (["keyed", "reads", "acts"], ToolChoice.none())
    assert "valid tools include: []." in return_messages(harness)[1]
    assert sink.outcome.stop_reason is StopReason.END_TURN, (
        "a tool that cannot be called is not waited for"
    )


async def test_calls_of_one_reply_run_in_their_order() -> None:
    harness = harness_with(
        child("reads", "keyed", "acts"), conditional("keyed", {"did keyed": "acts"}), first("reads")
    )
    await harness.run(
        None, harness.calls("acts", "reads", "keyed", "reads", "acts", "reads"), reply("Done.")
    )

    assert ran(harness) == [["reads"], ["keyed"], ["acts"], ["reads"]]
    statuses = [part.status.value for part in harness.recall.messages[3].tool_returns]
    assert statuses == ["Failed", "OK", "OK", "Failed", "OK", "OK"]
    assert "valid tools include: ['reads']" in return_messages(harness)[0]
    assert "valid tools include: ['acts']" in return_messages(harness)[3]
    assert_pairs_are_whole(harness.recall.messages)
    assert len(harness.recall.commits) == 2


async def test_prefilled_arguments_override_the_models_and_are_stored() -> None:
    harness = harness_with(
        first("keyed", prefilled={"keyed": '{"x": 1}'}),
        child("keyed", "reads", prefilled={"reads": '{"x": 2}'}),
    )
    with_arguments(harness, "keyed", "reads")
    calls = [ToolCall("1", "keyed", '{"x": 9, "y": 8}'), ToolCall("2", "reads", "")]
    last = ToolCall("3", "reads", ' {"x": 9}')
    await harness.run(
        None,
        *(replace(reply(""), tool_calls=(call,)) for call in (*calls, last)),
        reply("Done."),
    )

    sent = [call.arguments for batch in harness.tools.batches for call in batch.calls]
    assert sent == ['{"x": 1, "y": 8}', '{"x": 2}', ' {"x": 9}']
    stored = [call.arguments for m in harness.recall.messages for call in m.tool_calls]
    assert stored == sent


def with_arguments(harness: LoopHarness, *names: str) -> None:
    """Gives tools the integer arguments x and y."""
    properties = {"x": {"type": "integer"}, "y": {"type": "integer"}}
    schema = {"type": "object", "properties": properties}
    harness.tools.toolset = ToolSet(
        tuple(
            replace(tool, schema=replace(tool.schema, parameters=schema))
            if tool.name in names
            else tool
            for tool in harness.tools.toolset.tools
        )
    )


@pytest.mark.parametrize("arguments", ['{"nope": 1}', '{"x": "text"}'])
async def test_wrong_prefilled_arguments_end_the_turn_and_run_nothing(arguments: str) -> None:
    for death in [None, *range(12)]:
        harness = harness_with(first("keyed", prefilled={"keyed": arguments}))
        with_arguments(harness, "keyed")
        sink = await until_done(harness, [harness.calls("keyed")], [] if death is None else [death])

        assert sink.outcome.stop_reason is StopReason.INVALID_TOOL_CALL
        assert ran(harness) == []
        assert return_messages(harness)[0].startswith(
            "Invalid prefilled tool arguments from tool rules (source=InitToolRule(keyed)): "
        )


async def test_model_cannot_end_the_turn_by_quoting_the_argument_error() -> None:
    harness = harness_with(first("keyed"))
    text = "Invalid prefilled tool arguments from tool rules"
    harness.model.replies = [
        replace(reply(""), tool_calls=(ToolCall("1", "keyed", f'{{"{text}'),)),
        reply("Done."),
    ]
    sink = await harness.run(None)
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_exit_and_continue_rules_replace_the_default_of_a_tool() -> None:
    harness = harness_with(leaves("reads"))
    sink = await harness.run(None, harness.calls("keyed"), harness.calls("reads", "keyed"))
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert ran(harness) == [["keyed"], ["reads", "keyed"]]

    tools = ("keyed", "memory_finish_edits")
    harness = harness_with(most("keyed", 1), tools=tools)
    sink = await harness.run(None, harness.calls("memory_finish_edits"))
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE

    going_on = ToolRule(ToolRuleType.CONTINUE_LOOP, "memory_finish_edits")
    harness = harness_with(going_on, tools=tools)
    sink = await harness.run(None, harness.calls("memory_finish_edits"), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_turn_does_not_end_before_the_required_tool_was_called() -> None:
    harness = harness_with(required("keyed"), required("acts"))
    sink = await harness.run(
        None,
        reply("Bye."),
        harness.calls("keyed"),
        reply("Bye."),
        harness.calls("acts"),
        reply("Bye."),
    )

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert sink.outcome.step_count == 5
    beats = heartbeats(harness)
    bodies = [json.loads(beat.text) for beat in beats]
    assert [body["reason"] for body in bodies] == [
        REASON.format("keyed, acts"),
        REASON.format("acts"),
    ]
    assert all(set(body) == {"type", "reason", "time"} for body in bodies)
    assert beats[0].text.startswith('{\n  "type": "heartbeat",')
    assert beats[0].provenance == (Provenance.SYSTEM,)
    assert [m.role.value for m in harness.recall.messages[1:5]] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert not [message for message in sink.stored if message.hidden], "no client gets it"
    asked = harness.model.requests[1].messages[-1]
    assert asked.text == beats[0].text


async def test_an_exit_tool_does_not_end_the_turn_before_the_required_tool() -> None:
    harness = harness_with(required("keyed"), leaves("reads"))
    sink = await harness.run(
        None, harness.calls("reads"), harness.calls("keyed"), harness.calls("reads")
    )

    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert sink.outcome.step_count == 3
    assert len(heartbeats(harness)) == 1
    assert_pairs_are_whole(harness.recall.messages)


async def test_the_required_tool_may_be_called_in_the_same_reply_as_the_exit_tool() -> None:
    harness = harness_with(required("keyed"), leaves("reads"))
    sink = await harness.run(None, harness.calls("reads", "keyed"))
    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert heartbeats(harness) == []


async def test_required_tool_does_not_extend_the_last_step() -> None:
    for steps in ([reply("Bye.")], None):
        harness = harness_with(required("keyed"), leaves("reads"))
        replies = steps or [harness.calls("reads")]
        sink = await harness.run(harness.request(max_steps=1), *replies)
        assert sink.outcome.stop_reason is StopReason.MAX_STEPS
        assert heartbeats(harness) == []


async def test_truncated_reply_ends_the_turn_without_the_required_tool() -> None:
    harness = harness_with(required("keyed"))
    sink = await harness.run(None, reply("Bye", finish=FinishReason.LENGTH))
    assert sink.outcome.stop_reason is StopReason.MAX_TOKENS_EXCEEDED


async def test_a_call_that_could_not_be_run_does_not_count_for_the_rules() -> None:
    harness = harness_with(first("keyed"), child("keyed", "acts"))
    harness.tools.error = FailedPreconditionError("no", reason=Reason.TOOL_NOT_FOUND)
    harness.model.replies = [harness.calls("keyed", "acts"), reply("Done.")]
    await harness.run(None)

    assert ran(harness) == [["keyed"]]
    assert "could not be run" in return_messages(harness)[0]
    assert "Cannot call acts" in return_messages(harness)[1]
    assert offered(harness)[1] == (["keyed"], ToolChoice.named("keyed"))


def test_a_heartbeat_belongs_to_the_step_of_its_reply() -> None:
    question = Message("1", MessageRole.USER, (), provenance=(Provenance.USER,))
    answer = Message("2", MessageRole.ASSISTANT, ())
    beat = Message("3", MessageRole.USER, (), provenance=(Provenance.SYSTEM,))
    units = units_of([question, answer, beat, answer])

    assert [unit.kind for unit in units] == [UnitKind.INPUT, UnitKind.STEP, UnitKind.STEP]
    assert units[1].messages == (answer, beat)
    # The newest message of the user is the one that a person sent.
    assert leaving(units).current == ((1,),)
