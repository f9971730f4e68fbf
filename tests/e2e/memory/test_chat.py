"""Slash commands in a chat, and undoing what the last run did to memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from command_line import Run
from doubles.script import call, say
from e2e.cli.pty_program import on_terminal
from image_samples import png
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_edit_is_shown_explained_and_undone(
    system: System, ann: agent_pb.Agent, place: Mapping[str, str]
) -> None:
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes olives."}), say("Noted.")
    )
    before = (await system.block(ann, "human")).value
    async with on_terminal("chat", ann.name, "--no-usage", environment=place) as program:
        await program.shows("/help says more.")
        await program.shows("you>")
        program.type("I like olives.\r")
        await program.shows("memory block human: lines inserted, revision 2\n  + Likes olives.")
        await program.shows("you>", times=2)
        program.type("/memory human\r")
        await program.shows("human  13 of 20,000 characters, revision 2")
        await program.shows("you>", times=3)
        program.type("/log human\r")
        await program.shows(f"human revision 2: insert\nwho: agent {ann.name}")
        await program.shows("you>", times=4)
        program.type("/undo\r")
        await program.shows("human is now at revision 3.\n  - Likes olives.")
        await program.shows("you>", times=5)
        program.type("/undo\r")
        await program.shows("There is no run to undo.")
        await program.shows("you>", times=6)
        program.type("/memory nothing\r")
        await program.shows("[BLOCK_NOT_FOUND]")
        await program.shows("you>", times=7)
        program.type("/whatever\r")
        await program.shows("There is no command /whatever. /help lists the commands.")
        await program.shows("you>", times=8)
        program.type("\x04")
        assert await program.ends() == 0
    assert (await system.block(ann, "human")).value == before


async def test_undo_also_applies_to_runs_before_the_last_one(
    system: System, ann: agent_pb.Agent, place: dict[str, str]
) -> None:
    insert = "memory_insert"
    system.model.script(
        *(call(insert, {"label": "human", "new_str": "Likes olives."}), say("Noted.")),
        *(call(insert, {"label": "human", "new_str": "Likes figs."}), say("Noted.")),
        say("Nothing to note."),
    )
    before = (await system.block(ann, "human")).value
    async with on_terminal("chat", ann.name, "--no-usage", environment=place) as program:
        for number, words in enumerate(("olives", "figs"), start=1):
            await program.shows("you>", times=number)
            program.type(f"I like {words}.\r")
        await program.shows("you>", times=3)
        program.type("/quit\r")
        assert await program.ends() == 0
    async with on_terminal("chat", ann.name, "--no-usage", environment=place) as program:
        await program.shows("you>")
        program.type("Hello.\r")
        await program.shows("you>", times=2)
        program.type("/undo\r")
        await program.shows("That run changed no memory")
        program.type("/undo 2\r")
        await program.shows("- Likes figs.")
        await program.shows("- Likes olives.")
        program.type("/undo\r")
        await program.shows("There is no run to undo.")
        program.type("/exit\r")
        assert await program.ends() == 0
    assert (await system.block(ann, "human")).value == before


async def test_a_chat_shows_its_context_and_changes_model_and_conversation(
    system: System, ann: agent_pb.Agent, place: dict[str, str]
) -> None:
    system.model.script(say("In the first."), say("In the second."))
    async with on_terminal("chat", ann.name, "--no-usage", environment=place) as program:
        await program.shows("you>")
        program.type("One.\r")
        await program.shows("In the first.")
        program.type("/context\r")
        await program.shows("tokens")
        program.type("/new Another subject\r")
        await program.shows("A new conversation; to come back to it:")
        program.type("Two.\r")
        await program.shows("In the second.")
        program.type("/model\r")
        await program.shows("answers.")
        program.type("/model anthropic/test-model\r")
        await program.shows("anthropic/test-model answers from now on.")
        await program.shows("you>", times=7)
        program.type("\x04")
        assert await program.ends() == 0
    assert "One." not in str(system.model.requests[-1].last_text)
    response = await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=ann.id))
    assert response.agent.model.handle == "anthropic/test-model"


async def test_commands_work_in_a_pipe(strata: Run, system: System, ann: agent_pb.Agent) -> None:
    insert = call("memory_insert", {"label": "human", "new_str": "Likes olives."})
    system.model.script(insert, say("Noted."))
    before = (await system.block(ann, "human")).value
    lines = "I like olives.\n/memory human\n/undo\n/new\n/model\n/QUIT\nNot sent.\n"
    done = await strata("chat", ann.name, "--no-usage", typed=lines)
    assert done.code == 0, done.err
    assert done.out.startswith("Noted.\n")
    assert "Likes olives." in done.out
    assert "human is now at revision 3." in done.out
    assert done.out.endswith("answers.\n")
    assert "A new conversation" in done.err
    assert "A new conversation" not in done.out
    assert (await system.block(ann, "human")).value == before
    assert len(system.model.requests) == 2


@pytest.mark.parametrize("line", ["/undo", "/log", "/context", "/help", "/exit", "/memory"])
async def test_a_pipe_without_messages_ends_the_chat_with_success(
    strata: Run, system: System, ann: agent_pb.Agent, line: str
) -> None:
    done = await strata("chat", ann.name, typed=line)
    assert (done.code, system.model.requests) == (0, [])
    assert (await strata("chat", ann.name, typed="")).code == 0


@pytest.mark.parametrize("line", ["/whatever", "/undo all", "/undo 0", "/quit now", "/image"])
async def test_a_wrong_command_in_a_pipe_is_wrong_usage(
    strata: Run, system: System, ann: agent_pb.Agent, line: str
) -> None:
    done = await strata("chat", ann.name, typed=f"{line}\nNot sent.\n")
    assert (done.code, system.model.requests) == (2, [])
    assert done.err.startswith("Error: ")


@pytest.mark.parametrize("line", ["/etc/hosts is empty.", " /undo", "/", "/2 is a half."])
async def test_a_line_with_a_path_or_a_blank_before_the_slash_is_a_message(
    strata: Run, system: System, ann: agent_pb.Agent, line: str
) -> None:
    system.model.script(say("So be it."))
    done = await strata("chat", ann.name, "--no-usage", typed=f"{line}\n")
    assert (done.code, done.out) == (0, "So be it.\n")
    assert system.model.requests[-1].last_text.endswith(line)


async def test_a_chat_sends_an_image_with_its_text(
    system: System, ann: agent_pb.Agent, place: dict[str, str], tmp_path: Path
) -> None:
    photo = tmp_path / "a.png"
    photo.write_bytes(png(7, 6))
    system.model.script(say("A grey field."))
    async with on_terminal("chat", ann.name, "--no-usage", environment=place) as program:
        await program.shows("you>")
        program.type("/image missing.png Look.\r")
        await program.shows("No such file or directory")
        await program.shows("you>", times=2)
        program.type(f"/image {photo} What is this?\r")
        await program.shows("A grey field.")
        program.type("/quit\r")
        assert await program.ends() == 0
    assert system.model.requests[-1].images == [("image/png", png(7, 6))]
    assert "What is this?" in system.model.requests[-1].last_text
