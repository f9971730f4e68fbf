"""Slash commands in a chat, and undoing what the last run did to memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from doubles.script import call, say
from e2e.cli.pty_program import on_terminal
from e2e.memory.conftest import Run
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_edit_is_seen_explained_and_undone(
    world: World, ann: agent_pb.Agent, place: Mapping[str, str]
) -> None:
    world.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes olives."}), say("Noted.")
    )
    before = (await world.block(ann, "human")).value
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
        await program.shows("There is no command /whatever.\n  /memory [LABEL]")
        await program.shows("you>", times=8)
        program.type("\x04")
        assert await program.ends() == 0
    assert (await world.block(ann, "human")).value == before


async def test_a_pipe_sends_lines_with_a_slash(
    strata: Run, world: World, ann: agent_pb.Agent
) -> None:
    world.model.script(say("So be it."))
    done = await strata("chat", ann.name, "--no-usage", typed="/undo\n")
    assert (done.code, done.out) == (0, "So be it.\n")
    assert world.model.requests[-1].last_text.endswith("/undo")
