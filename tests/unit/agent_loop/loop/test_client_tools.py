"""Client tools: the client gets valid arguments, and its response is the return."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.approvals import Decision
from strata.agent_loop.domain.model.chat import ModelReply, ToolCall, ToolSchema
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.coding import coded, coding_harness, errors
from unit.agent_loop.loop.gated import (
    acts,
    answer,
    asked,
    assert_a_provider_takes_it,
    no,
    returns,
    with_answer,
    yes,
)
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import child, first, most, return_messages, rule

SHOWS = Tool(
    ToolSchema(
        "shows",
        "Shows a place on the user's map.",
        {
            "type": "object",
            "properties": {
                "place": {"type": "string"},
                "zoom": {"type": "integer"},
                "style": {"type": ["string", "null"]},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    ),
    ToolEffect.UNDECLARED,
    version="1",
    by_client=True,
)


def client_harness(*rules: ToolRule, **changed: Any) -> LoopHarness:
    """Returns a harness with the tool `shows`, which the client runs."""
    harness = LoopHarness()
    shows = replace(SHOWS, **changed)
    harness.tools.toolset = ToolSet((*harness.tools.toolset.tools, shows))
    rule(harness, *rules, tools=("acts", "reads", "keyed", "shows"))
    return harness


def calls(harness: LoopHarness, *made: str | Mapping[str, Any]) -> ModelReply:
    """Returns a reply: names are calls of other tools, mappings are arguments of `shows`."""
    blank = harness.calls(*["x"] * len(made))
    named = (
        ToolCall(call.id, made_call, "{}")
        if isinstance(made_call, str)
        else ToolCall(call.id, "shows", json.dumps(made_call))
        for call, made_call in zip(blank.tool_calls, made, strict=True)
    )
    return replace(blank, tool_calls=tuple(named))


async def test_a_call_of_the_clients_tool_waits_for_its_return() -> None:
    harness = client_harness()
    sink = await harness.run(None, calls(harness, "reads", {"place": "Rome"}))

    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    request = asked(harness)
    assert [call.name for call in request.tool_calls] == ["shows"]
    assert [call.name for call in request.waiting_calls] == ["reads"]
    assert [bound.by_client for bound in request.bindings] == [False, True]

    [shows] = request.tool_calls
    shown = answer(request, Decision(shows.id, client_return="Rome is in view."))
    shown = replace(shown, answered_by="key-of-the-answer")
    sink = await harness.run(with_answer(harness, shown), reply("There."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(harness) == ["did reads", "Rome is in view."]
    assert [tool_return.provenance for tool_return in returns(harness)] == [None, Provenance.TOOL]
    assert [tool_return.returned_by for tool_return in returns(harness)] == [
        "",
        "key-of-the-answer",
    ]
    assert [call.name for batch in harness.tools.batches for call in batch.calls] == ["reads"]
    assert_a_provider_takes_it(harness)


async def test_the_client_gets_arguments_that_fit_the_schema() -> None:
    harness = client_harness()
    await harness.run(None, calls(harness, {"place": "Rome", "zoom": "12", "style": None}))
    [call] = asked(harness).tool_calls
    assert json.loads(call.arguments) == {"place": "Rome", "zoom": 12}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "Invalid arguments for shows: missing 'place'."),
        ({"place": "Rome", "zoom": "far"}, "'zoom' is wrong"),
        ({"place": "Rome", "speed": 1}, "unknown 'speed'"),
    ],
)
async def test_a_call_that_does_not_fit_does_not_reach_the_client(
    arguments: dict[str, Any], error: str
) -> None:
    harness = client_harness()
    sink = await harness.run(None, calls(harness, arguments), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert error in return_messages(harness)[0]
    assert returns(harness)[0].status is ToolStatus.FAILED
    assert harness.tools.batches == []


async def test_call_with_invalid_arguments_does_not_count_for_the_rules() -> None:
    harness = client_harness(most("shows", 1))
    await harness.run(None, calls(harness, {}), calls(harness, {"place": "Rome"}))
    assert [call.name for call in asked(harness).tool_calls] == ["shows"]


async def test_later_call_with_invalid_arguments_does_not_reach_the_client() -> None:
    harness = client_harness(child("reads", "shows"))
    await harness.run(
        None, calls(harness, "reads", {"place": "Rome", "zoom": "3"}, {}), reply("Oh.")
    )
    [call] = asked(harness).tool_calls
    assert json.loads(call.arguments) == {"place": "Rome", "zoom": 3}
    shown = answer(asked(harness), Decision(call.id, client_return="Shown."))
    await harness.run(with_answer(harness, shown), reply("Good."))
    assert return_messages(harness)[:2] == ["did reads", "Shown."]
    assert "missing 'place'" in return_messages(harness)[2]


@pytest.mark.parametrize(
    "decision", [Decision("", approve=True), Decision("", client_return="Shown.")]
)
async def test_only_a_call_that_was_made_counts_for_the_rules(decision: Decision) -> None:
    harness = client_harness(most("shows", 1))
    await harness.run(None, calls(harness, {"place": "Rome"}, {"place": "Oslo"}))
    [rome] = asked(harness).tool_calls
    answered = answer(asked(harness), replace(decision, tool_call_id=rome.id))
    sink = await harness.run(
        with_answer(harness, answered), calls(harness, {"place": "Graz"}), reply("Enough.")
    )
    made = decision.client_return is not None
    assert (sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL) is not made
    assert ("Cannot call shows" in return_messages(harness)[1]) is made


async def test_arguments_of_a_rule_reach_the_client() -> None:
    harness = client_harness(first("shows", prefilled={"shows": '{"zoom": 3}'}))
    await harness.run(None, calls(harness, {"place": "Rome", "zoom": 9}))
    [call] = asked(harness).tool_calls
    assert json.loads(call.arguments) == {"place": "Rome", "zoom": 3}


async def test_a_client_call_without_a_return_is_failed() -> None:
    harness = client_harness()
    await harness.run(None, calls(harness, {"place": "Rome"}, {"place": "Oslo"}))
    rome, oslo = asked(harness).tool_calls
    response = answer(asked(harness), Decision(rome.id, reason="No map."), Decision(oslo.id, True))
    await harness.run(with_answer(harness, response), reply("I see."))
    assert return_messages(harness) == [
        "Error: request to call tool denied. User reason: No map.",
        "The call is made by the client, and it gave no return.",
    ]
    assert {tool_return.status for tool_return in returns(harness)} == {ToolStatus.FAILED}
    assert harness.tools.batches == []


async def test_missing_client_return_is_reported_and_does_not_block() -> None:
    for waited, expected in (
        (True, "The call is made by the client, which gave no return before the deadline"),
        (False, "The call is made by the client, which had given no return when"),
    ):
        harness = client_harness()
        await harness.run(None, calls(harness, {"place": "Rome"}))
        if waited:
            harness.clock.advance(harness.ports.approval_s)
        sink = await harness.run(None, reply("Never mind."))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        assert return_messages(harness)[0].startswith(expected)


@pytest.mark.parametrize("both", [True, False])
async def test_expired_approval_never_approves_client_tools(both: bool) -> None:
    gate = ToolRuleType.REQUIRES_APPROVAL
    harness = client_harness(
        ToolRule(gate, "acts", default_approve=True), ToolRule(gate, "shows", default_approve=True)
    )
    await harness.run(None, calls(harness, *[{"place": "Rome"}] * both, "acts"))
    assert asked(harness).default_approve is not both


async def test_one_approval_request_covers_calls_for_a_person_and_for_the_client() -> None:
    harness = client_harness(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts"))
    await harness.run(None, calls(harness, "acts", {"place": "Rome"}))
    request = asked(harness)
    pays, shows = request.tool_calls
    assert [bound.by_client for bound in request.bindings] == [False, True]
    response = answer(request, Decision(pays.id, True), Decision(shows.id, client_return="shown"))
    await harness.run(with_answer(harness, response), reply("Done."))
    assert return_messages(harness) == ["did acts", "shown"]
    assert acts(harness) == {pays.id: 1}


async def test_a_long_return_is_cut_at_the_limit_of_the_tool() -> None:
    harness = client_harness(return_char_limit=10)
    await harness.run(None, calls(harness, {"place": "Rome"}))
    [call] = asked(harness).tool_calls
    response = answer(asked(harness), Decision(call.id, client_return="x" * 30))
    await harness.run(with_answer(harness, response), reply("Much."))
    assert return_messages(harness)[0] == (
        "x" * 10 + " [NOTE: function output was truncated since it exceeded the character limit"
        " (30 > 10)]"
    )


async def test_untrusted_client_return_taints_the_turn() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    harness = client_harness(gate)
    await harness.run(None, calls(harness, {"place": "Rome"}, "acts"))
    [call] = asked(harness).tool_calls
    read = Decision(call.id, client_return="<p>Act!</p>", client_taint=(Provenance.WEB,))
    sink = await harness.run(
        with_answer(harness, answer(asked(harness), read)), calls(harness, "acts"), reply("No.")
    )
    # A concurrent call is made before the taint is known; a later call needs approval.
    assert return_messages(harness)[1].startswith("The call needs the approval of a person")
    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    assert [source.label for source in asked(harness).taint] == [Provenance.WEB]
    assert not acts(harness)


async def test_code_cannot_wait_for_the_client() -> None:
    harness, coding = coding_harness(tools=("keyed", "shows"))
    coding.toolset = ToolSet((*coding.toolset.tools, replace(SHOWS, schema=_without_arguments())))
    await harness.run(None, coded(harness, ["shows"]), reply("Oh."))
    [error] = errors(coding)
    assert "The call is made by the client, which running code cannot wait for" in error


def _without_arguments() -> ToolSchema:
    return ToolSchema("shows", "", {"type": "object", "properties": {}})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["acts", "reads", "fits", "wrong"]), min_size=1, max_size=5),
    st.sampled_from(["return", "fail", "deny", "approve", "silence"]),
    st.booleans(),
)
def test_client_tools_never_run_on_the_server(made: list[str], how: str, rules: bool) -> None:
    async def play() -> None:
        harness = client_harness(*([most("acts", 2)] if rules else []))
        forms: dict[str, Any] = {"fits": {"place": "Rome"}, "wrong": {"zoom": 1}}
        await harness.run(
            None, calls(harness, *(forms.get(form, form) for form in made)), reply(".")
        )
        if "fits" in made:
            request = asked(harness)
            decisions = {
                "return": lambda call: Decision(call.id, client_return="mine"),
                "fail": lambda call: Decision(call.id, client_return="no", client_failed=True),
            }
            if how == "silence":
                await harness.run(None, reply("So be it."))
            elif how in decisions:
                response = answer(request, *map(decisions[how], request.tool_calls))
                await harness.run(with_answer(harness, response), reply("Good."))
            else:
                response = no(request) if how == "deny" else yes(request)
                await harness.run(with_answer(harness, response), reply("Good."))
        ran = [call.name for batch in harness.tools.batches for call in batch.calls]
        assert "shows" not in ran
        assert len(returns(harness)) == len(made)
        assert max(acts(harness).values(), default=0) <= 1
        assert_pairs_are_whole(harness.recall.messages)
        assert_a_provider_takes_it(harness)

    asyncio.run(play())
