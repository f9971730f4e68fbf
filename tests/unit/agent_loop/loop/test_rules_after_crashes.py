"""A resumed turn with tool rules makes the same decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.model.chat import ModelReply
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import ToolBatch
from strata.agent_loop.rules.history import calls_of
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from unit.agent_loop.loop.in_memory_ports import LoopWorld, assert_pairs_are_whole, reply
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.ruled import (
    child,
    conditional,
    first,
    heartbeats,
    leaves,
    most,
    parent,
    ran,
    required,
    return_messages,
    rule,
    until_done,
    world_with,
)


def described_conversation(world: LoopWorld) -> list[tuple[str, str, str, str]]:
    """What a conversation looks like, but for ids, times and lost outcomes."""
    described = []
    for message in world.recall.messages[1:]:
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
        # An outcome that was lost reads otherwise, which a condition may look at.
        st.builds(lambda name, to: conditional(name, {f"did {name}": to}), st.just("reads"), names),
    ),
    min_size=1,
    max_size=4,
)
scripts = st.lists(st.lists(names, max_size=4), min_size=1, max_size=4)


def distinct(made: ModelReply, number: int) -> ModelReply:
    """The reply with arguments of its own: a lost outcome is no repetition, a known one may be."""
    calls = (replace(call, arguments=f'{{"n": {number}}}') for call in made.tool_calls)
    return replace(made, tool_calls=tuple(calls))


@settings(deadline=None, max_examples=200)
@given(rule_sets, scripts, st.lists(st.integers(0, 25), min_size=1, max_size=3))
async def test_turn_decides_the_same_after_any_crash(
    rule_set: list[ToolRule], script: list[list[str]], deaths: list[int]
) -> None:
    outcomes = []
    for planned in ((), deaths):
        world = world_with(*rule_set)
        replies = [
            distinct(world.calls(*calls), number) if calls else reply("Bye.")
            for number, calls in enumerate(script)
        ]
        replies += [reply("Bye.")] * 2
        sink = await until_done(world, replies, planned)
        outcomes.append(
            (sink.outcome.stop_reason, sink.outcome.step_count, described_conversation(world))
        )
        assert_pairs_are_whole(world.recall.messages)
        assert all(times == 1 for times in world.tools.acted.values())
        made, solver = calls_of(world.recall.messages), ToolRulesSolver(rule_set)
        for position, call in enumerate(made):
            assert call.name in solver.allowed(made[:position], NAMES).names
    assert outcomes[0] == outcomes[1]


async def test_reply_is_judged_by_the_rules_that_it_was_made_under() -> None:
    world = world_with(first("keyed"), child("keyed", "reads"))
    request = world.request()
    world.model.replies = [world.calls("keyed", "acts"), reply("Done.")]
    seen: list[ToolBatch] = world.tools.batches

    def die() -> None:
        raise Died

    world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(request)
    assert len(seen) == 1
    world.tools.on_call = lambda: None
    rule(world, tools=("keyed", "reads", "acts"))
    await world.run(replace(request, attempt=2))

    assert ran(world)[1:] == [["keyed"]]
    assert "Cannot call acts" in return_messages(world)[1]


async def test_call_that_was_never_started_runs_after_a_crash() -> None:
    """In turn, what comes after a call that did not end was not begun: its outcome is known."""
    world = world_with(child("keyed", "acts"))
    request: RunRequest = world.request()
    world.model.replies = [world.calls("keyed", "acts"), reply("Done.")]

    def die() -> None:
        raise Died

    world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(request)
    world.tools.on_call = lambda: None
    await world.run(replace(request, attempt=2))

    assert ran(world) == [["keyed"], ["keyed"], ["acts"]]
    assert list(world.tools.acted.values()) == [1]
    statuses = [part.status for part in world.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.OK]


async def test_call_that_may_have_acted_is_not_run_again_in_turn() -> None:
    """What it was allowed by is in the ledger before it starts."""
    world = world_with(child("reads", "acts"))
    request: RunRequest = world.request()
    world.model.replies = [world.calls("reads", "acts"), reply("Done.")]

    def die() -> None:
        if world.tools.acted:
            raise Died

    world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(request)
    world.tools.on_call = lambda: None
    await world.run(replace(request, attempt=2))

    assert ran(world) == [["reads"], ["acts"]]
    assert list(world.tools.acted.values()) == [1]
    statuses = [part.status for part in world.recall.messages[3].tool_returns]
    assert statuses == [ToolStatus.OK, ToolStatus.UNKNOWN]


async def test_resumed_turn_shows_nobody_its_heartbeats() -> None:
    world = world_with(required("keyed"))
    request = world.request()
    world.model.replies = [reply("Bye."), world.calls("keyed"), reply("Bye.")]

    def die() -> None:
        raise Died

    world.tools.on_call = die
    with pytest.raises(Died):
        await world.run(request)
    world.tools.on_call = lambda: None
    sink = await world.run(replace(request, attempt=2))

    assert len(heartbeats(world)) == 1
    assert [message.role.value for message in sink.stored] == [
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
