"""Tools in a turn: which are offered, what they are run with, how they end it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strata.agent_loop.domain.model.chat import FinishReason
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import FILE_TOOLS
from unit.agent_loop.loop.in_memory_ports import Agents, LoopWorld, assert_pairs_are_whole, reply
from unit.agent_loop.loop.journals import Died


def with_tools(world: LoopWorld, *names: str) -> None:
    """Gives the agent other tools."""
    world.agent = replace(world.agent, tools=names)
    world.ports = replace(world.ports, agents=Agents(world.agent))


def offered(world: LoopWorld) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in world.model.requests]


async def test_file_tools_are_offered_where_there_are_folders_and_only_there() -> None:
    world = LoopWorld()
    with_tools(world, "keyed")
    await world.run(None, reply("Hello."))
    world.memory.has_folders = True
    await world.run(None, reply("Hello."))

    assert offered(world) == [["keyed"], ["keyed", *FILE_TOOLS]]


async def test_file_tools_of_the_agent_itself_are_offered_once() -> None:
    world = LoopWorld()
    with_tools(world, "grep_files", "keyed")
    await world.run(None, reply("Hello."))
    world.memory.has_folders = True
    await world.run(None, reply("Hello."))

    assert offered(world)[0] == ["keyed", "grep_files"]
    assert sorted(offered(world)[1]) == sorted(["keyed", *FILE_TOOLS])


async def test_folder_that_comes_in_the_middle_brings_the_tools_with_it() -> None:
    world = LoopWorld()

    def attach() -> None:
        world.memory.has_folders = True

    world.tools.on_edit = attach
    await world.run(None, world.calls("edits"), reply("Done."))

    before, after = offered(world)
    assert set(after) - set(before) == set(FILE_TOOLS)


async def test_file_tool_without_folders_is_refused() -> None:
    world = LoopWorld()
    await world.run(None, world.calls("open_files"), reply("Sorry."))

    assert world.tools.batches == []
    assert "Cannot call open_files" in world.recall.messages[3].tool_returns[0].content


async def test_calls_are_run_with_what_the_model_saw() -> None:
    world = LoopWorld()
    world.memory.revisions = {"human": 3, "persona": 1}

    def edit() -> None:
        world.memory.revisions = {"human": 4, "persona": 1}

    world.tools.on_edit = edit
    await world.run(None, world.calls("edits"), world.calls("keyed"), reply("Done."))

    first, second = world.tools.batches
    assert first.agent_type == "letta_v1_agent"
    assert first.snapshot.block_revisions == {"human": 3, "persona": 1}
    assert (first.snapshot.max_files_open, first.snapshot.file_view_chars) == (5, 15_000)
    assert 0 < first.snapshot.max_memory_bytes < 32_000 * 3.2 * 0.75
    assert second.snapshot.block_revisions == {"human": 4, "persona": 1}


@pytest.mark.parametrize("tool", ["edits", "open_files"])
async def test_what_changes_the_prompt_is_seen_in_the_next_step(tool: str) -> None:
    world = LoopWorld()
    world.memory.has_folders = True
    await world.run(None, world.calls(tool), reply("Done."))
    assert world.memory.compiled == 2


@pytest.mark.parametrize("tool", ["keyed", "reads", "acts"])
async def test_what_does_not_change_the_prompt_costs_no_rendering(tool: str) -> None:
    world = LoopWorld()
    await world.run(None, world.calls(tool), reply("Done."))
    assert world.memory.compiled == 1


async def test_after_a_refused_edit_the_next_builds_on_what_is_there_now() -> None:
    world = LoopWorld()
    world.memory.revisions = {"human": 3}
    world.tools.failing = {"keyed"}

    def others_edit() -> None:
        world.memory.revisions = {"human": 4}

    world.tools.on_call = others_edit
    await world.run(None, world.calls("keyed"), world.calls("keyed"), reply("Done."))

    revisions = [batch.snapshot.block_revisions["human"] for batch in world.tools.batches]
    assert revisions == [3, 4]


async def test_finishing_edits_ends_the_turn() -> None:
    world = LoopWorld()
    with_tools(world, "edits", "memory_finish_edits")
    sink = await world.run(None, world.calls("edits"), world.calls("edits", "memory_finish_edits"))

    assert sink.outcome.stop_reason is StopReason.TOOL_RULE
    assert sink.outcome.step_count == 2
    assert len(world.model.requests) == 2
    assert world.memory.compiled == 2
    assert_pairs_are_whole(world.recall.messages)


async def test_finishing_that_failed_does_not_end_the_turn() -> None:
    world = LoopWorld()
    with_tools(world, "memory_finish_edits")
    world.tools.failing = {"memory_finish_edits"}
    sink = await world.run(None, world.calls("memory_finish_edits"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN


async def test_agent_without_the_tool_cannot_finish_by_it() -> None:
    world = LoopWorld()
    sink = await world.run(None, world.calls("memory_finish_edits"), reply("Done."))

    assert sink.outcome.stop_reason is StopReason.END_TURN
    assert world.tools.batches == []


async def test_reply_that_was_cut_after_its_finishing_call_ends_by_it() -> None:
    world = LoopWorld()
    with_tools(world, "memory_finish_edits")
    calls = replace(world.calls("memory_finish_edits"), finish_reason=FinishReason.LENGTH)
    sink = await world.run(None, calls)

    assert sink.outcome.stop_reason is StopReason.TOOL_RULE


async def test_turn_that_a_tool_finished_is_not_continued() -> None:
    for death in range(40):
        world = LoopWorld()
        with_tools(world, "edits", "memory_finish_edits")
        request = world.request()
        world.model.replies = [world.calls("edits", "memory_finish_edits")]
        world.fate.last = death
        try:
            sink = await world.run(request)
        except Died:
            world.fate.last = None
            if not world.journal.opened and not world.recall.commits:
                world.model.replies = [world.calls("edits", "memory_finish_edits")]
            sink = await world.run(replace(request, attempt=2))
        assert sink.outcome.stop_reason is StopReason.TOOL_RULE, death
        assert len(world.recall.commits) == 1
        assert sink.outcome.step_count == 1


async def test_repeated_call_is_sent_with_what_was_seen_the_first_time() -> None:
    """The executor knows a call by all that it is sent with."""
    world = LoopWorld()
    with_tools(world, "keyed")
    world.memory.revisions = {"human": 3}
    world.memory.has_folders = True
    request = world.request()
    world.model.replies = [world.calls("keyed", "open_files")]
    world.fate.last = 8
    with pytest.raises(Died):
        await world.run(request)
    assert len(world.tools.batches) == 1

    world.fate.last = None
    world.memory.revisions = {"human": 9}
    world.memory.has_folders = False
    world.agent = replace(world.agent, max_files_open=1)
    world.ports = replace(world.ports, agents=Agents(world.agent))
    await world.run(replace(request, attempt=2), reply("Done."))

    first, second = world.tools.batches
    assert first.snapshot == second.snapshot
    assert (first.snapshot.block_revisions, first.snapshot.max_files_open) == ({"human": 3}, 5)
    assert [call.name for call in second.calls] == ["keyed", "open_files"]


@pytest.mark.parametrize("operation", ["create", "rename"])
async def test_block_that_the_reply_itself_made_was_not_seen(operation: str) -> None:
    """What an earlier dispatch has done is known from the ledger."""
    world = LoopWorld()
    world.memory.revisions = {"human": 3, "persona": 1}
    world.tools.operation = operation
    request = world.request()
    world.model.replies = [world.calls("edits", "acts", "keyed")]
    # Dies while the last call runs: what came before an acting tool's end is written down.
    world.fate.last = 13
    with pytest.raises(Died):
        await world.run(request)
    record = world.journal.rows[request.run_id][1]
    assert record is not None
    assert len(record.results) == 2

    world.fate.last = None
    await world.run(replace(request, attempt=2), reply("Done."))

    assert [call.name for call in world.tools.batches[1].calls] == ["keyed"]
    assert world.tools.batches[1].snapshot.block_revisions == {"persona": 1}
