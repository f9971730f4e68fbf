"""A resumed turn with tool rules makes the same decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import durability_examples
from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.model.chat import ModelReply
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import ToolBatch
from strata.agent_loop.rules.history import calls_of
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import (
    child,
    conditional,
    first,
    harness_with,
    heartbeats,
    leaves,
    most,
    parent,
    ran,
    required,
    return_messages,
    rule,
    until_done,
)


def described_conversation(harness: LoopHarness) -> list[tuple[str, str, str, str]]:
    """Describes a conversation without ids, times and lost outcomes."""
    described = []
    for message in harness.recall.messages[1:]:
        returns = [
            (
                tool_return.name,
                "ran" if tool_return.provenance is not Provenance.SYSTEM else "refused",
            )
            if tool_return.status is not ToolStatus.UNKNOWN
            else (tool_return.name, "ran")
            for tool_return in message.tool_returns
        ]
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        described.append((message.role.value, str(message.hidden), repr(returns), repr(calls)))
    return described


NAMES = ("keyed", "reads", "acts")
names = st.sampled_from(NAMES)
some = st.lists(names, min_size=1, max_size=2, unique=True)
rule_sets = st.lists(
    st.one_of(
        st.builds(first, names),
        st.builds(lambda name, more: child(name, *more), names, some),
        st.builds(lambda name, more: parent(name, *more), names, some),
        st.builds(most, names, st.integers(1, 2)),
        st.builds(required, names),
        st.builds(leaves, st.sampled_from(["keyed", "reads"])),
        # A lost outcome has another text, which a condition may test.
        st.builds(lambda name, to: conditional(name, {f"did {name}": to}), st.just("reads"), names),
    ),
    min_size=1,
    max_size=4,
)
scripts = st.lists(st.lists(names, max_size=4), min_size=1, max_size=4)


def distinct(made: ModelReply, number: int) -> ModelReply:
    """Returns the reply with unique arguments, so that no call counts as a repetition."""
    calls = (replace(call, arguments=f'{{"n": {number}}}') for call in made.tool_calls)
    return replace(made, tool_calls=tuple(calls))


@durability_examples
@given(rule_sets, scripts, st.lists(st.integers(0, 25), min_size=1, max_size=3))
async def test_turn_decides_the_same_after_any_crash(
    rule_set: list[ToolRule], script: list[list[str]], deaths: list[int]
) -> None:
    outcomes = []
    for planned in ((), deaths):
        harness = harness_with(*rule_set)
        replies = [
            distinct(harness.calls(*calls), number) if calls else reply("Bye.")
            for number, calls in enumerate(script)
        ]
        replies += [reply("Bye.")] * 2
        sink = await until_done(harness, replies, planned)
        outcomes.append(
            (sink.outcome.stop_reason, sink.outcome.step_count, described_conversation(harness))
        )
        assert_pairs_are_whole(harness.recall.messages)
        assert all(times == 1 for times in harness.tools.acted.values())
        made, solver = calls_of(harness.recall.messages), ToolRulesSolver(rule_set)
        for position, call in enumerate(made):
            assert call.name in solver.allowed(made[:position], NAMES).names
    assert outcomes[0] == outcomes[1]


async def test_a_resumed_reply_is_checked_by_the_rules_that_were_stored_with_it() -> None:
    harness = harness_with(first("keyed"), child("keyed", "reads"))
    request = harness.request()
    harness.model.replies = [harness.calls("keyed", "acts"), reply("Done.")]
    seen: list[ToolBatch] = harness.tools.batches

    def die() -> None:
        raise Died

    harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(request)
    assert len(seen) == 1
    harness.tools.on_call = lambda: None
    rule(harness, tools=("keyed", "reads", "acts"))
    await harness.run(replace(request, attempt=2))

    assert ran(harness)[1:] == [["keyed"]]
    assert "Cannot call acts" in return_messages(harness)[1]


async def test_call_that_was_never_started_runs_after_a_crash() -> None:
    """Serial calls after an unfinished one were not started: their outcome is known."""
    harness = harness_with(child("keyed", "acts"))
    request: RunRequest = harness.request()
    harness.model.replies = [harness.calls("keyed", "acts"), reply("Done.")]

    def die() -> None:
        raise Died

    harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(request)
    harness.tools.on_call = lambda: None
    await harness.run(replace(request, attempt=2))

    assert ran(harness) == [["keyed"], ["keyed"], ["acts"]]
    assert list(harness.tools.acted.values()) == [1]
    statuses = [part.status for part in harness.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.OK]


async def test_a_call_that_may_have_had_an_effect_is_not_run_again() -> None:
    """The results that allowed the call are in the ledger before it starts."""
    harness = harness_with(child("reads", "acts"))
    request: RunRequest = harness.request()
    harness.model.replies = [harness.calls("reads", "acts"), reply("Done.")]

    def die() -> None:
        if harness.tools.acted:
            raise Died

    harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(request)
    harness.tools.on_call = lambda: None
    await harness.run(replace(request, attempt=2))

    assert ran(harness) == [["reads"], ["acts"]]
    assert list(harness.tools.acted.values()) == [1]
    statuses = [part.status for part in harness.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.UNKNOWN]


async def test_a_resumed_turn_does_not_stream_its_stored_heartbeats() -> None:
    harness = harness_with(required("keyed"))
    request = harness.request()
    harness.model.replies = [reply("Bye."), harness.calls("keyed"), reply("Bye.")]

    def die() -> None:
        raise Died

    harness.tools.on_call = die
    with pytest.raises(Died):
        await harness.run(request)
    harness.tools.on_call = lambda: None
    sink = await harness.run(replace(request, attempt=2))

    assert len(heartbeats(harness)) == 1
    assert [message.role.value for message in sink.stored] == [
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
