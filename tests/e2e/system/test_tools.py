"""Tools from files: stored with the command line and used by an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import run_command
from doubles.script import Call, Reply, say
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

DICE = '''
"""Dice."""

import os


def roll_dice(sides: int = 6, times: int = 1) -> list[int]:
    """Rolls dice.

    Args:
        sides: Of one die.
        times: How often.
    """
    if sides < 1:
        raise ValueError(f"no such die, {os.environ.get('DICE_KEY')}")
    return [sides] * times
'''


async def strata(system: System, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    """Runs a command against the system; returns its exit code and what it printed."""
    access = ("--address", system.address, "--api-key", system.key)
    outcome = await run_command(*arguments, *access, typed=typed)
    return outcome.code, outcome.out, outcome.err


async def test_a_tool_from_a_file_is_tried_attached_to_an_agent_and_deleted(
    system: System, tmp_path: Path
) -> None:
    file = tmp_path / "dice.py"
    file.write_text(DICE)
    code, out, err = await strata(system, "tools", "run", str(file), "--args", '{"times": 2}')
    assert (code, json.loads(out)) == (0, [6, 6]), err
    assert "isolation: " in err
    code, _, err = await strata(system, "tools", "run", "roll_dice")
    assert (code, "TOOL_NOT_FOUND" in err) == (1, True)

    code, _, err = await strata(
        system, "tools", "add", str(file), "--tag", "game", "--effect", "read-only"
    )
    assert code == 0, err
    code, out, _ = await strata(system, "tools", "list")
    assert any(line.startswith("roll_dice\tcustom\tRolls dice.") for line in out.splitlines())
    code, out, _ = await strata(system, "tools", "search", "throw", "a", "die", "--json")
    assert json.loads(out)["hits"][0]["tool"]["name"] == "roll_dice"
    code, out, _ = await strata(system, "tools", "show", "roll_dice")
    assert "effect: read only" in out
    assert DICE.strip() in out

    agent = await system.make_agent(tools=["roll_dice"])
    system.model.script(Reply(calls=(Call("roll_dice", {"sides": 20}),)), say("Twenty!"))
    ran = await system.send(agent, "Roll a die with twenty sides.")
    assert ran.text == "Twenty!"
    [tool_return] = ran.tool_returns
    assert json.loads(tool_return.content)["message"] == [20]

    code, _, err = await strata(system, "tools", "delete", "roll_dice")
    assert code == 0, err
    assert (await strata(system, "tools", "delete", "roll_dice"))[0] == 1
    # Agents to which the tool was attached continue without it.
    system.model.script(Reply(calls=(Call("roll_dice", {}),)), say("I have no dice."))
    ran = await system.send(agent, "Roll it again.")
    assert ran.text == "I have no dice."
    assert "roll_dice" not in system.model.requests[-1].tool_names


async def test_a_secret_is_stored_and_used_but_never_shown(system: System, tmp_path: Path) -> None:
    file = tmp_path / "dice.py"
    file.write_text(DICE)
    await strata(system, "tools", "add", str(file), "--secret", "DICE_KEY")
    code, out, _ = await strata(system, "tools", "run", "roll_dice", "--args", '{"sides": 0}')
    assert code == 1
    assert "needs the secret DICE_KEY" in out
    code, out, err = await strata(system, "tools", "secret", "set", "DICE_KEY", typed="hush-hush\n")
    assert code == 0, err
    assert "hush" not in out + err
    code, out, _ = await strata(system, "tools", "run", "roll_dice", "--args", '{"sides": 0}')
    assert code == 1
    assert "no such die, [secret DICE_KEY]" in out
    await strata(system, "tools", "secret", "delete", "DICE_KEY")
    await strata(system, "tools", "delete", "roll_dice")


async def test_a_file_may_begin_with_a_byte_order_mark(system: System, tmp_path: Path) -> None:
    file = tmp_path / "dice.py"
    file.write_text(DICE, encoding="utf-8-sig")
    code, out, err = await strata(system, "tools", "run", str(file))
    assert code == 0, err
    assert json.loads(out)


async def test_errors_of_a_file_have_their_line(system: System, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import os\n\ndef f(x, **rest):\n    'Does.'\n")
    code, _, err = await strata(system, "tools", "add", str(file))
    assert code == 1
    assert "line 3, parameter 'x': has no annotation" in err
    assert "line 3, parameter 'rest'" in err
    code, _, err = await strata(system, "tools", "add", str(tmp_path / "none.py"))
    assert code == 2
