"""``strata`` on a terminal: typing, Ctrl-C, Ctrl-D, a lost connection, an editor."""

from __future__ import annotations

import asyncio
import os
import readline
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cli.pty_program import on_terminal
from e2e.cli.scripted import (
    KEY,
    RUN_ID,
    ScriptedGateway,
    asks_approval,
    delta,
    finished,
    play,
    reply,
    snapshot,
    started,
    step,
    stored,
)
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import run_service_pb2
from strata.protocol.errors import FailedPreconditionError, Reason

CTRL_C, CTRL_D = "\x03", "\x04"
# What a terminal puts around a paste while a program has bracketed paste switched on.
PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"

LIBEDIT = "libedit" in (readline.__doc__ or "")


def kept_in(folder: Path) -> list[Path]:
    return list(folder.glob("strata-memory-*.txt"))


@pytest.fixture
def place(gateway: ScriptedGateway) -> Mapping[str, str]:
    gateway.agents.add("ann")
    return {"STRATA_ADDRESS": gateway.address, "STRATA_API_KEY": KEY}


async def test_a_conversation(gateway: ScriptedGateway, place: Mapping[str, str]) -> None:
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("You talk with ann.")
        await program.shows("you>")
        program.type("Hi\r")
        await program.shows("\nHello!\n1,234 tokens in, 56 out")
        await program.shows("you>", times=2)
        program.type("And again\r")
        await program.shows("you> And again\nHello!\n")
        await program.shows("you>", times=3)
        program.type(CTRL_D)
        assert await program.ends() == 0
    texts = [request.messages[0].parts[0].text.text for request in gateway.runs.sent]
    assert texts == ["Hi", "And again"]


