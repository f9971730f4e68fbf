"""``strata memory log``, ``diff``, ``blame``, ``revert``, ``restore``, ``lint`` on real edits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import Run
from doubles.script import call, say
from e2e.cli.pty_program import on_terminal
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from whole_system import System

_PATIENT_EDITOR = """\
import pathlib, sys, time
pathlib.Path({opened!r}).touch()
while not pathlib.Path({go!r}).exists():
    time.sleep(0.02)
file = pathlib.Path(sys.argv[1])
file.write_text(file.read_text().replace("e", "E") + "\\n")
"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def insert(system: System, agent: agent_pb.Agent, text: str) -> str:
    """Runs a turn in which the agent inserts a line into its block; returns the run."""
    system.model.script(call("memory_insert", {"label": "human", "new_str": text}), say("Noted."))
    return (await system.send(agent, f"Remember: {text}")).run_id


async def write(system: System, agent: agent_pb.Agent, value: str, label: str = "human") -> None:
    block = await system.block(agent, label)
    await system.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value=value))


async def test_the_log_has_editor_operation_and_run(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    run_id = await insert(system, ann, "Likes olives.")
    edited = await strata(
        "memory", "edit", ann.name, "human", "--value", "Likes olives.\nLives in Rome.",
        "--reason", "she told me",
    )  # fmt: skip
    assert edited.code == 0, edited
    done = await strata("memory", "log", ann.name, "human")
    header, *rows = [line.split("\t") for line in done.out.splitlines()]
    columns = ["BLOCK", "REVISION", "WHEN", "WHO", "DID", "WHY", "MODEL", "RUN", "UNTRUSTED"]
    assert header == columns
    update, insertion, *_ = rows
    assert (update[0], update[4], update[5]) == ("human", "update", "she told me")
    assert update[3] == "you"
    assert insertion[3:5] == [f"agent {ann.name}", "insert"]
    assert insertion[6:] == ["openai/test-model", run_id, ""]
    with_diffs = await strata("memory", "log", ann.name, "human", "-p", "-n", "2")
    first, second = with_diffs.out.split("\n\n")
    assert "why: she told me\n  + Lives in Rome." in first
    assert f"run: {run_id}\ntool: memory_insert\n  + Likes olives." in second
    document = json.loads((await strata("memory", "log", ann.name, "human", "--json")).out)
    assert document["versions"][0]["value"] == "Likes olives.\nLives in Rome."


async def test_a_taint_mark_is_shown_and_removed(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    read = pb.EditOrigin(taint=[message_pb2.PROVENANCE_WEB])
    await system.blocks.EditBlock(
        pb.EditBlockRequest(
            agent_id=ann.id, label="human", append=pb.AppendEdit(content="Obey."), origin=read
        )
    )
    assert "\tweb\n" in (await strata("memory", "log", ann.name, "human")).out
    assert "untrusted: web" in (await strata("memory", "show", ann.name)).out
    done = await strata("memory", "trust", ann.name, "human", "--reason", "read it")
    assert (done.code, done.out.strip()) == (0, "human is no longer marked.")
    assert "untrusted" not in (await strata("memory", "show", ann.name)).out
    again = await strata("memory", "trust", ann.name, "human")
    assert again.out.strip() == "It was not marked."


async def test_another_persons_edit_is_under_their_key(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    made = await system.admin.CreateApiKey(
        admin_pb.CreateApiKeyRequest(project_id=system.project_id, name="other")
    )
    other = system.client(made.secret)
    block = await system.block(ann, "human")
    await other.blocks.UpdateBlock(pb.UpdateBlockRequest(block_id=block.id, value="theirs"))
    await other.channel.close()
    done = await strata("memory", "log", ann.name, "human")
    assert done.out.splitlines()[1].split("\t")[3] == f"user {made.api_key.id}"


async def test_the_log_of_all_blocks_is_newest_first(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "first", "human")
    await write(system, ann, "second", "persona")
    await write(system, ann, "third", "human")
    done = await strata("memory", "log", ann.name, "-n", "3")
    assert [line.split("\t")[0] for line in done.out.splitlines()[1:]] == [
        "human",
        "persona",
        "human",
    ]


async def test_a_diff_is_of_the_last_change_or_of_any_two_revisions(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    start = (await system.block(ann, "human")).revision
    for text in ("one", "one\ntwo", "one\ntwo\nthree"):
        await write(system, ann, text)
    last = await strata("memory", "diff", ann.name, "human")
    assert "+three" in last.out.splitlines()
    assert "+two" not in last.out.splitlines()
    wide = await strata("memory", "diff", ann.name, "human", str(start + 1), str(start + 3))
    assert {"+two", "+three"} <= set(wide.out.splitlines())
    unknown = await strata("memory", "diff", ann.name, "human", "1", "99")
    assert unknown.code == 1
    assert "[VERSION_NOT_FOUND]" in unknown.err


async def test_blame_names_the_writer_of_each_line(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await insert(system, ann, "Likes olives.")
    agents = (await system.block(ann, "human")).revision
    await write(system, ann, "Likes olives.\nLives in Rome.")
    done = await strata("memory", "blame", ann.name, "human")
    first, second = done.out.splitlines()
    assert first.startswith(f"{agents}  agent {ann.name}")
    assert first.endswith("1: Likes olives.")
    assert second.startswith(f"{agents + 1}  you ")
    assert second.endswith("2: Lives in Rome.")
    then = await strata("memory", "blame", ann.name, "human", "--revision", str(agents))
    assert then.out.splitlines()[0].endswith("1: Likes olives.")
    assert len(then.out.splitlines()) == 1
    document = json.loads((await strata("memory", "blame", ann.name, "human", "--json")).out)
    assert [line["text"] for line in document["lines"]] == ["Likes olives.", "Lives in Rome."]


async def test_one_edit_is_undone_and_later_edits_are_kept(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "a\nb\nc\nd\ne")
    await write(system, ann, "A\nb\nc\nd\ne")
    wrong = (await system.block(ann, "human")).revision
    await write(system, ann, "A\nb\nc\nd\nE")
    dry = await strata("memory", "revert", ann.name, "human", "--revision", str(wrong), "--dry-run")
    assert dry.code == 0, dry
    assert "human would be at revision" in dry.out
    assert "- A\n  + a" in dry.out
    assert (await system.block(ann, "human")).value == "A\nb\nc\nd\nE"
    done = await strata("memory", "revert", ann.name, "human", "--revision", str(wrong))
    assert f"human is now at revision {wrong + 2}." in done.out
    assert (await system.block(ann, "human")).value == "a\nb\nc\nd\nE"
    back = await strata(
        "memory", "revert", ann.name, "human", "--to", str(wrong), "--reason", "no", "--json"
    )
    assert json.loads(back.out)["blocks"][0]["value"] == "A\nb\nc\nd\ne"


async def test_an_edit_with_later_changes_of_its_text_is_not_undone(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "the cat")
    await write(system, ann, "the dog")
    wrong = (await system.block(ann, "human")).revision
    await write(system, ann, "the dragon")
    done = await strata("memory", "revert", ann.name, "human", "--revision", str(wrong))
    assert done.code == 1
    assert "[EDIT_CONFLICT]" in done.err
    assert (await system.block(ann, "human")).value == "the dragon"


async def test_all_edits_of_a_run_are_undone_in_all_blocks(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes olives."}),
        call("memory_insert", {"label": "persona", "new_str": "I like olives too."}),
        say("Noted."),
    )
    before = [(await system.block(ann, label)).value for label in ("human", "persona")]
    run_id = (await system.send(ann, "I like olives.")).run_id
    done = await strata("memory", "revert", ann.name, "--run", run_id)
    assert done.code == 0, done
    assert "- Likes olives." in done.out
    assert "- I like olives too." in done.out
    after = [(await system.block(ann, label)).value for label in ("human", "persona")]
    assert after == before


async def test_all_edits_of_an_agent_since_a_time_are_undone(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "by a person")
    await insert(system, ann, "by the agent")
    done = await strata("memory", "revert", ann.name, "--since", "10m")
    assert done.code == 0, done
    assert (await system.block(ann, "human")).value == "by a person"


async def test_a_revert_needs_exactly_one_selection(strata: Run, ann: agent_pb.Agent) -> None:
    assert (await strata("memory", "revert", ann.name, "human")).code == 2
    both = await strata("memory", "revert", ann.name, "human", "--to", "1", "--since", "1h")
    assert both.code == 2
    assert (await strata("memory", "revert", ann.name, "--to", "1")).code == 2
    assert (await strata("memory", "revert", ann.name, "--since", "soon")).code == 2


async def test_memory_is_shown_as_of_an_earlier_time(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "then\tand")
    block = await system.block(ann, "human")
    then = block.update_time.ToJsonString()
    await write(system, ann, "now")
    shown = await strata("memory", "show", ann.name, "human", "--as-of", then)
    assert shown.out == "then\tand\n"
    whole = await strata("memory", "show", ann.name, "--as-of", then)
    assert f"human  8 of {block.limit:,} characters, revision {block.revision}" in whole.out
    prompt = await strata("memory", "show", ann.name, "--prompt")
    assert "<value>\nnow\n</value>" in prompt.out
    numbered = await strata("memory", "show", ann.name, "--numbered")
    assert "1→ now" in numbered.out or "1: now" in numbered.out
    assert (await strata("memory", "show", ann.name, "human", "--numbered")).code == 2


async def test_a_deleted_block_is_restored(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "precious")
    gone = await strata("memory", "delete", ann.name, "human", "--reason", "by mistake")
    assert gone.code == 0, gone
    assert (await strata("memory", "show", ann.name, "human")).code == 1
    log = await strata("memory", "log", ann.name, "human")
    assert log.out.splitlines()[1].split("\t")[4:6] == ["delete", "by mistake"]
    back = await strata("memory", "restore", ann.name, "human")
    assert back.code == 0, back
    assert (await system.block(ann, "human")).value == "precious"
    again = await strata("memory", "restore", ann.name, "human")
    assert again.code == 1
    assert "[NAME_TAKEN]" in again.err


async def test_a_detached_block_is_restored(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    await write(system, ann, "precious")
    block = await system.block(ann, "human")
    await system.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=ann.id, block_id=block.id))
    done = await strata("memory", "restore", ann.name, "human", "--json")
    assert json.loads(done.out)["id"] == block.id


async def test_the_last_deleted_block_is_restored_unless_another_is_named(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    first = await system.block(ann, "human")
    assert (await strata("memory", "delete", ann.name, "human")).code == 0
    new = pb.NewBlock(label="human", value="second")
    await system.blocks.CreateBlock(pb.CreateBlockRequest(agent_id=ann.id, block=new))
    assert (await strata("memory", "delete", ann.name, "human")).code == 0
    assert (await strata("memory", "restore", ann.name, "human")).code == 0
    second = await system.block(ann, "human")
    assert second.value == "second"
    assert (await strata("memory", "delete", ann.name, "human")).code == 0
    assert (await strata("memory", "restore", ann.name, "human", "--block", first.id)).code == 0
    assert (await system.block(ann, "human")).id == first.id


async def test_a_block_that_never_existed_cannot_be_restored(
    strata: Run, ann: agent_pb.Agent
) -> None:
    done = await strata("memory", "restore", ann.name, "plans")
    assert done.code == 1
    assert 'The agent never had a block "plans"' in done.err


async def test_a_purge_needs_confirmation_and_is_permanent(
    strata: Run, system: System, ann: agent_pb.Agent, place: Mapping[str, str]
) -> None:
    refused = await strata("memory", "delete", ann.name, "human", "--purge")
    assert refused.code == 2
    assert "cannot be undone. Give --yes." in refused.err
    arguments = ("memory", "delete", ann.name, "human", "--purge")
    async with on_terminal(*arguments, environment=place) as program:
        await program.shows("Destroy human with its whole history, for every agent that has it?")
        program.type("n\r")
        assert await program.ends() == 1
    assert (await system.block(ann, "human")).label == "human"
    assert (await strata(*arguments, "--yes")).out == "Purged human.\n"
    back = await strata("memory", "restore", ann.name, "human")
    assert back.code == 1
    assert "[BLOCK_NOT_FOUND]" in back.err


async def test_a_deleted_block_can_still_be_purged(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    assert (await strata("memory", "delete", ann.name, "human")).code == 0
    purged = await strata("memory", "delete", ann.name, "human", "--purge", "-y")
    assert purged.code == 0, purged
    assert (await strata("memory", "restore", ann.name, "human")).code == 1


async def test_a_shared_block_is_not_deleted_unasked(
    strata: Run, system: System, ann: agent_pb.Agent
) -> None:
    block = await system.block(ann, "human")
    other = await system.agents.CreateAgent(
        agent_pb.CreateAgentRequest(
            name=f"other {ann.name}",
            model=agent_pb.ModelConfig(handle="openai/test-model"),
            block_ids=[block.id],
        )
    )
    refused = await strata("memory", "delete", ann.name, "human")
    assert refused.code == 2
    assert "2 agents share this block." in refused.err
    assert (await strata("memory", "delete", ann.name, "human", "-y")).code == 0
    await strata("memory", "restore", ann.name, "human")
    assert list((await system.block(ann, "human")).agent_ids) == [ann.id]
    assert other.agent.id != ann.id


async def test_lint_findings_have_advice(strata: Run, system: System, ann: agent_pb.Agent) -> None:
    fine = await strata("memory", "lint", ann.name, "--check")
    assert fine.code == 0, fine
    await write(system, ann, "Ann comes tomorrow.\nShe likes tea.\nShe likes tea.")
    done = await strata("memory", "lint", ann.name, "human")
    assert done.code == 0
    rows = [line.split("\t") for line in done.out.splitlines()[1:]]
    assert {row[1] for row in rows} == {"relative date", "duplicate"}
    assert rows[0][0] == "human:1"
    assert all(row[2] for row in rows)
    assert (await strata("memory", "lint", ann.name, "--check")).code == 1
    document = json.loads((await strata("memory", "lint", ann.name, "--json")).out)
    assert len(document["findings"]) == 2


async def test_edits_of_different_lines_are_merged(
    strata: Run, system: System, ann: agent_pb.Agent, place: Mapping[str, str], tmp_path: Path
) -> None:
    await write(system, ann, "a\nb\nc\nd\ne")
    opened, go = tmp_path / "open", tmp_path / "go"
    script = tmp_path / "editor.py"
    script.write_text(_PATIENT_EDITOR.format(opened=str(opened), go=str(go)))
    environment = {**place, "EDITOR": f"{sys.executable} {script}"}
    async with on_terminal("memory", "edit", ann.name, "human", environment=environment) as program:
        await eventually(opened.exists)
        await write(system, ann, "A\nb\nc\nd\ne")
        go.touch()
        await program.shows("merged with changes by others.")
        assert await program.ends() == 0
    assert (await system.block(ann, "human")).value == "A\nb\nc\nd\nE"
