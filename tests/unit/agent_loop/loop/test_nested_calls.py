"""Nested calls of code: the same rules and journal as other calls, and no repeated effects."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import durability_examples
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
from unit.agent_loop.loop.coding import CODE, CodingTools, coded, coding_harness, errors, nested
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import lost, reply
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
    harness, coding = coding_harness(tools=("keyed", "acts", "edits", "files"))
    request = harness.request()
    script = coded(harness, ["keyed", "acts", "edits", "files"]), reply("Done.")
    sink = await harness.run(request, *script)

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert [json.loads(answer.value_json) for answer in coding.answers] == [
        "did keyed",
        "did acts",
        "did edits",
        "did files",
    ]
    made = nested(harness)
    assert [(call.id, call.name, call.status) for call in made] == [
        ("call_1/1", "keyed", ToolStatus.OK),
        ("call_1/2", "acts", ToolStatus.OK),
        ("call_1/3", "edits", ToolStatus.OK),
        ("call_1/4", "files", ToolStatus.OK),
    ]
    prefix = f"{request.run_id}/1/call_1"
    assert {f"{prefix}/{number}" for number in range(1, 5)} <= coding.keys
    record = harness.journal.rows[request.run_id][1]
    assert record is not None
    assert [record.call.id for record in record.nested] == [call.id for call in made]
    assert all(record.result is not None for record in record.nested)
    # The window has only the model's call and its return; the prompt shows the memory that the code
    # edited.
    assert [m.role.value for m in harness.recall.messages[2:]] == ["assistant", "tool", "assistant"]
    assert_pairs_are_whole(harness.recall.messages)
    assert harness.memory.compiled == 2
    assert harness.recall.commits[0].metadata_stale is True


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
    harness, coding = coding_harness(*rules)
    before = ["acts"] if rules and rules[0].type is ToolRuleType.MAX_COUNT_PER_STEP else []
    sink = await harness.run(None, coded(harness, [*before, name, "reads"]), reply("Done."))

    code_errors = errors(coding)[len(before) :]
    assert code_errors[0] is not None
    assert code_errors[0].startswith(why)
    assert code_errors[1] is None
    assert sum(coding.acted.values()) == len(before)
    assert [call.refused for call in nested(harness)] == [*(False for _ in before), True, False]
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_code_cannot_call_a_tool_that_needs_approval() -> None:
    harness, coding = coding_harness()
    change(coding, "acts", requires_approval=True)
    await harness.run(None, coded(harness, ["acts"]), reply("Done."))
    assert str(errors(coding)[0]).startswith(NOT_APPROVED)
    assert not coding.acted


async def test_nested_calls_count_for_later_rules() -> None:
    harness, coding = coding_harness(most("acts", 2), required("keyed"))
    script = coded(harness, ["acts", "keyed"]), coded(harness, ["acts", "acts"]), reply("Done.")
    await harness.run(None, *script, harness.calls("acts"), reply("Done."))

    assert [error is None for error in errors(coding)] == [True, True, True, False]
    assert sum(coding.acted.values()) == 2
    assert not [message for message in harness.recall.messages if message.hidden]


async def test_calls_beside_the_code_count_before_nested_calls() -> None:
    harness, coding = coding_harness(most("acts", 1))
    await harness.run(None, coded(harness, ["acts"], "acts"), reply("Done."))
    assert str(errors(coding)[0]).startswith(CONSTRAINT)
    assert list(coding.acted.values()) == [1]


async def test_rules_of_order_apply_between_nested_calls() -> None:
    harness, coding = coding_harness(first(CODE), child("keyed", "reads"))
    await harness.run(None, coded(harness, ["acts", "keyed", "acts", "reads"]), reply("Done."))
    assert [error is None for error in errors(coding)] == [True, True, False, True]


async def test_number_of_nested_calls_is_limited() -> None:
    harness, coding = coding_harness()
    await harness.run(None, coded(harness, ["acts"] * (MAX_NESTED_CALLS + 2)), reply("Done."))
    assert sum(coding.acted.values()) == MAX_NESTED_CALLS
    assert [error is None for error in errors(coding)] == [True] * MAX_NESTED_CALLS + [False] * 2
    assert len(nested(harness)) == MAX_NESTED_CALLS


async def test_untrusted_content_taints_the_return_and_later_nested_calls() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    harness, coding = coding_harness(gate)
    change(coding, "reads", returns_from=WEB)
    coding.labels["reads"] = (WEB, ())
    await harness.run(
        None, coded(harness, ["acts", "keyed", "reads", "keyed", "acts"]), reply("Done.")
    )

    assert [error is None for error in errors(coding)] == [True, True, True, True, False]
    assert str(errors(coding)[4]).startswith(NOT_APPROVED)
    seen = [batch.snapshot.taint for batch in coding.batches]
    assert seen == [(), (), (), (WEB,)]
    [code] = [part for m in harness.recall.messages for part in m.tool_returns]
    assert code.taint == (WEB,)


async def test_code_before_a_gated_call_counts_as_tainting() -> None:
    gate = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True)
    for strangers in (False, True):
        harness, coding = coding_harness(gate)
        if strangers:
            change(coding, "reads", returns_from=MCP)
        sink = await harness.run(None, coded(harness, ["keyed"], "acts"), reply("Done."))
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
    harness, coding = coding_harness()
    coding.error = error
    sink = await harness.run(None, coded(harness, ["acts"]), reply("Done."))
    assert words in str(errors(coding)[0])
    assert [call.status for call in nested(harness)] == [status]
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_cancelled_turn_reports_its_nested_calls() -> None:
    harness, coding = coding_harness(tools=("acts", "blocks"))
    harness.model.replies.append(coded(harness, ["acts", "blocks", "acts"]))
    control = TurnControl()
    task = asyncio.create_task(Turn(harness.ports, harness.request(), Sink(), control).run())
    await coding.running.wait()
    control.cancelled = True
    task.cancel()
    await task

    assert coding.killed == 1
    assert [(call.name, call.status) for call in nested(harness)] == [
        ("acts", ToolStatus.OK),
        ("blocks", ToolStatus.UNKNOWN),
    ]
    assert (
        "By then its code had called: acts (OK), blocks (Unknown)." in return_messages(harness)[0]
    )
    assert_pairs_are_whole(harness.recall.messages)


async def test_a_replaced_attempt_starts_no_nested_call() -> None:
    harness, coding = coding_harness()
    request = harness.request()

    def replace_it() -> None:
        attempt, record = harness.journal.rows[request.run_id]
        harness.journal.rows[request.run_id] = (attempt + 1, record)

    coding.on_call = replace_it
    with pytest.raises(Exception, match="stale"):
        await harness.run(request, coded(harness, ["acts", "acts"]))
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


@durability_examples
@given(rule_sets, st.lists(calls, min_size=1, max_size=3), st.lists(st.integers(0, 30), max_size=3))
async def test_after_any_crash_no_effect_is_repeated_and_every_rule_holds(
    rules: list[ToolRule], script: list[list[str | tuple[str, ...]]], deaths: list[int]
) -> None:
    harness, coding = coding_harness(*rules)
    replies = [
        coded(harness, *code_calls) if code_calls else reply("Bye.") for code_calls in script
    ]
    await until_done_with(harness, [*replies, reply("Bye."), reply("Bye.")], deaths)

    assert all(times == 1 for times in coding.acted.values())
    assert_pairs_are_whole(harness.recall.messages)
    made, solver = calls_of(harness.recall.messages), ToolRulesSolver(rules)
    names = ["keyed", "reads", "acts", CODE]
    if not solver.orders:
        counted = Counter(call.name for call in made)
        for rule in rules:
            assert counted[rule.tool_name] <= rule.max_count or not rule.max_count
        return
    for position, call in enumerate(made):
        assert call.name in solver.allowed(made[:position], names).names


@pytest.mark.parametrize("last", range(3, 20))
async def test_interrupted_code_is_not_run_again_and_its_nested_calls_are_reported(
    last: int,
) -> None:
    harness, coding = coding_harness()
    request = harness.request()
    harness.model.replies = [coded(harness, ["acts", "acts"]), reply("Done.")]
    harness.fate.last = last
    try:
        await harness.run(request)
    except Died:
        harness.fate.last = None
        committed = bool(harness.recall.commits)
        journalled = request.run_id in harness.journal.rows
        if not (committed or journalled):
            harness.model.replies = [coded(harness, ["acts", "acts"]), reply("Done.")]
        elif len(harness.model.replies) == 0:
            harness.model.replies = [reply("Done.")]
        await harness.run(replace(request, attempt=2))

    assert all(times == 1 for times in coding.acted.values())
    [code] = [part for m in harness.recall.messages for part in m.tool_returns]
    acted = {key.rpartition("/1/")[2] for key in coding.acted}
    assert acted <= {call.id for call in code.nested} | set()
    if code.status is ToolStatus.UNKNOWN and code.nested:
        assert "By then its code had called: acts (" in return_messages(harness)[0]
    for call in code.nested:
        assert call.status is ToolStatus.UNKNOWN or call.id in acted
