"""Nested calls of code: the same rules and journal as other calls, and no repeated effects."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.nested_calls import MAX_NESTED_CALLS
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.rules.history import calls_of
from strata.agent_loop.rules.refusals import CONSTRAINT, NOT_APPROVED
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.protocol.errors import InvalidArgumentError, UnavailableError
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.coding import CODE, CodingTools, coded, coding_world, errors, nested
from unit.agent_loop.loop.in_memory_ports import Sink, assert_pairs_are_whole, lost, reply
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.ruled import (
    child,
    conditional,
    first,
    leaves,
    most,
    required,
    return_messages,
)
from unit.agent_loop.loop.ruled import until_done as until_done_with

WEB, MCP = Provenance.WEB, Provenance.MCP


def change(coding: CodingTools, name: str, **fields: object) -> None:
    """Changes the definition of a tool."""
    tools: list[Tool] = [
        replace(tool, **fields) if tool.name == name else tool  # type: ignore[arg-type]
        for tool in coding.toolset.tools
    ]
    coding.toolset = ToolSet(tuple(tools))


async def test_nested_calls_are_run_journalled_and_reported() -> None:
    world, coding = coding_world(tools=("keyed", "acts", "edits", "files"))
    request = world.request()
    script = coded(world, ["keyed", "acts", "edits", "files"]), reply("Done.")
    sink = await world.run(request, *script)

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert [json.loads(answer.value_json) for answer in coding.answers] == [
        "did keyed",
        "did acts",
        "did edits",
        "did files",
    ]
    made = nested(world)
    assert [(call.id, call.name, call.status) for call in made] == [
        ("call_1/1", "keyed", ToolStatus.OK),
        ("call_1/2", "acts", ToolStatus.OK),
        ("call_1/3", "edits", ToolStatus.OK),
        ("call_1/4", "files", ToolStatus.OK),
    ]
    prefix = f"{request.run_id}/1/call_1"
    assert {f"{prefix}/{number}" for number in range(1, 5)} <= coding.keys
    record = world.journal.rows[request.run_id][1]
    assert record is not None
    assert [record.call.id for record in record.nested] == [call.id for call in made]
    assert all(record.result is not None for record in record.nested)
    # The window has the model's call and its return alone; memory that the code edited is shown.
    assert [m.role.value for m in world.recall.messages[2:]] == ["assistant", "tool", "assistant"]
    assert_pairs_are_whole(world.recall.messages)
    assert world.memory.compiled == 2
    assert world.recall.commits[0].metadata_stale is True


@pytest.mark.parametrize(
    ("rules", "name", "why"),
    [
        ((), CODE, f"{CONSTRAINT} Code cannot call {CODE} again."),
        ((), "gone", f"{CONSTRAINT} Cannot call gone"),
        ((leaves("acts"),), "acts", f"{CONSTRAINT} acts ends the turn"),
        (
            (conditional("acts", {"x": "reads"}),),
            "acts",
            f"{CONSTRAINT} What acts returns decides",
        ),
        ((ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts"),), "acts", NOT_APPROVED),
        ((child(CODE, "reads"),), "acts", f"{CONSTRAINT} Cannot call acts"),
        ((most("acts", 1),), "acts", f"{CONSTRAINT} Cannot call acts"),
    ],
)
async def test_refused_nested_call_does_not_stop_the_code(
    rules: tuple[ToolRule, ...], name: str, why: str
) -> None:
    world, coding = coding_world(*rules)
    before = ["acts"] if rules and rules[0].type is ToolRuleType.MAX_COUNT_PER_STEP else []
    sink = await world.run(None, coded(world, [*before, name, "reads"]), reply("Done."))

    code_errors = errors(coding)[len(before) :]
    assert code_errors[0] is not None
    assert code_errors[0].startswith(why)
    assert code_errors[1] is None
    assert sum(coding.acted.values()) == len(before)
    assert [call.refused for call in nested(world)] == [*(False for _ in before), True, False]
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_tool_that_needs_approval_is_refused_in_code() -> None:
    world, coding = coding_world()
    change(coding, "acts", requires_approval=True)
    await world.run(None, coded(world, ["acts"]), reply("Done."))
    assert str(errors(coding)[0]).startswith(NOT_APPROVED)
    assert not coding.acted


async def test_nested_calls_count_for_later_rules() -> None:
    world, coding = coding_world(most("acts", 2), required("keyed"))
    script = coded(world, ["acts", "keyed"]), coded(world, ["acts", "acts"]), reply("Done.")
    await world.run(None, *script, world.calls("acts"), reply("Done."))

    assert [error is None for error in errors(coding)] == [True, True, True, False]
    assert sum(coding.acted.values()) == 2
    assert not [message for message in world.recall.messages if message.hidden]


async def test_calls_beside_the_code_count_before_nested_calls() -> None:
    world, coding = coding_world(most("acts", 1))
    await world.run(None, coded(world, ["acts"], "acts"), reply("Done."))
    assert str(errors(coding)[0]).startswith(CONSTRAINT)
    assert list(coding.acted.values()) == [1]


async def test_order_rules_apply_between_nested_calls() -> None:
    world, coding = coding_world(first(CODE), child("keyed", "reads"))
    await world.run(None, coded(world, ["acts", "keyed", "acts", "reads"]), reply("Done."))
    assert [error is None for error in errors(coding)] == [True, True, False, True]


async def test_number_of_nested_calls_is_limited() -> None:
    world, coding = coding_world()
    await world.run(None, coded(world, ["acts"] * (MAX_NESTED_CALLS + 2)), reply("Done."))
    assert sum(coding.acted.values()) == MAX_NESTED_CALLS
    assert [error is None for error in errors(coding)] == [True] * MAX_NESTED_CALLS + [False] * 2
    assert len(nested(world)) == MAX_NESTED_CALLS


async def test_untrusted_content_taints_the_return_and_later_nested_calls() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    world, coding = coding_world(gate)
    change(coding, "reads", returns_from=WEB)
    coding.labels["reads"] = (WEB, ())
    await world.run(None, coded(world, ["acts", "keyed", "reads", "keyed", "acts"]), reply("Done."))

    assert [error is None for error in errors(coding)] == [True, True, True, True, False]
    assert str(errors(coding)[4]).startswith(NOT_APPROVED)
    seen = [batch.snapshot.taint for batch in coding.batches]
    assert seen == [(), (), (), (WEB,)]
    [code] = [part for m in world.recall.messages for part in m.tool_returns]
    assert code.taint == (WEB,)


async def test_code_before_a_gated_call_counts_as_tainting() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    for strangers in (False, True):
        world, coding = coding_world(gate)
        if strangers:
            change(coding, "reads", returns_from=MCP)
        sink = await world.run(None, coded(world, ["keyed"], "acts"), reply("Done."))
        wanted = StopReason.REQUIRES_APPROVAL if strangers else StopReason.END_TURN
        assert sink.outcome.stop_reason is wanted


@pytest.mark.parametrize(
    ("error", "words", "status"),
    [
        (lost(UnavailableError("gone")), "is unknown; it was not repeated", ToolStatus.UNKNOWN),
        (InvalidArgumentError("bad"), "could not be run: bad", ToolStatus.FAILED),
    ],
)
async def test_failed_nested_call_fails_only_itself(
    error: Exception, words: str, status: ToolStatus
) -> None:
    world, coding = coding_world()
    coding.error = error
    sink = await world.run(None, coded(world, ["acts"]), reply("Done."))
    assert words in str(errors(coding)[0])
    assert [call.status for call in nested(world)] == [status]
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_cancelled_turn_reports_its_nested_calls() -> None:
    world, coding = coding_world(tools=("acts", "blocks"))
    world.model.replies.append(coded(world, ["acts", "blocks", "acts"]))
    control = TurnControl()
    task = asyncio.create_task(Turn(world.ports, world.request(), Sink(), control).run())
    await coding.running.wait()
    control.cancelled = True
    task.cancel()
    await task

    assert coding.killed == 1
    assert [(call.name, call.status) for call in nested(world)] == [
        ("acts", ToolStatus.OK),
        ("blocks", ToolStatus.UNKNOWN),
    ]
    assert "By then its code had called: acts (OK), blocks (Unknown)." in return_messages(world)[0]
    assert_pairs_are_whole(world.recall.messages)


async def test_replaced_dispatch_starts_no_nested_call() -> None:
    world, coding = coding_world()
    request = world.request()

    def replace_it() -> None:
        attempt, record = world.journal.rows[request.run_id]
        world.journal.rows[request.run_id] = (attempt + 1, record)

    coding.on_call = replace_it
    with pytest.raises(Exception, match="stale"):
        await world.run(request, coded(world, ["acts", "acts"]))
    assert list(coding.acted.values()) == [1]


calls = st.lists(
    st.one_of(
        st.sampled_from(["keyed", "reads", "acts"]),
        st.lists(st.sampled_from(["keyed", "reads", "acts", "gone"]), max_size=4).map(tuple),
    ),
    max_size=3,
)
rule_sets = st.lists(
    st.one_of(
        st.builds(most, st.sampled_from(["keyed", "acts", CODE]), st.integers(1, 2)),
        st.builds(lambda name: child(name, "reads", CODE), st.sampled_from(["keyed", CODE])),
        st.builds(first, st.sampled_from(["keyed", CODE])),
        st.builds(required, st.just("reads")),
    ),
    max_size=2,
)


@settings(deadline=None, max_examples=150)
@given(rule_sets, st.lists(calls, min_size=1, max_size=3), st.lists(st.integers(0, 30), max_size=3))
async def test_no_crash_repeats_an_effect_or_breaks_a_rule(
    rules: list[ToolRule], script: list[list[str | tuple[str, ...]]], deaths: list[int]
) -> None:
    world, coding = coding_world(*rules)
    replies = [coded(world, *code_calls) if code_calls else reply("Bye.") for code_calls in script]
    await until_done_with(world, [*replies, reply("Bye."), reply("Bye.")], deaths)

    assert all(times == 1 for times in coding.acted.values())
    assert_pairs_are_whole(world.recall.messages)
    made, solver = calls_of(world.recall.messages), ToolRulesSolver(rules)
    names = ["keyed", "reads", "acts", CODE]
    if not solver.orders:
        counted = Counter(call.name for call in made)
        for rule in rules:
            assert counted[rule.tool_name] <= rule.max_count or not rule.max_count
        return
    for position, call in enumerate(made):
        assert call.name in solver.allowed(made[:position], names).names


@pytest.mark.parametrize("last", range(3, 20))
async def test_lost_code_is_not_run_again_and_its_nested_calls_are_reported(last: int) -> None:
    world, coding = coding_world()
    request = world.request()
    world.model.replies = [coded(world, ["acts", "acts"]), reply("Done.")]
    world.fate.last = last
    try:
        await world.run(request)
    except Died:
        world.fate.last = None
        committed = bool(world.recall.commits)
        journalled = request.run_id in world.journal.rows
        if not (committed or journalled):
            world.model.replies = [coded(world, ["acts", "acts"]), reply("Done.")]
        elif len(world.model.replies) == 0:
            world.model.replies = [reply("Done.")]
        await world.run(replace(request, attempt=2))

    assert all(times == 1 for times in coding.acted.values())
    [code] = [part for m in world.recall.messages for part in m.tool_returns]
    acted = {key.rpartition("/1/")[2] for key in coding.acted}
    assert acted <= {call.id for call in code.nested} | set()
    if code.status is ToolStatus.UNKNOWN and code.nested:
        assert "By then its code had called: acts (" in return_messages(world)[0]
    for call in code.nested:
        assert call.status is ToolStatus.UNKNOWN or call.id in acted
