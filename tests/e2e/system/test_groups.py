"""Groups from the command line, with real agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from doubles.script import ModelCall, Step, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.cli.main import app
from strata.shared.ids import new_id
from world import World, text_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

Run = Callable[..., Any]


@pytest.fixture
def strata(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; it must end well unless another code is expected."""
    monkeypatch.setenv("STRATA_ADDRESS", world.address)
    monkeypatch.setenv("STRATA_API_KEY", world.key)
    runner = CliRunner()

    async def run(*arguments: str, code: int = 0, typed: str | None = None) -> Any:
        done = await asyncio.to_thread(
            runner.invoke, app, ["groups", *arguments], input=typed, catch_exceptions=False
        )
        assert done.exit_code == code, (done.stdout, done.stderr)
        return done

    return run


def speaking(names: dict[str, str]) -> Callable[[ModelCall], Step]:
    """Each agent says what is scripted for the name in its system prompt."""

    def answer(request: ModelCall) -> Step:
        return say(
            next(text for name, text in names.items() if f"You are {name}." in request.system)
        )

    return answer


async def make(world: World, *names: str) -> dict[str, str]:
    """Makes agents with unique names; returns their ids by the short names."""
    made = {}
    for name in names:
        agent = await world.make_agent(name=f"{name} {new_id('x')[-8:]}", system=f"You are {name}.")
        made[name] = agent.id
    return made


async def test_a_group_is_made_shown_changed_talked_with_and_deleted(
    world: World, strata: Run
) -> None:
    ids = await make(world, "Ada", "Bo")
    made = await strata("create", ids["Ada"], ids["Bo"], "--description", "Plans.", "--json")
    group_id = json.loads(made.stdout)["id"]
    assert group_id in (await strata("list", "--agent", ids["Bo"])).stdout
    await strata("update", group_id, "--member", ids["Bo"], "--member", ids["Ada"])
    await strata("update", group_id, "--max-turns", "3")
    shown = (await strata("show", group_id)).stdout
    assert shown.index(ids["Bo"]) < shown.index(ids["Ada"])
    assert "max turns: 3" in shown
    assert "Plans." in shown

    world.model.respond(speaking({"Ada": "Go by train.", "Bo": "Take a tent."}))
    done = await strata("chat", group_id, "-m", "Where shall we sleep?")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    names = [line.split()[0] for line in lines if line.endswith(":")]
    assert names == ["Bo", "Ada", "Bo"]
    assert [line for line in lines if line in {"Go by train.", "Take a tent."}] == [
        "Take a tent.",
        "Go by train.",
        "Take a tent.",
    ]
    events = [
        json.loads(line)
        for line in (await strata("chat", group_id, "-m", "And?", "--json")).stdout.splitlines()
    ]
    assert {event["member"]["agentId"] for event in events if "member" in event} == set(
        ids.values()
    )
    # Each agent's window has the words of the other with its name, once.
    agent = await world.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=ids["Ada"]))
    log = await world.log(agent.agent)
    heard = [m for m in log if m.role == message_pb2.ROLE_USER and text_of(m) == "Take a tent."]
    assert len(heard) == 4
    assert all(m.name.startswith("Bo ") and m.group_id == group_id for m in heard)
    # The model is shown the name.
    assert any(
        "Bo " in message["content"] and "Take a tent." in message["content"]
        for request in world.model.requests
        for message in request.body["messages"]
        if message["role"] == "user" and isinstance(message["content"], str)
    )

    await strata("delete", group_id, code=2)
    await strata("delete", group_id, "--yes")
    assert "There is no group" in (await strata("show", group_id, code=1)).stderr


async def test_lines_of_a_pipe_are_messages_to_a_dynamic_group(world: World, strata: Run) -> None:
    ids = await make(world, "Ada", "Bo", "Max")
    made = await strata(
        "create",
        ids["Ada"],
        ids["Bo"],
        "--type",
        "dynamic",
        "--manager",
        ids["Max"],
        "--max-turns",
        "2",
        "--termination-token",
        "STOP",
        "--json",
    )
    group_id = json.loads(made.stdout)["id"]
    world.model.respond(speaking({"Max": ids["Bo"], "Bo": "All is said. STOP", "Ada": "No."}))
    done = await strata("chat", group_id, typed="Well?\n\n")
    assert "All is said. STOP" in done.stdout
    assert "picks the next speaker" in done.stdout
    assert "No." not in done.stdout


async def test_a_kind_that_takes_no_messages_says_so(world: World, strata: Run) -> None:
    ids = await make(world, "Ada")
    made = await strata("create", ids["Ada"], "--type", "swarm", "--json")
    done = await strata("chat", json.loads(made.stdout)["id"], "-m", "Hi", code=1)
    assert "swarm take no messages" in done.stderr
