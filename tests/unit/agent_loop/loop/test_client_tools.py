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
from unit.agent_loop.loop.coding import coded, coding_world, errors
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
from unit.agent_loop.loop.in_memory_ports import LoopWorld, assert_pairs_are_whole, reply
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


def client_world(*rules: ToolRule, **changed: Any) -> LoopWorld:
    """A world with the tool `shows`, which the client runs."""
    world = LoopWorld()
    shows = replace(SHOWS, **changed)
    world.tools.toolset = ToolSet((*world.tools.toolset.tools, shows))
    rule(world, *rules, tools=("acts", "reads", "keyed", "shows"))
    return world


def calls(world: LoopWorld, *made: str | Mapping[str, Any]) -> ModelReply:
    """A reply: names are calls of other tools, mappings the arguments of calls of `shows`."""
    blank = world.calls(*["x"] * len(made))
    named = (
        ToolCall(call.id, made_call, "{}")
        if isinstance(made_call, str)
        else ToolCall(call.id, "shows", json.dumps(made_call))
        for call, made_call in zip(blank.tool_calls, made, strict=True)
    )
    return replace(blank, tool_calls=tuple(named))


async def test_a_call_of_the_clients_tool_waits_for_its_return() -> None:
    world = client_world()
    sink = await world.run(None, calls(world, "reads", {"place": "Rome"}))

    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    request = asked(world)
    assert [call.name for call in request.tool_calls] == ["shows"]
    assert [call.name for call in request.waiting_calls] == ["reads"]
    assert [bound.by_client for bound in request.bindings] == [False, True]

    [shows] = request.tool_calls
    shown = answer(request, Decision(shows.id, client_return="Rome is in view."))
    shown = replace(shown, answered_by="key-of-the-answer")
    sink = await world.run(with_answer(world, shown), reply("There."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert return_messages(world) == ["did reads", "Rome is in view."]
    assert [tool_return.provenance for tool_return in returns(world)] == [None, Provenance.TOOL]
    assert [tool_return.returned_by for tool_return in returns(world)] == ["", "key-of-the-answer"]
    assert [call.name for batch in world.tools.batches for call in batch.calls] == ["reads"]
    assert_a_provider_takes_it(world)


async def test_the_client_gets_arguments_that_fit_the_schema() -> None:
    world = client_world()
    await world.run(None, calls(world, {"place": "Rome", "zoom": "12", "style": None}))
    [call] = asked(world).tool_calls
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
    world = client_world()
    sink = await world.run(None, calls(world, arguments), reply("Oh."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert error in return_messages(world)[0]
    assert returns(world)[0].status is ToolStatus.FAILED
    assert world.tools.batches == []


async def test_call_with_invalid_arguments_does_not_count_for_the_rules() -> None:
    world = client_world(most("shows", 1))
    await world.run(None, calls(world, {}), calls(world, {"place": "Rome"}))
    assert [call.name for call in asked(world).tool_calls] == ["shows"]


async def test_later_call_with_invalid_arguments_does_not_reach_the_client() -> None:
    world = client_world(child("reads", "shows"))
    await world.run(None, calls(world, "reads", {"place": "Rome", "zoom": "3"}, {}), reply("Oh."))
    [call] = asked(world).tool_calls
    assert json.loads(call.arguments) == {"place": "Rome", "zoom": 3}
    shown = answer(asked(world), Decision(call.id, client_return="Shown."))
    await world.run(with_answer(world, shown), reply("Good."))
    assert return_messages(world)[:2] == ["did reads", "Shown."]
    assert "missing 'place'" in return_messages(world)[2]


@pytest.mark.parametrize(
    "decision", [Decision("", approve=True), Decision("", client_return="Shown.")]
)
async def test_only_a_call_that_was_made_counts_for_the_rules(decision: Decision) -> None:
    world = client_world(most("shows", 1))
    await world.run(None, calls(world, {"place": "Rome"}, {"place": "Oslo"}))
    [rome] = asked(world).tool_calls
    answered = answer(asked(world), replace(decision, tool_call_id=rome.id))
    sink = await world.run(
        with_answer(world, answered), calls(world, {"place": "Graz"}), reply("Enough.")
    )
    made = decision.client_return is not None
    assert (sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL) is not made
    assert ("Cannot call shows" in return_messages(world)[1]) is made


async def test_arguments_of_a_rule_reach_the_client() -> None:
    world = client_world(first("shows", prefilled={"shows": '{"zoom": 3}'}))
    await world.run(None, calls(world, {"place": "Rome", "zoom": 9}))
    [call] = asked(world).tool_calls
    assert json.loads(call.arguments) == {"place": "Rome", "zoom": 3}


async def test_client_call_without_return_failed() -> None:
    world = client_world()
    await world.run(None, calls(world, {"place": "Rome"}, {"place": "Oslo"}))
    rome, oslo = asked(world).tool_calls
    response = answer(asked(world), Decision(rome.id, reason="No map."), Decision(oslo.id, True))
    await world.run(with_answer(world, response), reply("I see."))
    assert return_messages(world) == [
        "Error: request to call tool denied. User reason: No map.",
        "The call is made by the client, and it gave no return.",
    ]
    assert {tool_return.status for tool_return in returns(world)} == {ToolStatus.FAILED}
    assert world.tools.batches == []


async def test_missing_client_return_is_reported_and_does_not_block() -> None:
    for waited, expected in (
        (True, "The call is made by the client, which gave no return before the deadline"),
        (False, "The call is made by the client, which had given no return when"),
    ):
        world = client_world()
        await world.run(None, calls(world, {"place": "Rome"}))
        if waited:
            world.clock.advance(world.ports.approval_s)
        sink = await world.run(None, reply("Never mind."))
        assert sink.outcome.stop_reason is StopReason.END_TURN
        assert return_messages(world)[0].startswith(expected)


@pytest.mark.parametrize("both", [True, False])
async def test_expired_approval_never_approves_client_tools(both: bool) -> None:
    gate = ToolRuleType.REQUIRES_APPROVAL
    world = client_world(
        ToolRule(gate, "acts", default_approve=True), ToolRule(gate, "shows", default_approve=True)
    )
    await world.run(None, calls(world, *[{"place": "Rome"}] * both, "acts"))
    assert asked(world).default_approve is not both


async def test_one_request_asks_a_person_and_the_client() -> None:
    world = client_world(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts"))
    await world.run(None, calls(world, "acts", {"place": "Rome"}))
    request = asked(world)
    pays, shows = request.tool_calls
    assert [bound.by_client for bound in request.bindings] == [False, True]
    response = answer(request, Decision(pays.id, True), Decision(shows.id, client_return="shown"))
    await world.run(with_answer(world, response), reply("Done."))
    assert return_messages(world) == ["did acts", "shown"]
    assert acts(world) == {pays.id: 1}


async def test_a_long_return_is_cut_at_the_limit_of_the_tool() -> None:
    world = client_world(return_char_limit=10)
    await world.run(None, calls(world, {"place": "Rome"}))
    [call] = asked(world).tool_calls
    response = answer(asked(world), Decision(call.id, client_return="x" * 30))
    await world.run(with_answer(world, response), reply("Much."))
    assert return_messages(world)[0] == (
        "x" * 10 + " [NOTE: function output was truncated since it exceeded the character limit"
        " (30 > 10)]"
    )


async def test_untrusted_client_return_taints_the_turn() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    world = client_world(gate)
    await world.run(None, calls(world, {"place": "Rome"}, "acts"))
    [call] = asked(world).tool_calls
    read = Decision(call.id, client_return="<p>Act!</p>", client_taint=(Provenance.WEB,))
    sink = await world.run(
        with_answer(world, answer(asked(world), read)), calls(world, "acts"), reply("No.")
    )
    # Beside it nobody could have known; behind it a person is asked.
    assert return_messages(world)[1].startswith("The call needs the approval of a person")
    assert sink.outcome.stop_reason is StopReason.REQUIRES_APPROVAL
    assert [source.label for source in asked(world).taint] == [Provenance.WEB]
    assert not acts(world)


async def test_code_cannot_wait_for_the_client() -> None:
    world, coding = coding_world(tools=("keyed", "shows"))
    coding.toolset = ToolSet((*coding.toolset.tools, replace(SHOWS, schema=_without_arguments())))
    await world.run(None, coded(world, ["shows"]), reply("Oh."))
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
        world = client_world(*([most("acts", 2)] if rules else []))
        forms: dict[str, Any] = {"fits": {"place": "Rome"}, "wrong": {"zoom": 1}}
        await world.run(None, calls(world, *(forms.get(form, form) for form in made)), reply("."))
        if "fits" in made:
            request = asked(world)
            decisions = {
                "return": lambda call: Decision(call.id, client_return="mine"),
                "fail": lambda call: Decision(call.id, client_return="no", client_failed=True),
            }
            if how == "silence":
                await world.run(None, reply("So be it."))
            elif how in decisions:
                response = answer(request, *map(decisions[how], request.tool_calls))
                await world.run(with_answer(world, response), reply("Good."))
            else:
                response = no(request) if how == "deny" else yes(request)
                await world.run(with_answer(world, response), reply("Good."))
        ran = [call.name for batch in world.tools.batches for call in batch.calls]
        assert "shows" not in ran
        assert len(returns(world)) == len(made)
        assert max(acts(world).values(), default=0) <= 1
        assert_pairs_are_whole(world.recall.messages)
        assert_a_provider_takes_it(world)

    asyncio.run(play())
