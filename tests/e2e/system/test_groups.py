"""Groups from the command line, with real agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chat_messages import text_of
from command_line import Outcome, Run, run_command
from doubles.script import ModelCall, Step, call, say
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.shared.ids import new_id
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

TYPES = [agent_pb.AGENT_TYPE_LETTA_V1, agent_pb.AGENT_TYPE_MEMGPT_V2]


@pytest.fixture
def strata(system: System, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; it must end well unless another code is expected."""
    monkeypatch.setenv("STRATA_ADDRESS", system.address)
    monkeypatch.setenv("STRATA_API_KEY", system.key)

    async def run(*arguments: str, code: int = 0, typed: str | None = None) -> Outcome:
        done = await run_command("groups", *arguments, typed=typed)
        assert done.code == code, done
        return done

    return run


def speaking(names: dict[str, str]) -> Callable[[ModelCall], Step]:
    """Returns a model that replies with the text for the name in the agent's system prompt."""

    def answer(request: ModelCall) -> Step:
        return say(
            next(text for name, text in names.items() if f"You are {name}." in request.system)
        )

    return answer


async def make(system: System, *names: str) -> dict[str, str]:
    """Makes agents with unique names; returns their ids by the short names."""
    made = {}
    for name in names:
        agent = await system.make_agent(
            name=f"{name} {new_id('x')[-8:]}", system=f"You are {name}."
        )
        made[name] = agent.id
    return made


async def test_a_group_is_created_shown_updated_used_and_deleted(
    system: System, strata: Run
) -> None:
    ids = await make(system, "Ada", "Bo")
    made = await strata("create", ids["Ada"], ids["Bo"], "--description", "Plans.", "--json")
    group_id = json.loads(made.out)["id"]
    assert group_id in (await strata("list", "--agent", ids["Bo"])).out
    await strata("update", group_id, "--member", ids["Bo"], "--member", ids["Ada"])
    await strata("update", group_id, "--max-turns", "3")
    shown = (await strata("show", group_id)).out
    assert shown.index(ids["Bo"]) < shown.index(ids["Ada"])
    assert "max turns: 3" in shown
    assert "Plans." in shown

    system.model.respond(speaking({"Ada": "Go by train.", "Bo": "Take a tent."}))
    done = await strata("chat", group_id, "-m", "Where shall we sleep?")
    lines = [line for line in done.out.splitlines() if line.strip()]
    names = [line.split()[0] for line in lines if line.endswith(":")]
    assert names == ["Bo", "Ada", "Bo"]
    assert [line for line in lines if line in {"Go by train.", "Take a tent."}] == [
        "Take a tent.",
        "Go by train.",
        "Take a tent.",
    ]
    events = [
        json.loads(line)
        for line in (await strata("chat", group_id, "-m", "And?", "--json")).out.splitlines()
    ]
    assert {event["member"]["agentId"] for event in events if "member" in event} == set(
        ids.values()
    )
    # Each agent's window has the other agent's messages once, with the name of their author.
    agent = await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=ids["Ada"]))
    log = await system.log(agent.agent)
    heard = [m for m in log if m.role == message_pb2.ROLE_USER and text_of(m) == "Take a tent."]
    assert len(heard) == 4
    assert all(m.name.startswith("Bo ") and m.group_id == group_id for m in heard)
    # The name is part of the text for the model.
    assert any(
        "Bo " in message["content"] and "Take a tent." in message["content"]
        for request in system.model.requests
        for message in request.body["messages"]
        if message["role"] == "user" and isinstance(message["content"], str)
    )

    await strata("delete", group_id, code=2)
    await strata("delete", group_id, "--yes")
    assert "There is no group" in (await strata("show", group_id, code=1)).err


