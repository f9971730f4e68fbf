"""``strata prompts`` and ``strata agents create --prompt``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from strata.agent_loop.prompts.library import PromptLibrary, system_prompt
from strata.agent_loop.servicers.prompts import PromptServicer


@pytest.fixture
def gateway(gateway: ScriptedGateway, tmp_path: Path) -> ScriptedGateway:
    (tmp_path / "butler.txt").write_text("You are a butler.\n", encoding="utf-8")
    (tmp_path / "broken.txt").write_bytes(b"\xff")
    vars(gateway.prompts).update(vars(PromptServicer(PromptLibrary(tmp_path))))
    return gateway


async def test_prompts_are_listed_with_their_source_and_problems(
    gateway: ScriptedGateway, strata: Run
) -> None:
    done = await strata("prompts", "list")
    assert done.code == 0, done
    lines = {line.split("\t")[0]: line for line in done.out.splitlines()}
    assert lines["butler"].split("\t")[1:3] == ["file", "17"]
    assert "not used: broken.txt is not UTF-8" in lines["broken"]
    assert lines["react"].split("\t")[1] == "Strata"

    listing = json.loads((await strata("prompts", "list", "--json")).out)
    assert listing["prompts"][-1]["key"] == "butler"


async def test_prompt_is_printed_to_the_byte(gateway: ScriptedGateway, strata: Run) -> None:
    assert (await strata("prompts", "show", "butler")).out == "You are a butler.\n"
    assert (await strata("prompts", "show", "react")).out == system_prompt("react") + "\n"
    assert json.loads((await strata("prompts", "show", "butler", "--json")).out)["key"] == "butler"


async def test_unknown_prompt_is_one_readable_line(gateway: ScriptedGateway, strata: Run) -> None:
    done = await strata("prompts", "show", "nobody")
    assert done.code == 1
    assert 'There is no prompt "nobody".' in done.err


async def test_agent_is_created_with_the_key_of_a_prompt(
    gateway: ScriptedGateway, strata: Run
) -> None:
    done = await strata("agents", "create", "bo", "--prompt", "butler")
    assert done.code == 0, done
    [request] = gateway.agents.created
    assert request.system_prompt_key == "butler"
    assert not request.HasField("system")


async def test_prompt_and_system_together_are_wrong_usage(
    gateway: ScriptedGateway, strata: Run
) -> None:
    done = await strata("agents", "create", "bo", "--prompt", "butler", "--system", "Be kind.")
    assert done.code == 2
    assert "Give one of --prompt, --system and --system-file." in done.err
    assert gateway.agents.created == []
