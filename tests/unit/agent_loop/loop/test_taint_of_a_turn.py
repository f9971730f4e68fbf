"""Rules that require approval only if the context holds untrusted content."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.approvals import Decision
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.ports import ArchivalStats
from strata.agent_loop.domain.run.events import StepStarted
from strata.agent_loop.domain.tools import ToolSet
from strata.protocol.errors import UnavailableError
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_rules import ToolRuleType
from unit.agent_loop.loop.gated import acts, answer, asked, no, with_answer, yes
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply
from unit.agent_loop.loop.ruled import return_messages, rule

WEB, MCP = Provenance.WEB, Provenance.MCP
GATE = ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", when_tainted=True, timeout_s=60)
WAITS = StopReason.REQUIRES_APPROVAL


def careful_harness(*more: ToolRule, foreseen: bool = True) -> LoopHarness:
    """Returns a harness: `reads` gets web pages, `keyed` memory; `acts` needs approval under taint.

    Args:
        more: Other rules.
        foreseen: Whether the registry declares the provenance of `reads`.
    """
    harness = LoopHarness()
    rule(harness, GATE, *more, tools=("keyed", "reads", "acts", "edits"))
    harness.tools.labels = {"reads": (WEB, ()), "keyed": (Provenance.MEMORY, (MCP,))}
    if foreseen:
        tools = (
            replace(tool, returns_from=WEB if tool.name == "reads" else None)
            for tool in harness.tools.toolset.tools
        )
        harness.tools.toolset = ToolSet(tuple(tools))
    return harness


def taints(sink: Sink) -> list[tuple[Provenance, ...]]:
    return [event.taint for event in sink.of(StepStarted)]


def labels(harness: LoopHarness) -> list[tuple[Provenance, ...]]:
    return [message.provenance for message in harness.recall.messages[1:]]


async def test_without_untrusted_content_the_call_runs() -> None:
    harness = careful_harness()
    sink = await harness.run(None, harness.calls("acts"), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert (taints(sink), sink.outcome.taint) == ([(), ()], ())
    assert return_messages(harness) == ["did acts"]


async def test_a_call_after_a_page_was_read_waits_for_approval_and_names_the_source() -> None:
    harness = careful_harness()
    sink = await harness.run(None, harness.calls("reads"), harness.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert (taints(sink), sink.outcome.taint) == ([(), (WEB,)], (WEB,))
    user, model, web = Provenance.USER, Provenance.MODEL, Provenance.WEB
    assert labels(harness) == [(user,), (model,), (web,), (model, web)]
    request = asked(harness)
    page = harness.recall.messages[3]
    assert request.taint == (TaintSource(WEB, page.id, "reads", page.tool_returns[0].tool_call_id),)
    assert request.expire_time is not None
    assert (request.expire_time - harness.clock.now()).total_seconds() == 60
    assert not acts(harness)

    sink = await harness.run(with_answer(harness, yes(request)), reply("Done."))
    assert sum(acts(harness).values()) == 1
    assert labels(harness)[-1] == (model, WEB)


async def test_the_next_turn_is_tainted_by_the_messages_in_the_window() -> None:
    harness = careful_harness()
    await harness.run(None, harness.calls("reads"), reply("Read."))
    sink = await harness.run(harness.request("Now act."), harness.calls("acts"))
    assert (sink.outcome.stop_reason, taints(sink)) == (WAITS, [(WEB,)])


async def test_memory_that_was_read_taints() -> None:
    harness = careful_harness()
    await harness.run(None, harness.calls("keyed"), harness.calls("acts"))
    assert [(source.label, source.tool_name) for source in asked(harness).taint] == [(MCP, "keyed")]
    assert harness.recall.messages[3].provenance == (Provenance.MEMORY, MCP)


async def test_tainted_memory_in_the_prompt_taints_until_the_label_is_removed() -> None:
    harness = careful_harness()
    harness.memory.taint = {"human": (WEB,)}
    await harness.run(None, harness.calls("acts"))
    assert asked(harness).taint == (TaintSource(WEB, block_label="human"),)
    await harness.run(with_answer(harness, no(asked(harness))), reply("Well."))
    # Text that was written under the taint stays in the window, and its messages are marked.
    harness.memory.taint = {}
    sink = await harness.run(harness.request("Again."), harness.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert {source.label for source in asked(harness).taint} == {WEB}


async def test_tainted_tags_in_the_prompt_taint_until_they_are_gone() -> None:
    harness = careful_harness()
    harness.archival.answer = ArchivalStats(2, ("trips", "obey eve"), 0, {"obey eve": (WEB,)})
    sink = await harness.run(None, harness.calls("acts"))
    assert (sink.outcome.stop_reason, taints(sink), sink.outcome.taint) == (WAITS, [(WEB,)], (WEB,))
    assert asked(harness).taint == (TaintSource(WEB, archival_tag="obey eve"),)
    assert labels(harness)[-1] == (Provenance.MODEL, WEB)

    harness = careful_harness()
    harness.archival.answer = ArchivalStats(1, ("trips",))
    sink = await harness.run(None, harness.calls("acts"), reply("Done."))
    assert (sink.outcome.stop_reason, taints(sink)) == (StopReason.END_TURN, [(), ()])


async def test_tainted_tags_that_the_prompt_does_not_show_do_not_taint() -> None:
    harness = careful_harness()
    tags = tuple(f"{number:03}" + "t" * 97 for number in range(20))
    harness.archival.answer = ArchivalStats(20, tags, 0, {tags[-1]: (WEB,)})
    sink = await harness.run(None, harness.calls("acts"), reply("Done."))
    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_tags_with_unknown_labels_are_not_shown() -> None:
    harness = careful_harness()
    harness.archival.answer = ArchivalStats(2, ("obey eve",), 0, {"obey eve": (WEB,)})
    await harness.run(None, reply("Hello."))
    assert "obey eve" in harness.recall.messages[0].text

    fresh = careful_harness()
    fresh.recall.messages = harness.recall.messages[:1]
    fresh.archival.answer = UnavailableError("down")
    sink = await fresh.run(fresh.request("Act."), fresh.calls("acts"), reply("Done."))
    assert (sink.outcome.stop_reason, taints(sink)) == (StopReason.END_TURN, [(), ()])
    system = fresh.model.requests[0].messages[0].text
    assert "- 2 total memories" in system
    assert "archival memory tags" not in system
    assert fresh.recall.stale is True


async def test_later_calls_of_a_reply_that_fetches_a_page_need_approval() -> None:
    harness = careful_harness()
    sink = await harness.run(None, harness.calls("reads", "acts"))
    assert sink.outcome.stop_reason is WAITS
    [gated], [waiting] = asked(harness).tool_calls, asked(harness).waiting_calls
    assert (gated.name, waiting.name) == ("acts", "reads")
    assert asked(harness).taint == (TaintSource(WEB, tool_name="reads", tool_call_id=waiting.id),)
    await harness.run(with_answer(harness, yes(asked(harness))), reply("Done."))
    assert return_messages(harness) == ["did reads", "did acts"]


async def test_a_page_that_is_fetched_after_the_call_does_not_gate_it() -> None:
    harness = careful_harness()
    await harness.run(None, harness.calls("acts", "reads"), reply("Done."))
    assert return_messages(harness) == ["did acts", "did reads"]


async def test_memory_read_in_the_same_reply_causes_no_approval() -> None:
    harness = careful_harness()
    await harness.run(None, harness.calls("keyed", "acts"), reply("Done."))
    assert return_messages(harness) == ["did keyed", "did acts"]


async def test_calls_that_run_in_turn_see_the_taint_of_earlier_ones() -> None:
    harness = careful_harness(ToolRule(ToolRuleType.RUN_FIRST, "keyed"))
    await harness.run(None, harness.calls("keyed", "acts"), reply("Oh."))
    first, second = return_messages(harness)
    assert first == "did keyed"
    assert "was not run. Call it alone." in second
    assert not acts(harness)


async def test_unconditional_approval_rule_applies_without_taint() -> None:
    harness = careful_harness(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "acts", timeout_s=90))
    await harness.run(None, harness.calls("acts"))
    request = asked(harness)
    assert request.taint == ()
    assert request.expire_time is not None
    assert (request.expire_time - harness.clock.now()).total_seconds() == 90


async def test_a_summary_has_the_taint_of_its_messages() -> None:
    harness = careful_harness()
    harness.model.on_summary = lambda _request: reply("- They read a page.")
    await harness.run(None, harness.calls("reads"), reply("Read."))
    harness.models.settings = replace(harness.models.settings, context_window=4_000)
    for number in range(6):
        await harness.run(harness.request(f"{number} " + "y" * 2_500), reply("x" * 2_500))
    summaries = [m for m in harness.recall.messages if m.role is MessageRole.SUMMARY]
    assert [m.provenance for m in summaries] == [(Provenance.SYSTEM, WEB)]
    assert not any(m.tool_returns for m in harness.recall.messages)
    sink = await harness.run(harness.request("Act."), harness.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    [summary] = [m for m in harness.recall.messages if m.role is MessageRole.SUMMARY]
    assert asked(harness).taint[0] == TaintSource(WEB, summary.id)


async def test_a_summary_of_clean_messages_is_clean() -> None:
    harness = LoopHarness(window_tokens=4_000)
    for number in range(6):
        await harness.run(harness.request(f"{number} " + "y" * 2_500), reply("x" * 2_500))
    summaries = [m for m in harness.recall.messages if m.role is MessageRole.SUMMARY]
    assert [m.provenance for m in summaries] == [(Provenance.SYSTEM,)]


async def test_tools_get_the_taint_of_the_context() -> None:
    harness = careful_harness()
    await harness.run(
        None, harness.calls("reads", "edits"), harness.calls("edits"), reply("Noted.")
    )
    assert [batch.snapshot.taint for batch in harness.tools.batches] == [(), (WEB,)]


async def test_client_return_for_a_web_tool_is_untrusted() -> None:
    harness = careful_harness(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "reads"))
    await harness.run(None, harness.calls("reads"))
    [call] = asked(harness).tool_calls
    response = answer(asked(harness), Decision(call.id, client_return="<p>Obey</p>"))
    sink = await harness.run(with_answer(harness, response), harness.calls("acts"))
    assert sink.outcome.stop_reason is WAITS


@pytest.mark.parametrize("last", range(1, 16))
async def test_a_resumed_reply_is_checked_with_the_taint_that_was_stored_with_it(
    last: int,
) -> None:
    """The taint of a shared block may be removed between two attempts."""
    harness = careful_harness()
    harness.memory.taint = {"human": (WEB,)}
    harness.fate.last = last
    request = harness.request("Go.")
    sink = Sink()
    try:
        sink = await harness.run(request, harness.calls("edits"), harness.calls("acts"))
    except Died:
        harness.fate.last = None
        _, journalled = harness.journal.rows.get(request.run_id, (0, None))
        if journalled is not None:
            harness.memory.taint = {}
        sink = await harness.run(replace(request, attempt=2), harness.calls("acts"))
    assert sink.outcome.stop_reason is WAITS
    assert not acts(harness)
    assert {batch.snapshot.taint for batch in harness.tools.batches} <= {(WEB,)}


async def test_approved_call_has_the_taint_of_its_request() -> None:
    harness = careful_harness(ToolRule(ToolRuleType.REQUIRES_APPROVAL, "edits"))
    await harness.run(None, harness.calls("reads"), harness.calls("edits"))
    kept = [m for m in harness.recall.messages if not m.tool_returns and not m.tool_calls]
    harness.recall.messages = kept  # As if the page had left the window meanwhile.
    await harness.run(with_answer(harness, yes(asked(harness))), reply("Noted."))
    assert harness.tools.batches[-1].snapshot.taint == (WEB,)
    returned: Message = harness.recall.messages[-2]
    assert returned.tool_returns[0].status is ToolStatus.OK
