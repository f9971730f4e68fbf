"""Every memory tool against the real core memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inner_services import InnerServices
from integration.tool_execution.conftest import Tools, refusal
from strata.api.core_memory.v1 import block_service_pb2 as block_pb

pytestmark = pytest.mark.asyncio(loop_scope="session")

EDITED = (
    "The core memory block with label `human` has been edited. Review the changes and make sure"
    " they are as expected (correct indentation, no duplicate lines, etc). Edit the memory block"
    " again if necessary."
)
START = "Name: Ada\nCity: Graz"


@pytest.mark.parametrize(
    ("tool", "arguments", "message", "value", "operation"),
    [
        (
            "core_memory_append",
            {"label": "human", "content": "Likes\ttea"},
            "None",
            f"{START}\nLikes\ttea",
            "append",
        ),
        (
            "core_memory_replace",
            {"label": "human", "old_content": "a", "new_content": "o"},
            "None",
            "Nome: Ado\nCity: Groz",
            "replace",
        ),
        (
            "memory_replace",
            {"label": "human", "old_str": "Graz", "new_str": "Linz"},
            EDITED,
            "Name: Ada\nCity: Linz",
            "string_replace",
        ),
        (
            "memory_insert",
            {"label": "human", "new_str": "Age: 36", "insert_line": 1},
            EDITED,
            "Name: Ada\nAge: 36\nCity: Graz",
            "insert",
        ),
        (
            "memory_insert",
            {"label": "human", "new_str": "Age: 36"},
            EDITED,
            f"{START}\nAge: 36",
            "insert",
        ),
        (
            "memory_rethink",
            {"label": "human", "new_memory": "Ada of Graz"},
            EDITED,
            "Ada of Graz",
            "rethink",
        ),
        (
            "memory_apply_patch",
            {"label": "human", "patch": "@@\n Name: Ada\n-City: Graz\n+City: Linz"},
            EDITED,
            "Name: Ada\nCity: Linz",
            "patch",
        ),
        (
            "memory",
            {"command": "str_replace", "path": "human", "old_str": "Graz", "new_str": "Linz"},
            EDITED,
            "Name: Ada\nCity: Linz",
            "string_replace",
        ),
        (
            "memory",
            {"command": "insert", "path": "/memories/human", "insert_text": "Age: 36"},
            EDITED,
            f"{START}\nAge: 36",
            "insert",
        ),
        (
            "memory",
            {"command": "insert", "path": "human", "insert_text": "Age: 36", "insert_line": 0},
            EDITED,
            f"Age: 36\n{START}",
            "insert",
        ),
    ],
)
async def test_a_memory_tool_edits_the_block_and_returns_the_edit(
    tools: Tools, tool: str, arguments: dict[str, Any], message: str, value: str, operation: str
) -> None:
    before = await tools.block("human")
    (ended,) = await tools.run((tool, arguments))

    assert json.loads(ended.tool_return.content)["message"] == message
    block = await tools.block("human")
    assert block.value == value
    (edit,) = ended.memory_edits
    assert (edit.block_id, edit.label) == (before.id, "human")
    assert (edit.revision, edit.operation) == (before.revision + 1, operation)
    assert edit.diff


async def test_version_has_its_editor_and_run(tools: Tools) -> None:
    await tools.call("core_memory_append", label="human", content="x")
    version = (await tools.versions("human"))[0]

    assert version.origin.kind == block_pb.EDITOR_KIND_AGENT
    assert version.origin.agent_id == tools.agent.id
    assert version.origin.run_id == tools.run_id
    assert version.origin.step_id == "step-1"
    assert version.origin.tool_call_id == "call-1-0"
    assert version.origin.model == "test/test-model"


async def test_edits_of_a_background_agent_are_marked(tools: Tools) -> None:
    edit = ("core_memory_append", {"label": "human", "content": "x"})
    await tools.run(edit, agent_type="sleeptime_agent")
    version = (await tools.versions("human"))[0]
    assert version.origin.kind == block_pb.EDITOR_KIND_SLEEPTIME_AGENT


async def test_the_same_call_twice_is_one_edit(tools: Tools) -> None:
    edit = ("core_memory_append", {"label": "human", "content": "x"})
    # Like the agent loop's repetition of a call: with the same key, and with the revisions of the
    # first time.
    first = await tools.run(edit, keys=["k1"], seen={"human": 1})
    await tools.write("human", "Others were here.")
    request = {"label": "human", "content": "x"}
    tools._count = 0
    again = await tools.run(("core_memory_append", request), keys=["k1"], seen={"human": 1})

    assert (await tools.block("human")).value == "Others were here."
    assert again[0].memory_edits == first[0].memory_edits


async def test_finishing_edits_changes_nothing(tools: Tools) -> None:
    (ended,) = await tools.run(("memory_finish_edits", {}))
    assert json.loads(ended.tool_return.content)["message"] == "None"
    assert not ended.memory_edits


async def test_blocks_are_created_renamed_described_and_deleted(tools: Tools) -> None:
    made = await tools.call(
        "memory", command="create", path="/memories/work/plans", file_text="1. Rest"
    )
    assert made == "Successfully created memory block 'work_plans'"
    assert (await tools.block("work_plans")).value == "1. Rest"

    (renamed,) = await tools.run(
        ("memory", {"command": "rename", "old_path": "work_plans", "new_path": "plans"})
    )
    assert "Successfully renamed memory block 'work_plans' to 'plans'" in (
        renamed.tool_return.content
    )
    assert [(edit.label, edit.operation) for edit in renamed.memory_edits] == [("plans", "rename")]

    described = await tools.call("memory", command="rename", path="plans", description="What next")
    assert described == "Successfully updated description of memory block 'plans'"
    assert (await tools.block("plans")).description == "What next"

    (deleted,) = await tools.run(("memory", {"command": "delete", "path": "plans"}))
    assert "Successfully deleted memory block 'plans'" in deleted.tool_return.content
    assert [(edit.label, edit.operation) for edit in deleted.memory_edits] == [("plans", "delete")]
    assert await tools.labels() == {"human", "rules"}


async def test_renaming_ignores_an_empty_description_required_by_a_strict_schema(
    tools: Tools,
) -> None:
    before = (await tools.block("human")).description
    await tools.call(
        "memory", command="rename", old_path="human", new_path="person", description="", path=""
    )
    assert (await tools.block("person")).description == before


async def test_patch_of_several_blocks_is_reported_block_by_block(tools: Tools) -> None:
    patch = (
        "*** Update Block: human\n@@\n-City: Graz\n+City: Linz\n*** Add Block: plans\n+1. Rest\n"
    )
    (ended,) = await tools.run(("memory_apply_patch", {"patch": patch}))

    assert sorted((e.label, e.revision) for e in ended.memory_edits) == [("human", 2), ("plans", 1)]
    assert (await tools.block("human")).value == "Name: Ada\nCity: Linz"
    assert (await tools.block("plans")).value == "1. Rest"


async def test_patch_that_fails_in_one_block_changes_none(tools: Tools) -> None:
    patch = (
        "*** Update Block: human\n@@\n-City: Graz\n+City: Linz\n*** Update Block: rules\n@@\n"
        "-Be kind.\n+Be rude.\n"
    )
    assert "read-only" in await tools.refused("memory_apply_patch", patch=patch)
    assert (await tools.block("human")).value == START


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("core_memory_append", {"label": "rules", "content": "x"}),
        ("core_memory_replace", {"label": "rules", "old_content": "kind", "new_content": "x"}),
        ("memory_replace", {"label": "rules", "old_str": "kind", "new_str": "x"}),
        ("memory_insert", {"label": "rules", "new_str": "x"}),
        ("memory_rethink", {"label": "rules", "new_memory": "x"}),
        ("memory_apply_patch", {"label": "rules", "patch": "@@\n-Be kind.\n+x"}),
        ("memory", {"command": "create", "path": "rules", "file_text": "x"}),
        ("memory", {"command": "str_replace", "path": "rules", "old_str": "kind", "new_str": "x"}),
        ("memory", {"command": "insert", "path": "rules", "insert_text": "x"}),
        ("memory", {"command": "delete", "path": "rules"}),
        ("memory", {"command": "rename", "old_path": "rules", "new_path": "x"}),
        ("memory", {"command": "rename", "path": "rules", "description": "x"}),
    ],
)
async def test_a_read_only_block_refuses_every_tool(
    tools: Tools, tool: str, arguments: dict[str, Any]
) -> None:
    before = await tools.block("rules")
    assert "read-only" in await tools.refused(tool, **arguments)
    assert await tools.block("rules") == before


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("core_memory_append", {"label": "nothing", "content": "x"}, ["nothing", "human, rules"]),
        ("memory", {"command": "delete", "path": "nothing"}, ["nothing", "human, rules"]),
        ("memory", {"command": "create", "path": "human"}, ["already", "human"]),
        ("memory", {"command": "rename", "old_path": "human", "new_path": "rules"}, ["already"]),
        ("memory", {"command": "view", "path": "human"}, ["Unknown command 'view'"]),
        ("memory_replace", {"label": "human", "old_str": "Rome", "new_str": ""}, ["Rome"]),
        (
            "memory_replace",
            {"label": "human", "old_str": "1→ Name", "new_str": ""},
            ["line number"],
        ),
        (
            "memory_insert",
            {"label": "human", "new_str": "x", "insert_line": 99},
            ["99", "[0, 2]"],
        ),
        ("memory_insert", {"label": "human", "insert_line": 1}, ["missing 'new_str'"]),
        ("memory_insert", {"label": "human", "new_str": "a\0b"}, ["NUL"]),
        ("memory_rethink", {"label": "human", "new_memory": "x" * 3_001}, ["3001", "3000"]),
        ("memory_apply_patch", {"label": "human", "patch": "@@\n-Rome\n+x"}, ["Rome"]),
        ("memory_apply_patch", {"label": "human", "patch": "hello"}, ["patch"]),
    ],
)
async def test_errors_have_readable_messages(
    tools: Tools, tool: str, arguments: dict[str, Any], says: list[str]
) -> None:
    message = await tools.refused(tool, **arguments)
    for words in says:
        assert words in message
    assert not any(
        noise in message for noise in ("Traceback", "SQL", "pydantic", "psycopg", "asyncpg")
    )
    assert (await tools.block("human")).value == START


async def test_conflicting_rewrite_is_refused_with_the_whole_current_text(tools: Tools) -> None:
    theirs = "Name: Ada Lovelace\n" + "City: London\n" * 150
    await tools.write("human", theirs)
    rethink = ("memory_rethink", {"label": "human", "new_memory": "Name: Ada King\nCity: Graz"})
    (ended,) = await tools.run(rethink, seen={"human": 1})

    message = refusal(ended)
    assert "changed by others" in message
    assert theirs in message
    assert (await tools.block("human")).value == theirs


async def test_conflict_of_a_huge_block_shows_its_beginning_and_end(
    tools: Tools, services: InnerServices
) -> None:
    block = await tools.block("human")
    await services.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(
            block_id=block.id, limit=50_000, value=f"first\n{'x' * 20_000}\nlast"
        )
    )
    rethink = ("memory_rethink", {"label": "human", "new_memory": "mine"})
    (ended,) = await tools.run(rethink, seen={"human": 1})
    message = refusal(ended)
    assert "first\n" in message
    assert message.endswith("\nlast")
    assert "characters left out" in message
    assert len(message) < 5_000


async def test_edits_of_different_lines_merge(tools: Tools) -> None:
    await tools.write("human", "Name: Ada Lovelace\nCity: Graz")
    rethink = ("memory_rethink", {"label": "human", "new_memory": "Name: Ada\nCity: Linz"})
    insert = ("memory_insert", {"label": "human", "new_str": "Age: 36", "insert_line": 2})
    await tools.run(rethink, seen={"human": 1})
    await tools.run(insert, seen={"human": 1})

    assert (await tools.block("human")).value == "Name: Ada Lovelace\nCity: Linz\nAge: 36"
    newest, older, *_ = await tools.versions("human")
    assert (newest.base_revision, older.base_revision) == (1, 1)


async def test_line_numbers_in_one_reply_are_those_that_the_model_saw(tools: Tools) -> None:
    """Both insertions count the lines of the shown text, not of each other's result."""
    await tools.run(
        ("memory_insert", {"label": "human", "new_str": "Titles: none", "insert_line": 1}),
        ("memory_insert", {"label": "human", "new_str": "Age: 36", "insert_line": 2}),
        seen={"human": 1},
    )
    assert (await tools.block("human")).value == "Name: Ada\nTitles: none\nCity: Graz\nAge: 36"


async def test_text_removed_by_others_is_a_conflict_and_not_an_invalid_argument(
    tools: Tools,
) -> None:
    await tools.write("human", "Name: Ada\nCity: Linz")
    edit = ("memory_replace", {"label": "human", "old_str": "Graz", "new_str": "Wien"})
    (ended,) = await tools.run(edit, seen={"human": 1})
    assert "changed by others" in refusal(ended)


async def test_a_block_created_in_the_same_reply_can_be_edited(tools: Tools) -> None:
    """The model saw another block with that label, whose revision is no longer relevant."""
    for number in range(3):
        await tools.call("core_memory_append", label="human", content=str(number))
    ended = await tools.run(
        ("memory", {"command": "delete", "path": "human"}),
        ("memory", {"command": "create", "path": "human", "file_text": "A new start"}),
        ("memory_rethink", {"label": "human", "new_memory": "All is new"}),
        seen={"human": 4},
    )
    assert [json.loads(e.tool_return.content)["status"] for e in ended] == ["OK"] * 3
    assert (await tools.block("human")).value == "All is new"
