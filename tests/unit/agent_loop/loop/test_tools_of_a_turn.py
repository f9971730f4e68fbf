"""Tools in a turn: which are offered, what they are run with, how they end it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.context.token_budget import LEAST_SEARCH_BYTES, SEARCH_SHARE
from strata.agent_loop.convert.agent_options import MIN_CONTEXT_WINDOW
from strata.agent_loop.domain.model.chat import FinishReason
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import FILE_TOOLS
from unit.agent_loop.loop.in_memory_ports import Agents
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness, assert_pairs_are_whole
from unit.agent_loop.loop.model_replies import reply


def with_tools(harness: LoopHarness, *names: str) -> None:
    """Gives the agent other tools."""
    harness.agent = replace(harness.agent, tools=names)
    harness.ports = replace(harness.ports, agents=Agents(harness.agent))


def offered(harness: LoopHarness) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in harness.model.requests]


async def test_file_tools_are_offered_only_if_there_are_folders() -> None:
    harness = LoopHarness()
    with_tools(harness, "keyed")
    await harness.run(None, reply("Hello."))
    harness.memory.has_folders = True
    await harness.run(None, reply("Hello."))

    assert offered(harness) == [["keyed"], ["keyed", *FILE_TOOLS]]


async def test_file_tools_of_the_agent_itself_are_offered_once() -> None:
    harness = LoopHarness()
    with_tools(harness, "grep_files", "keyed")
    await harness.run(None, reply("Hello."))
    harness.memory.has_folders = True
    await harness.run(None, reply("Hello."))

    assert offered(harness)[0] == ["keyed", "grep_files"]
    assert sorted(offered(harness)[1]) == sorted(["keyed", *FILE_TOOLS])


async def test_a_folder_attached_during_the_turn_adds_the_file_tools() -> None:
    harness = LoopHarness()

    def attach() -> None:
        harness.memory.has_folders = True

    harness.tools.on_edit = attach
    await harness.run(None, harness.calls("edits"), reply("Done."))

    before, after = offered(harness)
    assert set(after) - set(before) == set(FILE_TOOLS)


async def test_file_tool_without_folders_is_refused() -> None:
    harness = LoopHarness()
    await harness.run(None, harness.calls("open_files"), reply("Sorry."))

    assert harness.tools.batches == []
    assert "Cannot call open_files" in harness.recall.messages[3].tool_returns[0].content


async def test_calls_run_with_the_block_revisions_of_the_prompt() -> None:
    harness = LoopHarness()
    harness.memory.revisions = {"human": 3, "persona": 1}

    def edit() -> None:
        harness.memory.revisions = {"human": 4, "persona": 1}

    harness.tools.on_edit = edit
    await harness.run(None, harness.calls("edits"), harness.calls("keyed"), reply("Done."))

    first, second = harness.tools.batches
    assert first.agent_type == "letta_v1_agent"
    assert first.snapshot.block_revisions == {"human": 3, "persona": 1}
    assert (first.snapshot.max_files_open, first.snapshot.file_view_chars) == (5, 15_000)
    assert 0 < first.snapshot.max_memory_bytes < 32_000 * 3.2 * 0.75
    assert LEAST_SEARCH_BYTES < first.snapshot.max_search_bytes < 32_000 * 3.2 * SEARCH_SHARE
    assert second.snapshot.block_revisions == {"human": 4, "persona": 1}


async def test_a_search_has_enough_space_in_the_smallest_window() -> None:
    harness = LoopHarness(window_tokens=MIN_CONTEXT_WINDOW)
    await harness.run(None, harness.calls("keyed"), reply("Done."))
    (batch,) = harness.tools.batches
    assert batch.snapshot.max_search_bytes == LEAST_SEARCH_BYTES


@pytest.mark.parametrize("tool", ["edits", "open_files"])
async def test_a_change_of_the_prompt_is_shown_in_the_next_step(tool: str) -> None:
    harness = LoopHarness()
    harness.memory.has_folders = True
    await harness.run(None, harness.calls(tool), reply("Done."))
    assert harness.memory.compiled == 2


@pytest.mark.parametrize("tool", ["keyed", "reads", "acts"])
async def test_edits_outside_of_the_prompt_do_not_render_it_again(tool: str) -> None:
    harness = LoopHarness()
    await harness.run(None, harness.calls(tool), reply("Done."))
    assert harness.memory.compiled == 1


async def test_after_a_refused_edit_the_next_one_builds_on_the_current_text() -> None:
    harness = LoopHarness()
    harness.memory.revisions = {"human": 3}
    harness.tools.failing = {"keyed"}

    def others_edit() -> None:
        harness.memory.revisions = {"human": 4}

    harness.tools.on_call = others_edit
    await harness.run(None, harness.calls("keyed"), harness.calls("keyed"), reply("Done."))

    revisions = [batch.snapshot.block_revisions["human"] for batch in harness.tools.batches]
    assert revisions == [3, 4]


async def test_memory_finish_edits_ends_the_turn() -> None:
    harness = LoopHarness()
    with_tools(harness, "edits", "memory_finish_edits")
    sink = await harness.run(
        None, harness.calls("edits"), harness.calls("edits", "memory_finish_edits")
    )

    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert sink.outcome.step_count == 2
    assert len(harness.model.requests) == 2
    assert harness.memory.compiled == 2
    assert_pairs_are_whole(harness.recall.messages)


async def test_finishing_that_failed_does_not_end_the_turn() -> None:
    harness = LoopHarness()
    with_tools(harness, "memory_finish_edits")
    harness.tools.failing = {"memory_finish_edits"}
    sink = await harness.run(None, harness.calls("memory_finish_edits"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_agent_without_the_tool_cannot_finish_by_it() -> None:
    harness = LoopHarness()
    sink = await harness.run(None, harness.calls("memory_finish_edits"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert harness.tools.batches == []


async def test_reply_that_was_cut_after_its_finishing_call_ends_by_it() -> None:
    harness = LoopHarness()
    with_tools(harness, "memory_finish_edits")
    calls = replace(harness.calls("memory_finish_edits"), finish_reason=FinishReason.LENGTH)
    sink = await harness.run(None, calls)

    assert sink.outcome.stop_reason is StopReason.TOOL_RULE


async def test_a_turn_ended_by_a_tool_does_not_continue_after_a_crash() -> None:
    for death in range(40):
        harness = LoopHarness()
        with_tools(harness, "edits", "memory_finish_edits")
        request = harness.request()
        harness.model.replies = [harness.calls("edits", "memory_finish_edits")]
        harness.fate.last = death
        try:
            sink = await harness.run(request)
        except Died:
            harness.fate.last = None
            if not harness.journal.opened and not harness.recall.commits:
                harness.model.replies = [harness.calls("edits", "memory_finish_edits")]
            sink = await harness.run(replace(request, attempt=2))
        assert sink.outcome.stop_reason is StopReason.TOOL_RULE, death
        assert len(harness.recall.commits) == 1
        assert sink.outcome.step_count == 1


async def test_repeated_call_is_sent_with_the_revisions_of_the_first() -> None:
    """The executor recognises a repeated call by its whole request."""
    harness = LoopHarness()
    with_tools(harness, "keyed")
    harness.memory.revisions = {"human": 3}
    harness.memory.has_folders = True
    request = harness.request()
    harness.model.replies = [harness.calls("keyed", "open_files")]
    harness.fate.last = 8
    with pytest.raises(Died):
        await harness.run(request)
    assert len(harness.tools.batches) == 1

    harness.fate.last = None
    harness.memory.revisions = {"human": 9}
    harness.memory.has_folders = False
    harness.agent = replace(harness.agent, max_files_open=1)
    harness.ports = replace(harness.ports, agents=Agents(harness.agent))
    await harness.run(replace(request, attempt=2), reply("Done."))

    first, second = harness.tools.batches
    assert first.snapshot == second.snapshot
    assert (first.snapshot.block_revisions, first.snapshot.max_files_open) == ({"human": 3}, 5)
    assert [call.name for call in second.calls] == ["keyed", "open_files"]


@pytest.mark.parametrize("operation", ["create", "rename"])
async def test_a_block_edited_in_the_reply_has_no_seen_revision(operation: str) -> None:
    """The edits of an earlier attempt are known from the ledger."""
    harness = LoopHarness()
    harness.memory.revisions = {"human": 3, "persona": 1}
    harness.tools.operation = operation
    request = harness.request()
    harness.model.replies = [harness.calls("edits", "acts", "keyed")]
    # Dies while the last call runs: the outcomes before the end of an acting tool are journalled.
    harness.fate.last = 13
    with pytest.raises(Died):
        await harness.run(request)
    record = harness.journal.rows[request.run_id][1]
    assert record is not None
    assert len(record.results) == 2

    harness.fate.last = None
    await harness.run(replace(request, attempt=2), reply("Done."))

    assert [call.name for call in harness.tools.batches[1].calls] == ["keyed"]
    assert harness.tools.batches[1].snapshot.block_revisions == {"persona": 1}
