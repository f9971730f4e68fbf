"""Rules that require approval only if the context holds untrusted content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.approvals import Decision
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.run.events import StepStarted
from strata.agent_loop.domain.tools import ToolSet
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.gated import acts, answer, asked, no, with_answer, yes
from unit.agent_loop.loop.in_memory_ports import LoopWorld, Sink, reply
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.ruled import return_messages, rule

WEB, MCP = Provenance.WEB, Provenance.MCP
GATE = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True, timeout_s=60)
WAITS = StopReason.REQUIRES_APPROVAL


def careful_world(*more: ToolRule, foreseen: bool = True) -> LoopWorld:
    """`reads` returns web pages, `keyed` a memory, `acts` must not be called under taint.

    Args:
        more: Other rules.
        foreseen: Whether the registry says what `reads` returns.
    """
    world = LoopWorld()
    rule(world, GATE, *more, tools=("keyed", "reads", "acts", "edits"))
    world.tools.labels = {"reads": (WEB, ()), "keyed": (Provenance.MEMORY, (MCP,))}
    if foreseen:
        tools = (
            replace(tool, returns_from=WEB if tool.name == "reads" else None)
            for tool in world.tools.toolset.tools
        )
        world.tools.toolset = ToolSet(tuple(tools))
    return world


def taints(sink: Sink) -> list[tuple[Provenance, ...]]:
    return [event.taint for event in sink.of(StepStarted)]


def labels(world: LoopWorld) -> list[tuple[Provenance, ...]]:
    return [message.provenance for message in world.recall.messages[1:]]


async def test_without_untrusted_content_the_call_runs() -> None:
    world = careful_world()
    sink = await world.run(None, world.calls("acts"), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert (taints(sink), sink.outcome.taint) == ([(), ()], ())
    assert return_messages(world) == ["did acts"]


async def test_after_a_page_was_read_the_call_waits_and_names_the_source() -> None:
    world = careful_world()
    sink = await world.run(None, world.calls("reads"), world.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert (taints(sink), sink.outcome.taint) == ([(), (WEB,)], (WEB,))
    user, model, web = Provenance.USER, Provenance.MODEL, Provenance.WEB
    assert labels(world) == [(user,), (model,), (web,), (model, web)]
    request = asked(world)
    page = world.recall.messages[3]
    assert request.taint == (TaintSource(WEB, page.id, "reads", page.tool_returns[0].tool_call_id),)
    assert request.expire_time is not None
    assert (request.expire_time - world.clock.now()).total_seconds() == 60
    assert not acts(world)

    sink = await world.run(with_answer(world, yes(request)), reply("Done."))
    assert sum(acts(world).values()) == 1
    assert labels(world)[-1] == (model, WEB)


async def test_the_next_turn_is_tainted_by_what_is_still_in_the_window() -> None:
    world = careful_world()
    await world.run(None, world.calls("reads"), reply("Read."))
    sink = await world.run(world.request("Now act."), world.calls("acts"))
    assert (sink.outcome.stop_reason, taints(sink)) == (WAITS, [(WEB,)])


async def test_memory_that_was_read_taints() -> None:
    world = careful_world()
    await world.run(None, world.calls("keyed"), world.calls("acts"))
    assert [(source.label, source.tool_name) for source in asked(world).taint] == [(MCP, "keyed")]
    assert world.recall.messages[3].provenance == (Provenance.MEMORY, MCP)


async def test_memory_that_is_shown_taints_until_its_mark_is_gone() -> None:
    world = careful_world()
    world.memory.taint = {"human": (WEB,)}
    await world.run(None, world.calls("acts"))
    assert asked(world).taint == (TaintSource(WEB, block_label="human"),)
    await world.run(with_answer(world, no(asked(world))), reply("Well."))
    # What was written under it stays in the window, and what was written there is marked.
    world.memory.taint = {}
    sink = await world.run(world.request("Again."), world.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert {source.label for source in asked(world).taint} == {WEB}


async def test_a_page_that_is_fetched_in_the_same_reply_gates_what_follows_it() -> None:
    world = careful_world()
    sink = await world.run(None, world.calls("reads", "acts"))
    assert sink.outcome.stop_reason is WAITS
    [gated], [waiting] = asked(world).tool_calls, asked(world).waiting_calls
    assert (gated.name, waiting.name) == ("acts", "reads")
    assert asked(world).taint == (TaintSource(WEB, tool_name="reads", tool_call_id=waiting.id),)
    await world.run(with_answer(world, yes(asked(world))), reply("Done."))
    assert return_messages(world) == ["did reads", "did acts"]


async def test_a_page_that_is_fetched_after_the_call_does_not_gate_it() -> None:
    world = careful_world()
    await world.run(None, world.calls("acts", "reads"), reply("Done."))
    assert return_messages(world) == ["did acts", "did reads"]


async def test_memory_read_in_the_same_reply_does_not_gate_the_reply() -> None:
    world = careful_world()
    await world.run(None, world.calls("keyed", "acts"), reply("Done."))
    assert return_messages(world) == ["did keyed", "did acts"]


async def test_calls_that_run_in_turn_see_what_the_ones_before_them_read() -> None:
    world = careful_world(ToolRule(ToolRuleType.RUN_FIRST, "keyed"))
    await world.run(None, world.calls("keyed", "acts"), reply("Oh."))
    first, second = return_messages(world)
    assert first == "did keyed"
    assert "was not run. Call it alone." in second
    assert not acts(world)


async def test_unconditional_approval_rule_applies_without_taint() -> None:
    world = careful_world(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", timeout_s=90))
    await world.run(None, world.calls("acts"))
    request = asked(world)
    assert request.taint == ()
    assert request.expire_time is not None
    assert (request.expire_time - world.clock.now()).total_seconds() == 90


async def test_a_summary_is_as_tainted_as_what_it_stands_for() -> None:
    world = careful_world()
    world.model.on_summary = lambda _request: reply("- They read a page.")
    await world.run(None, world.calls("reads"), reply("Read."))
    world.models.settings = replace(world.models.settings, context_window=4_000)
    for number in range(6):
        await world.run(world.request(f"{number} " + "y" * 2_500), reply("x" * 2_500))
    summaries = [m for m in world.recall.messages if m.role is MessageRole.SUMMARY]
    assert [m.provenance for m in summaries] == [(Provenance.SYSTEM, WEB)]
    assert not any(m.tool_returns for m in world.recall.messages)
    sink = await world.run(world.request("Act."), world.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    [summary] = [m for m in world.recall.messages if m.role is MessageRole.SUMMARY]
    assert asked(world).taint[0] == TaintSource(WEB, summary.id)


async def test_a_summary_of_clean_messages_is_clean() -> None:
    world = LoopWorld(window_tokens=4_000)
    for number in range(6):
        await world.run(world.request(f"{number} " + "y" * 2_500), reply("x" * 2_500))
    summaries = [m for m in world.recall.messages if m.role is MessageRole.SUMMARY]
    assert [m.provenance for m in summaries] == [(Provenance.SYSTEM,)]


async def test_tools_get_the_taint_of_the_context() -> None:
    world = careful_world()
    await world.run(None, world.calls("reads", "edits"), world.calls("edits"), reply("Noted."))
    assert [batch.snapshot.taint for batch in world.tools.batches] == [(), (WEB,)]


async def test_client_return_for_a_web_tool_is_untrusted() -> None:
    world = careful_world(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "reads"))
    await world.run(None, world.calls("reads"))
    [call] = asked(world).tool_calls
    response = answer(asked(world), Decision(call.id, client_return="<p>Obey</p>"))
    sink = await world.run(with_answer(world, response), world.calls("acts"))
    assert sink.outcome.stop_reason is WAITS


@pytest.mark.parametrize("last", range(1, 16))
async def test_resumed_reply_is_judged_by_the_taint_it_was_made_under(
    last: int,
) -> None:
    """The mark of a shared block may be taken off between two dispatches."""
    world = careful_world()
    world.memory.taint = {"human": (WEB,)}
    world.fate.last = last
    request = world.request("Go.")
    sink = Sink()
    try:
        sink = await world.run(request, world.calls("edits"), world.calls("acts"))
    except Died:
        world.fate.last = None
        _, journalled = world.journal.rows.get(request.run_id, (0, None))
        if journalled is not None:
            world.memory.taint = {}
        sink = await world.run(replace(request, attempt=2), world.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert not acts(world)
    assert {batch.snapshot.taint for batch in world.tools.batches} <= {(WEB,)}


async def test_approved_call_has_the_taint_of_its_request() -> None:
    world = careful_world(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "edits"))
    await world.run(None, world.calls("reads"), world.calls("edits"))
    kept = [m for m in world.recall.messages if not m.tool_returns and not m.tool_calls]
    world.recall.messages = kept  # As if the page had left the window meanwhile.
    await world.run(with_answer(world, yes(asked(world))), reply("Noted."))
    assert world.tools.batches[-1].snapshot.taint == (WEB,)
    returned: Message = world.recall.messages[-2]
    assert returned.tool_returns[0].status is ToolStatus.OK