async def test_lines_of_a_pipe_are_messages_to_a_dynamic_group(system: System, strata: Run) -> None:
    ids = await make(system, "Ada", "Bo", "Max")
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
    group_id = json.loads(made.out)["id"]
    system.model.respond(speaking({"Max": ids["Bo"], "Bo": "All is said. STOP", "Ada": "No."}))
    done = await strata("chat", group_id, typed="Well?\n\n")
    assert "All is said. STOP" in done.out
    assert "picks the next speaker" in done.out
    assert "No." not in done.out


async def test_a_group_of_an_agent_and_its_memory_agent_is_answered_by_the_agent(
    system: System, strata: Run
) -> None:
    await strata("create", "--type", "dynamic", code=2)
    max_ = await system.make_agent(
        name=f"Max {new_id('x')[-8:]}",
        system="You are Max.",
        enable_sleeptime=True,
        sleeptime_agent_frequency=1000,
    )
    system.model.respond(
        lambda request: (
            say("By train.")
            if "You are Max." in request.system
            else call("memory_finish_edits", {})
        )
    )
    made = await strata("create", "--type", "sleeptime", "--manager", max_.id, "--json")
    group_id = json.loads(made.out)["id"]
    shown = (await strata("show", group_id)).out
    assert max_.memory_agent_id in shown
    assert "memory agent runs after: every 1000 turns" in shown
    done = await strata("chat", group_id, "-m", "How?")
    assert speakers(done.out) == ["Max"]
    assert "By train." in done.out
    updated = await strata("update", group_id, "--manager", max_.id)
    assert max_.memory_agent_id in updated.out

    async def memory_agent_is_done() -> bool:
        request = run_pb.GetMemoryStatusRequest(agent_id=max_.id)
        [status] = (await system.runs.GetMemoryStatus(request)).conversations
        return not status.run_open and not status.pending_messages

    await eventually(memory_agent_is_done)


def scripted(steps: dict[str, list[Step]]) -> Callable[[ModelCall], Step]:
    """Returns a model that gives each agent its steps in order, by the name in its prompt."""
    left = {name: iter(own) for name, own in steps.items()}

    def answer(request: ModelCall) -> Step:
        return next(next(own) for name, own in left.items() if f"You are {name}." in request.system)

    return answer


def speakers(output: str) -> list[str]:
    """Returns the names of the speakers in the output of a command, in order."""
    return [line.split()[0] for line in output.splitlines() if line.endswith(":")]


@pytest.mark.parametrize("agent_type", TYPES)
async def test_a_manager_agent_asks_the_members_and_answers(
    system: System, strata: Run, agent_type: Any
) -> None:
    ids = await make(system, "Ada", "Bo")
    v2 = agent_type == agent_pb.AGENT_TYPE_MEMGPT_V2
    max_ = await system.make_agent(
        name=f"Max {new_id('x')[-8:]}", system="You are Max.", type=agent_type
    )
    kind = ("--type", "supervisor", "--manager", max_.id)
    made = await strata("create", ids["Ada"], ids["Bo"], *kind, "--json")
    group_id = json.loads(made.out)["id"]
    asks: dict[str, Any] = {"message": "How do we get there?"}
    final = "By train, then on foot."
    system.model.requests.clear()
    system.model.respond(
        scripted(
            {
                "Max": [
                    call(ASK_MEMBERS, {**asks, "request_heartbeat": True} if v2 else asks),
                    call("send_message", {"message": final}) if v2 else say(final),
                ],
                "Ada": [say("By train.")],
                "Bo": [say("On foot.")],
            }
        )
    )
    done = await strata("chat", group_id, "-m", "How?")
    names = speakers(done.out)
    assert (names[0], sorted(names[1:-1]), names[-1]) == ("Max", ["Ada", "Bo"], "Max")
    places = [done.out.index(text) for text in ("By train.", "On foot.", final)]
    assert max(places) == places[-1]
    first, last = (
        [request for request in system.model.requests if "You are Max." in request.system][place]
        for place in (0, -1)
    )
    offered = {tool["function"]["name"]: tool["function"] for tool in first.body["tools"]}
    assert '"Ada ' in offered[ASK_MEMBERS]["description"]
    [returned] = [m["content"] for m in last.body["messages"] if m.get("role") == "tool"][-1:]
    assert "By train." in returned
    assert "On foot." in returned
    # The windows of the members hold the question and their own answer, and nothing else.
    agent = (await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=ids["Ada"]))).agent
    asked, answered = [m for m in await system.log(agent) if m.role != message_pb2.ROLE_SYSTEM]
    assert text_of(asked).endswith("How do we get there?")
    assert (asked.group_id, text_of(answered)) == (group_id, "By train.")
    listed = await system.runs.ListRuns(run_pb.ListRunsRequest(group_id=group_id))
    [run] = listed.runs
    explained = await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=run.id))
    used = [span.usage.total_tokens for span in explained.spans if span.HasField("usage")]
    assert len(used) == 4
    assert sum(used) == run.usage.total_tokens
    steps = await system.runs.ListSteps(run_pb.ListStepsRequest(run_id=run.id))
    assert [step.step for step in steps.steps] == [1, 2, 3, 4]
    # Outside the group the manager does not have this tool, and it is not stored with the agent.
    system.model.respond(
        scripted({"Max": [call("send_message", {"message": "Hi."})] if v2 else [say("Hi.")]})
    )
    await system.send(max_, "Hello.")
    tools = system.model.requests[-1].body.get("tools", [])
    assert ASK_MEMBERS not in {tool["function"]["name"] for tool in tools}
    stored = await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=max_.id))
    assert ASK_MEMBERS not in stored.agent.tools


