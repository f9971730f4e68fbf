"""``strata memory pull`` and ``push``: no edit of either side is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import Run
from e2e.cli.pty_program import on_terminal
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.memory.folder import STATE_FILE
from strata.cli.memory.markdown import parse
from strata.protocol.errors import NotFoundError
from strata.shared.agent_mcp.blocks import blocks_of
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIVE = "a\nb\nc\nd\ne"
# All characters that a block can hold: PostgreSQL has no U+0000.
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.text(
    st.sampled_from("a-\n\r\t ")
)


async def write(system: System, agent: agent_pb.Agent, value: str, **more: Any) -> pb.Block:
    block = await system.block(agent, "human")
    request = pb.UpdateBlockRequest(block_id=block.id, value=value, **more)
    return (await system.blocks.UpdateBlock(request)).block


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_bytes().decode()
    assert old in text
    file.write_bytes(text.replace(old, new).encode())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def results(out: str) -> dict[str, str]:
    return {load["file"]: load["result"] for load in json.loads(out)}


@pytest_asyncio.fixture(loop_scope="session")
async def pulled(strata: Run, system: System, ann: agent_pb.Agent, tmp_path: Path) -> Path:
    await write(system, ann, FIVE)
    done = await strata("memory", "pull", ann.name, str(tmp_path / "ann"))
    assert done.code == 0, done
    return tmp_path / "ann"


async def test_a_pull_writes_one_file_for_each_block(
    system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    assert set(contents(pulled)) == {"human.md", "persona.md", STATE_FILE}
    block = await system.block(ann, "human")
    document = parse((pulled / "human.md").read_bytes())
    assert (document.value, document.block_id) == (FIVE, block.id)
    assert (document.revision, document.limit) == (block.revision, block.limit)


async def test_without_changes_push_and_pull_do_nothing(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    before = contents(pulled)
    revision = (await system.block(ann, "human")).revision
    for command in ("push", "pull", "push"):
        done = await strata("memory", command, ann.name, str(pulled), "--json")
        assert done.code == 0, done
        assert set(results(done.out).values()) == {"unchanged"}
    assert contents(pulled) == before
    assert (await system.block(ann, "human")).revision == revision


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.lists(VALUES, min_size=2, max_size=2))
async def test_every_text_survives_to_the_byte(
    strata: Run, system: System, ann: agent_pb.Agent, tmp_path: Path, values: list[str]
) -> None:
    folder = tmp_path / "ann"
    shutil.rmtree(folder, ignore_errors=True)
    first, second = values
    await write(system, ann, first)
    assert (await strata("memory", "pull", ann.name, str(folder))).code == 0
    file = folder / "human.md"
    data = file.read_bytes()
    assert data.endswith(f"---\n{first}\n".encode())
    if first != second:
        head = data.removesuffix(f"{first}\n".encode())
        file.write_bytes(head + f"{second}\n".encode())
    done = await strata("memory", "push", ann.name, str(folder))
    assert done.code == 0, done
    assert (await system.block(ann, "human")).value == second


async def test_a_push_shows_and_writes_the_changes(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    file = pulled / "human.md"
    edit(file, "\nc\n", "\nC\n")
    edit(file, "read_only: false", "read_only: true")
    changed = file.read_bytes()
    dry = await strata("memory", "push", ann.name, str(pulled), "--dry-run")
    assert dry.code == 0, dry
    assert "human.md: would be updated\n  read-only: no → yes\n  - c\n  + C\n" in dry.out
    assert file.read_bytes() == changed
    assert (await system.block(ann, "human")).value == FIVE
    done = await strata("memory", "push", ann.name, str(pulled), "--reason", "from git")
    assert done.code == 0, done
    assert "human.md: updated" in done.out
    block = await system.block(ann, "human")
    assert (block.value, block.read_only) == ("a\nb\nC\nd\ne", True)
    assert parse(file.read_bytes()).revision == block.revision
    log = await strata("memory", "log", ann.name, "human", "-n", "1")
    assert "from git" in log.out


async def test_changes_of_others_are_merged_by_a_push(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    await write(system, ann, "A\nb\nc\nd\ne")
    edit(pulled / "human.md", "\nd\ne\n", "\nd\nE\n")
    dry = await strata("memory", "push", ann.name, str(pulled), "--dry-run")
    assert "human.md: would be merged\n  - e\n  + E\n" in dry.out
    done = await strata("memory", "push", ann.name, str(pulled))
    assert done.code == 0, done
    assert "human.md: merged" in done.out
    assert (await system.block(ann, "human")).value == "A\nb\nc\nd\nE"
    assert parse((pulled / "human.md").read_bytes()).value == "A\nb\nc\nd\nE"
    again = await strata("memory", "pull", ann.name, str(pulled), "--json")
    assert set(results(again.out).values()) == {"unchanged"}


async def test_a_conflict_writes_nothing_and_does_not_block_other_files(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    await write(system, ann, "a\nb\ntheirs\nd\ne")
    edit(pulled / "human.md", "\nc\n", "\nmine\n")
    (pulled / "plans.md").write_text("---\n---\nSail.\n")
    before = (pulled / "human.md").read_bytes()
    for options in (["--dry-run"], []):
        done = await strata("memory", "push", ann.name, str(pulled), *options)
        assert done.code == 1
        assert "human.md: conflict" in done.out
        assert "changed by others, up to revision" in done.out
        assert "  - c\n  + theirs\n" in done.out
        assert "changed in the file:\n  - c\n  + mine\n" in done.out
    assert (pulled / "human.md").read_bytes() == before
    assert (await system.block(ann, "human")).value == "a\nb\ntheirs\nd\ne"
    assert (await system.block(ann, "plans")).value == "Sail."


async def test_a_pull_merges_changes_or_leaves_both_sides(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    file = pulled / "human.md"
    edit(file, "\nd\ne\n", "\nd\nE\n")
    await write(system, ann, "A\nb\nc\nd\ne")
    merged = await strata("memory", "pull", ann.name, str(pulled))
    assert merged.code == 0, merged
    assert "human.md: merged; the changes in the file are kept; push them" in merged.out
    assert parse(file.read_bytes()).value == "A\nb\nc\nd\nE"
    again = await strata("memory", "pull", ann.name, str(pulled), "--json")
    assert results(again.out)["human.md"] == "changed_here"

    await write(system, ann, "A\nb\nc\nd\ntheirs")
    before = file.read_bytes()
    dry = await strata("memory", "pull", ann.name, str(pulled), "--dry-run")
    assert dry.code == 1
    assert not (pulled / "human.md.theirs").exists()
    conflict = await strata("memory", "pull", ann.name, str(pulled))
    assert conflict.code == 1
    assert "human.md: conflict; the text changed both here and there" in conflict.out
    assert file.read_bytes() == before
    assert parse((pulled / "human.md.theirs").read_bytes()).value == "A\nb\nc\nd\ntheirs"


@pytest.mark.parametrize(("choice", "value"), [("mine", "a\nb\nmine\nd\ne"), ("theirs", "new")])
async def test_a_conflict_is_resolved_by_the_choice_of_the_person(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path, choice: str, value: str
) -> None:
    edit(pulled / "human.md", "\nc\n", "\nmine\n")
    await write(system, ann, "new")
    assert (await strata("memory", "pull", ann.name, str(pulled))).code == 1
    done = await strata("memory", "pull", ann.name, str(pulled), "--conflicts", choice)
    assert done.code == 0, done
    assert parse((pulled / "human.md").read_bytes()).value == value
    assert not (pulled / "human.md.theirs").exists()
    assert (await strata("memory", "push", ann.name, str(pulled))).code == 0
    assert (await system.block(ann, "human")).value == value


async def test_a_conflict_can_be_resolved_by_editing_the_file(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    edit(pulled / "human.md", "\nc\n", "\nmine\n")
    block = await write(system, ann, "a\nb\ntheirs\nd\ne")
    assert (await strata("memory", "pull", ann.name, str(pulled))).code == 1
    edit(pulled / "human.md", "mine", "theirs and mine")
    edit(pulled / "human.md", f"revision: {block.revision - 1}", f"revision: {block.revision}")
    assert (await strata("memory", "push", ann.name, str(pulled))).code == 0
    assert (await system.block(ann, "human")).value == "a\nb\ntheirs and mine\nd\ne"
    assert not (pulled / "human.md.theirs").exists()


async def test_a_file_that_cannot_be_read_is_never_overwritten(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    (pulled / "human.md").write_bytes(b"---\nlabel: [\n---\nprecious\n")
    await write(system, ann, "new")
    push = await strata("memory", "push", ann.name, str(pulled))
    assert push.code == 1
    assert "human.md: refused; it has a front matter that is not YAML in line" in push.out
    pull = await strata("memory", "pull", ann.name, str(pulled))
    assert pull.code == 1
    assert b"precious" in (pulled / "human.md").read_bytes()


async def test_a_new_file_is_a_new_block(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    (pulled / "plans.md").write_text("---\ndescription: What we plan.\nlimit: 300\n---\nSail.\n")
    (pulled / "README.md").write_text("# Ann's memory\n")
    done = await strata("memory", "push", ann.name, str(pulled), "--json")
    assert done.code == 0, done
    assert results(done.out)["plans.md"] == "created"
    assert results(done.out)["README.md"] == "skipped"
    block = await system.block(ann, "plans")
    assert (block.value, block.description, block.limit) == ("Sail.", "What we plan.", 300)
    assert parse((pulled / "plans.md").read_bytes()).block_id == block.id
    again = await strata("memory", "push", ann.name, str(pulled), "--json")
    assert results(again.out)["plans.md"] == "unchanged"


async def test_a_new_file_never_overwrites_a_block_that_was_not_pulled(
    strata: Run, system: System, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    await write(system, ann, "the agent's")
    (tmp_path / "human.md").write_text("---\n---\nmine\n")
    (tmp_path / "persona.md").write_text("---\n---\nI am brief.\n")
    done = await strata("memory", "push", ann.name, str(tmp_path), "--json")
    assert done.code == 1
    # An empty block loses nothing.
    assert results(done.out) == {"human.md": "conflict", "persona.md": "updated"}
    assert (await system.block(ann, "human")).value == "the agent's"
    assert (await system.block(ann, "persona")).value == "I am brief."


async def test_a_deleted_file_detaches_its_block_only_with_confirmation(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path, place: Mapping[str, str]
) -> None:
    (pulled / "human.md").unlink()
    done = await strata("memory", "push", ann.name, str(pulled))
    assert done.code == 0
    assert "human.md: missing; the file was removed; the block is kept" in done.out
    dry = await strata("memory", "push", ann.name, str(pulled), "--delete", "--dry-run")
    assert "human.md: would be detached" in dry.out
    refused = await strata("memory", "push", ann.name, str(pulled), "--delete")
    assert refused.code == 2
    assert "This detaches human. Give --yes." in refused.err
    assert (await system.block(ann, "human")).value == FIVE
    arguments = ("memory", "push", ann.name, str(pulled), "--delete")
    async with on_terminal(*arguments, environment=place) as program:
        await program.shows(f"Detach human from {ann.name}? [y/N]")
        program.type("y\r")
        await program.shows("human.md: detached")
        assert await program.ends() == 0
    with pytest.raises(NotFoundError):
        await system.block(ann, "human")
    assert (await strata("memory", "restore", ann.name, "human")).code == 0
    assert (await system.block(ann, "human")).value == FIVE


async def test_a_pull_restores_a_missing_file(
    strata: Run, ann: agent_pb.Agent, pulled: Path
) -> None:
    before = (pulled / "human.md").read_bytes()
    (pulled / "human.md").unlink()
    done = await strata("memory", "pull", ann.name, str(pulled))
    assert "human.md: written; the file was missing" in done.out
    assert (pulled / "human.md").read_bytes() == before


async def test_read_only_blocks_are_changed_only_with_force(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    await write(system, ann, FIVE, read_only=True)
    await strata("memory", "pull", ann.name, str(pulled))
    edit(pulled / "human.md", "\nc\n", "\nC\n")
    refused = await strata("memory", "push", ann.name, str(pulled))
    assert refused.code == 1
    assert "the block is read-only. --force changes it anyway." in refused.out
    assert (await system.block(ann, "human")).value == FIVE
    assert (await strata("memory", "push", ann.name, str(pulled), "--force")).code == 0
    assert (await system.block(ann, "human")).value == "a\nb\nC\nd\ne"


async def test_one_refused_block_does_not_block_other_files(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    edit(pulled / "human.md", "limit: 20000", "limit: 3")
    (pulled / "plans.md").write_text("---\n---\nSail.\n")
    done = await strata("memory", "push", ann.name, str(pulled))
    assert done.code == 1
    assert "human.md: refused" in done.out
    assert "[BLOCK_LIMIT_EXCEEDED]" in done.out
    assert (await system.block(ann, "plans")).value == "Sail."


async def test_a_block_is_renamed_on_either_side(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    edit(pulled / "human.md", "label: human", "label: person")
    wrong = await strata("memory", "push", ann.name, str(pulled))
    assert wrong.code == 1
    assert "Name the file person.md, or write label: human." in wrong.out
    (pulled / "human.md").rename(pulled / "person.md")
    before = await strata("memory", "pull", ann.name, str(pulled), "--json")
    assert results(before.out) == {"person.md": "changed_here", "persona.md": "unchanged"}
    assert (await strata("memory", "push", ann.name, str(pulled))).code == 0
    block = await system.block(ann, "person")
    assert block.value == FIVE

    edit(pulled / "person.md", "\nd\ne\n", "\nd\nE\n")
    renamed = pb.UpdateBlockRequest(block_id=block.id, label="user")
    await system.blocks.UpdateBlock(renamed)
    done = await strata("memory", "pull", ann.name, str(pulled))
    assert "user.md: merged; was person.md" in done.out
    assert set(contents(pulled)) == {"user.md", "persona.md", STATE_FILE}
    assert (await strata("memory", "push", ann.name, str(pulled))).code == 0
    assert (await system.block(ann, "user")).value == "a\nb\nc\nd\nE"


async def test_the_file_of_a_deleted_block_stays_until_its_removal_is_requested(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    block = await system.block(ann, "human")
    await system.blocks.DeleteBlock(pb.DeleteBlockRequest(block_id=block.id))
    done = await strata("memory", "pull", ann.name, str(pulled))
    assert "human.md: gone; the agent no longer has this block; the file is kept" in done.out
    pushed = await strata("memory", "push", ann.name, str(pulled))
    assert pushed.code == 1
    assert "Bring it back with: strata memory restore" in pushed.out
    edit(pulled / "human.md", "\nc\n", "\nC\n")
    await strata("memory", "pull", ann.name, str(pulled), "--delete")
    assert (pulled / "human.md").exists()
    edit(pulled / "human.md", "\nC\n", "\nc\n")
    await strata("memory", "pull", ann.name, str(pulled), "--delete")
    assert not (pulled / "human.md").exists()


async def test_a_folder_belongs_to_one_agent_unless_it_is_imported(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    bert = await system.make_agent()
    for command in ("pull", "push"):
        refused = await strata("memory", command, bert.name, str(pulled))
        assert refused.code == 2
        assert f"contains the memory of {ann.id}, another agent." in refused.err
    (pulled / "plans.md").write_text("---\n---\nSail.\n")
    done = await strata("memory", "push", bert.name, str(pulled), "--import", "--json")
    assert done.code == 0, done
    assert results(done.out)["human.md"] == "updated"
    assert (await system.block(bert, "human")).value == FIVE
    assert (await system.block(bert, "plans")).value == "Sail."
    again = await strata("memory", "push", bert.name, str(pulled), "--json")
    assert set(results(again.out).values()) == {"unchanged"}
    assert (await system.block(ann, "human")).value == FIVE


async def test_two_files_of_one_block_are_refused(
    strata: Run, system: System, ann: agent_pb.Agent, pulled: Path
) -> None:
    text = (pulled / "human.md").read_text().replace("label: human", "label: copy")
    (pulled / "copy.md").write_text(text)
    done = await strata("memory", "push", ann.name, str(pulled))
    assert done.code == 1
    assert "copy.md and human.md belong to one block." in done.out


async def test_a_missing_folder_is_reported(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    missing = await strata("memory", "push", ann.name, str(tmp_path / "none"))
    assert missing.code == 2
    assert "There is no folder" in missing.err
    (tmp_path / "file").touch()
    file = await strata("memory", "pull", ann.name, str(tmp_path / "file"))
    assert file.code == 2
    assert "is not a folder" in file.err


@pytest.mark.parametrize(("command", "value"), [("push", "a\nb\nC\nd\ne"), ("pull", "new")])
async def test_a_file_changed_during_the_command_is_not_overwritten(
    strata: Run,
    system: System,
    ann: agent_pb.Agent,
    pulled: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    value: str,
) -> None:
    file = pulled / "human.md"
    if command == "push":
        edit(file, "\nc\n", "\nC\n")
    else:
        await write(system, ann, "new")
    read = blocks_of

    async def while_typing(*arguments: Any) -> Any:
        blocks = await read(*arguments)
        edit(file, "\nd\n", "\nD\n")
        return blocks

    monkeypatch.setattr(f"strata.cli.memory.{command}.blocks_of", while_typing)
    done = await strata("memory", command, ann.name, str(pulled))
    assert "the file was changed meanwhile and was not overwritten: pull again" in done.out
    assert done.code == (1 if command == "pull" else 0)
    assert (await system.block(ann, "human")).value == value
    assert "\nD\n" in file.read_text()