async def test_a_call_that_needs_approval_opens_a_prompt(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    asked, waits = asks_approval('{"amount": 3}'), run_event_pb2.STOP_REASON_REQUIRES_APPROVAL
    gateway.runs.on_send = play(started(), step(), delta("May I?"), asked, finished(4, waits))
    gateway.runs.on_answer = play(started(), asked, finished(4, waits))
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type("Pay him\r")
        await program.shows("May I?\nNeeds approval: pay(amount=3)")
        await program.shows('"amount": 3')
        await program.shows("Approve? [y/n]")
        program.type("y\r")
        await program.shows("Approve? [y/n]", times=2)
        gateway.runs.on_answer = reply("As you like.")
        program.type("n\r")
        await program.shows("Reason (for the agent, may be empty):")
        program.type("Too dear\r")
        await program.shows("As you like.")
        await program.shows("you>", times=2)
        program.type(CTRL_D)
        assert await program.ends() == 0
    first, second = (request.decisions[0] for request in gateway.runs.answered)
    assert (first.approve, first.arguments_hash) == (True, "h")
    assert (second.approve, second.reason) == (False, "Too dear")


async def test_a_pending_approval_opens_a_prompt_before_the_next_message(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    request = asks_approval("{}").approval_requested.approval

    async def refuse_once(_: Any) -> AsyncIterator[Any]:
        if not gateway.runs.answered:
            raise FailedPreconditionError(
                "It waits.",
                reason=Reason.APPROVAL_PENDING,
                metadata={"approval_id": request.approval_id},
            )
        async for event in reply("Hello!")(None):
            yield event

    gateway.runs.on_send = refuse_once
    gateway.runs.approvals = [run_service_pb2.Approval(request=request)]
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type("Hi\r")
        await program.shows("Approve? [y/n]")
        program.type("n\r")
        await program.shows("Reason")
        program.type("\r")
        await program.shows("Thank you.")
        await program.shows("Hello!")
        await program.shows("you>", times=2)
        program.type(CTRL_D)
        assert await program.ends() == 0


async def test_agent_is_created_after_confirmation(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async with on_terminal("chat", "newcomer", environment=place) as program:
        await program.shows('There is no agent "newcomer". Create it? [Y/n]')
        program.type("n\r")
        assert await program.ends() == 1
    assert [agent.name for agent in gateway.agents.agents] == ["ann"]
    async with on_terminal("chat", "newcomer", environment=place) as program:
        await program.shows("Create it? [Y/n]")
        program.type("\r")
        await program.shows("You talk with newcomer.")
        await program.shows("you>")
        program.type(CTRL_D)
        assert await program.ends() == 0
    assert [agent.name for agent in gateway.agents.agents] == ["ann", "newcomer"]


@pytest.mark.skipif(LIBEDIT, reason="this Python has libedit, which drops such bytes")
async def test_line_that_is_not_utf_8_does_not_end_the_chat(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type(os.fsdecode(b"\xff\xfe x\r"))
        await program.shows("bytes that are not UTF-8")
        program.type("Hello.\r")
        await program.shows("you>", times=3)
        program.type(CTRL_D)
        assert await program.ends() == 0


async def test_line_that_ends_in_a_backslash_continues_on_the_next_line(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type("one\\\r")
        await program.shows("...>")
        program.type("two\r")
        await program.shows("you>", times=2)
        program.type(CTRL_D)
        assert await program.ends() == 0
    [request] = gateway.runs.sent
    assert request.messages[0].parts[0].text.text == "one\ntwo"


@pytest.mark.skipif(LIBEDIT, reason="this Python has libedit, which has no bracketed paste")
async def test_lines_that_are_pasted_are_one_message(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type(f"Look: {PASTE_BEGINS}one\n\ttwo\n\nthree\n{PASTE_ENDS}")
        await program.shows("three")
        assert gateway.runs.sent == []
        program.type(" Thanks.\r")
        await program.shows("Hello!")
        await program.shows("you>", times=2)
        program.type(CTRL_D)
        assert await program.ends() == 0
    [request] = gateway.runs.sent
    assert request.messages[0].parts[0].text.text == "Look: one\n\ttwo\n\nthree\n Thanks."


async def test_lines_that_are_pasted_without_bracketed_paste_are_one_message(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    # A terminal of this type has no bracketed paste.
    async with on_terminal("chat", "ann", environment={**place, "TERM": "dumb"}) as program:
        await program.shows("you>")
        program.type("Look: one\ntwo\n\nthree")
        await program.shows("three")
        assert gateway.runs.sent == []
        program.type(" Thanks.\r")
        await program.shows("Hello!")
        await program.shows("you>", times=2)
        program.type("Bye.\r")
        await program.shows("you>", times=3)
        program.type(CTRL_D)
        assert await program.ends() == 0
    texts = [request.messages[0].parts[0].text.text for request in gateway.runs.sent]
    assert texts == ["Look: one\ntwo\n\nthree Thanks.", "Bye."]


async def test_ctrl_c_cancels_the_run_and_not_the_program(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async def until_cancelled(_: Any) -> AsyncIterator[Any]:
        for event in (started(), step(), delta("On and on")):
            yield event
        await gateway.runs.cancel_asked.wait()
        yield finished(stop=run_event_pb2.STOP_REASON_CANCELLED)

    gateway.runs.on_send = until_cancelled
    async with on_terminal("chat", "ann", environment=place) as program:
        await program.shows("you>")
        program.type("Hi\r")
        await program.shows("On and on")
        program.type(CTRL_C)
        await program.shows("\nCancelled.\n")
        assert gateway.runs.cancelled == [RUN_ID]
        gateway.runs.on_send = play(started(), step(), stored("Still here."), finished())
        await program.shows("you>", times=2)
        program.type("Are you there?\r")
        await program.shows("Still here.")
        await program.shows("you>", times=3)
        program.type("half a li")
        await program.shows("you> half a li")
        await program.interrupt(until="(Ctrl-D leaves)\nyou>")
        program.type(CTRL_D)
        assert await program.ends() == 0
    assert len(gateway.runs.sent) == 2


async def test_a_second_ctrl_c_stops_waiting_for_a_run_that_does_not_end(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    async def endless(_: Any) -> AsyncIterator[Any]:
        yield started()
        await asyncio.Event().wait()

    gateway.runs.on_send = endless
    async with on_terminal("chat", "ann", "-m", "Hi", environment=place) as program:
        await program.shows("reading memory")
        program.type(CTRL_C)
        await program.shows("Ctrl-C again leaves at once.")
        await gateway.runs.cancel_asked.wait()
        program.type(CTRL_C)
        await program.shows(f"strata runs show {RUN_ID}")
        assert await program.ends() == 1


async def test_a_connection_lost_during_a_reply_leaves_no_trace_on_the_screen(
    gateway: ScriptedGateway, place: Mapping[str, str]
) -> None:
    go_on = asyncio.Event()

    async def first_half(_: Any) -> AsyncIterator[Any]:
        for event in (started(), step(), delta("It goes ")):
            yield event
        await asyncio.Event().wait()

    async def second_half(_: Any) -> AsyncIterator[Any]:
        yield snapshot("It goes on ")
        await go_on.wait()
        for event in (delta("and ends."), stored("It goes on and ends."), finished()):
            yield event

    gateway.runs.on_send = first_half
    gateway.runs.on_stream = second_half
    async with on_terminal("chat", "ann", "-m", "Hi", "--no-usage", environment=place) as program:
        await program.shows("It goes")
        await gateway.stop()
        await program.shows("It goes\nConnection lost; trying again …\n")
        await gateway.start()
        await program.shows("It goes on")
        go_on.set()
        assert await program.ends() == 0
        assert program.terminal.text == "It goes on and ends."


async def test_a_block_is_edited_in_the_configured_editor(
    gateway: ScriptedGateway, place: Mapping[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import sys, pathlib\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text().replace('Rome', 'Oslo') + '\\n')\n"
    )
    environment = {**place, "EDITOR": f"{sys.executable} {script}"}
    async with on_terminal("memory", "edit", "ann", "human", environment=environment) as program:
        await program.shows("human is now at revision 4.")
        assert await program.ends() == 0
    assert gateway.blocks.block.value == "Name: Ann\nCity: Oslo"


async def test_the_text_of_a_conflicting_edit_is_kept_in_a_file(
    gateway: ScriptedGateway, place: Mapping[str, str], tmp_path: Path
) -> None:
    def agent_edits() -> None:
        gateway.blocks.block.value = "the agent's"
        gateway.blocks.block.revision += 1

    gateway.blocks.before_update = agent_edits
    script = tmp_path / "editor.py"
    script.write_text("import sys, pathlib\npathlib.Path(sys.argv[1]).write_text('mine')\n")
    environment = {**place, "VISUAL": f"{sys.executable} {script}", "TMPDIR": str(tmp_path)}
    async with on_terminal("memory", "edit", "ann", "human", environment=environment) as program:
        await program.shows("[EDIT_CONFLICT]")
        assert await program.ends() == 1
    assert [file.read_text() for file in kept_in(tmp_path)] == ["mine"]
    assert gateway.blocks.block.value == "the agent's"