@pytest.mark.parametrize("agent_type", TYPES)
async def test_after_a_handover_the_other_member_keeps_the_conversation(
    system: System, strata: Run, agent_type: Any
) -> None:
    v2 = agent_type == agent_pb.AGENT_TYPE_MEMGPT_V2
    agents = {
        name: await system.make_agent(
            name=f"{name} {new_id('x')[-8:]}", system=f"You are {name}.", type=agent_type
        )
        for name in ("Ada", "Bo")
    }
    made = await strata(
        "create", *(agent.id for agent in agents.values()), "--type", "swarm", "--json"
    )
    group_id = json.loads(made.out)["id"]
    assert f"holds the conversation: {agents['Ada'].name}" in (await strata("show", group_id)).out

    def speak(text: str) -> Step:
        return call("send_message", {"message": text}) if v2 else say(text)

    system.model.requests.clear()
    wrong = {"agent": "Nobody", "message": ""}
    right = {"agent": agents["Bo"].name.lower(), "message": "She asks about tents."}
    system.model.respond(
        scripted(
            {
                "Ada": [call(HAND_OVER, wrong), call(HAND_OVER, right)],
                "Bo": [speak("Take the green one."), speak("It is dry.")],
            }
        )
    )
    done = await strata("chat", group_id, "-m", "Which tent?")
    assert speakers(done.out) == ["Ada", "Bo"]
    assert "Take the green one." in done.out
    of_ada = [request for request in system.model.requests if "You are Ada." in request.system]
    [tool] = [
        tool["function"]
        for tool in of_ada[0].body["tools"]
        if tool["function"]["name"] == HAND_OVER
    ]
    assert tool["parameters"]["properties"]["agent"]["enum"] == [agents["Bo"].name]
    assert "request_heartbeat" not in tool["parameters"]["properties"]
    assert "must be one of" in str(of_ada[1].body["messages"])
    of_bo = [request for request in system.model.requests if "You are Bo." in request.system]
    assert "She asks about tents." in str(of_bo[0].body["messages"])
    shown = (await strata("show", group_id)).out
    assert f"holds the conversation: {agents['Bo'].name}" in shown
    done = await strata("chat", group_id, "-m", "And in rain?")
    assert speakers(done.out) == ["Bo"]
    # When the agent that had taken over is deleted, the first member takes over.
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agents["Bo"].id))
    shown = (await strata("show", group_id)).out
    assert f"holds the conversation: {agents['Ada'].name}" in shown
