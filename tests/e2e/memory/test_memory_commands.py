"""Commands that create, share and change memory blocks, passages and archives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_line import Run
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shown(strata: Run, *arguments: str) -> Any:
    done = await strata(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


async def test_a_block_is_created_shared_and_detached(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    bert = await system.make_agent()
    options = ("--value", "Sail to Oslo.", "--limit", "500", "--read-only")
    made = await shown(strata, "memory", "create", ann.name, "plans", *options)
    assert (made["value"], made["limit"], made["readOnly"]) == ("Sail to Oslo.", 500, True)
    again = await strata("memory", "create", ann.name, "plans")
    assert again.code == 1

    done = await strata("memory", "attach", bert.name, "plans", "--from", ann.name)
    assert (done.code, done.out) == (0, f"{bert.name} now has plans, shared by 2 agents.\n")
    listed = await shown(strata, "memory", "list", "--agent", bert.name, "--label", "plans")
    assert [block["id"] for block in listed["blocks"]] == [made["id"]]

    assert (await strata("memory", "detach", bert.name, "plans")).code == 0
    assert (await strata("memory", "show", bert.name, "plans")).code == 1
    assert (await strata("memory", "show", ann.name, "plans")).out == "Sail to Oslo.\n"
    attached = await shown(strata, "memory", "attach", bert.name, made["id"])
    assert len(attached["agentIds"]) == 2

    table = await strata("memory", "list", "--label", "plans", "-n", "500")
    assert made["id"] in table.out
    assert table.out.startswith("LABEL\tCHARACTERS\t")


async def test_a_block_without_text_is_empty(strata: Run, ann: agent_pb.Agent) -> None:
    made = await shown(strata, "memory", "create", ann.name, "notes")
    assert made["value"] == ""
    typed = await strata("memory", "create", ann.name, "log", "--file", "-", typed="One.\n")
    assert typed.code == 0
    assert (await strata("memory", "show", ann.name, "log")).out == "One.\n"


async def test_deleted_blocks_are_listed_on_request(strata: Run, ann: agent_pb.Agent) -> None:
    label = f"old_{new_id('x')[-8:]}"
    made = await shown(strata, "memory", "create", ann.name, label)
    assert (await strata("memory", "delete", ann.name, label, "--yes")).code == 0
    present = await shown(strata, "memory", "list", "--label", label)
    assert present["blocks"] == []
    listed = await shown(strata, "memory", "list", "--label", label, "--deleted")
    assert [block["id"] for block in listed["blocks"]] == [made["id"]]


async def test_passages_are_changed_and_their_tags_counted(
    strata: Run, ann: agent_pb.Agent
) -> None:
    stored = await shown(
        strata, "archival", "insert", ann.name, "Bit is a dog.", "--tag", "pets", "--tag", "dogs"
    )
    passage = stored["passage"]["id"]
    tags = await strata("archival", "tags", ann.name)
    assert tags.out == "TAG\tPASSAGES\ndogs\t1\npets\t1\n"

    done = await strata("archival", "edit", passage, "--text", "Bit is a cat.", "--tag", "pets")
    assert (done.code, done.out) == (0, "Revision 2: Bit is a cat.\n")
    archive = stored["passage"]["archiveId"]
    counted = await shown(strata, "archival", "tags", "--archive", archive)
    assert counted["tags"] == [{"tag": "pets", "count": "1"}]
    bare = await shown(strata, "archival", "edit", passage, "--no-tags", "--reason", "Not a pet.")
    assert (bare["tags"], bare["text"]) == ([], "Bit is a cat.")
    log = await shown(strata, "archival", "log", passage)
    assert log["versions"][0]["reason"] == "Not a pet."


async def test_an_archive_is_renamed_and_its_time_to_live_is_changed(strata: Run) -> None:
    name = f"Field notes {new_id('x')[-8:]}"
    await shown(strata, "archival", "archives", "create", name, "--description", "Old.")
    changed = await shown(
        strata, "archival", "archives", "update", name, "--name", f"{name} 2", "--days", "7"
    )
    assert (changed["name"], changed["description"]) == (f"{name} 2", "Old.")
    assert changed["timeToLiveSeconds"] == str(7 * 86_400)
    forever = await shown(
        strata, "archival", "archives", "update", f"{name} 2", "--days", "0", "--description", ""
    )
    assert (forever["timeToLiveSeconds"], forever["description"]) == ("0", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("archival", "tags"),
        ("archival", "tags", "ann", "--archive", "notes"),
        ("archival", "edit", "passage-1"),
        ("archival", "edit", "passage-1", "--tag", "a", "--no-tags"),
        ("archival", "archives", "update", "notes"),
        ("memory", "create", "ann", "notes", "--value", "a", "--file", "b"),
        ("memory", "create", "ann", "notes", "--file", "/missing"),
        ("mcp", "servers", "update", "calendar"),
    ],
)
async def test_missing_and_contradictory_options_are_wrong_usage(
    strata: Run, arguments: tuple[str, ...]
) -> None:
    done = await strata(*arguments)
    assert done.code == 2
    assert done.err.startswith("Error: ")
