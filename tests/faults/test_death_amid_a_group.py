"""All processes are killed while groups of three kinds reply: each member replies once per turn."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from chat_messages import text_of, user_message
from doubles.script import ModelCall, Reply, Step, call
from faults.live import Live, ModelThread
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER
from whole_system import Shape, System

pytestmark = pytest.mark.timeout(300)

NAMES = ("Ada", "Bo", "Cy")
TURNS = 6
PLAIN_MESSAGE = "Plan a trip."
QUESTION = "Where to?"


@dataclass
class Watched:
    """A run of a group, and those of its events that were received."""

    run_id: str
    after: int = 0
    ended: bool = False


def speaking(request: ModelCall) -> Step:
    """Replies slowly with the persona's name and the number of its replies in the request.

    Max calls the members of its group first. Flo and Gus call the hand-over tool once each.
    """
    name = request.system.partition("You are ")[2].partition(".")[0]
    own = sum(message["role"] == "assistant" for message in request.body["messages"])
    calls = {
        "Max": call(ASK_MEMBERS, {"message": QUESTION}),
        "Flo": call(HAND_OVER, {"agent": "Gus", "message": "Yours."}),
        "Gus": call(HAND_OVER, {"agent": "Flo", "message": ""}),
    }
    if own == 0 and name in calls:
        return Reply(calls=calls[name].calls, piece=8, pause=0.02)
    return Reply(text=f"{name} says {own + 1}", piece=2, pause=0.02)


def client_of(live: Live, model: ModelThread, key: str) -> System:
    return System(Shape.IN_PROCESS, live.runtime.address, key, "", model.server)


async def new_project(live: Live, model: ModelThread) -> str:
    """Returns a key of a new project, in which no agent has these names yet."""
    world = client_of(live, model, live.key)
    world.organization_key = live.organization_key
    key = await world.key_of_other_project()
    await world.channel.close()
    return key


async def members(world: System, *names: str) -> list[agent_pb.Agent]:
    return [await world.make_agent(name=name, system=f"You are {name}.") for name in names]


async def start(world: System, agents: list[agent_pb.Agent], **manager: Any) -> Watched:
    """Creates a group of agents and sends it a message."""
    created = await world.groups.CreateGroup(
        group_pb.CreateGroupRequest(
            agent_ids=[agent.id for agent in agents], manager=group_pb.ManagerConfig(**manager)
        )
    )
    request = run_pb.StartRunRequest(
        group_id=created.group.id, messages=[user_message(PLAIN_MESSAGE)]
    )
    return Watched((await world.runs.StartRun(request)).run.id)


async def watch(world: System, runs: list[Watched], count: int) -> None:
    """Reads events until `count` more have arrived, or all runs have ended."""
    enough = asyncio.Event()
    left = count

    async def read(run: Watched) -> None:
        nonlocal left
        request = run_pb.StreamRunRequest(run_id=run.run_id, after_sequence=run.after)
        async for response in world.runs.StreamRun(request):
            event = response.event
            run.after = max(run.after, event.sequence)
            run.ended = event.HasField("run_finished")
            left -= event.sequence > 0
            if left <= 0:
                enough.set()

    async def read_all() -> None:
        await asyncio.gather(*(read(run) for run in runs if not run.ended))

    reading = asyncio.create_task(read_all())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait((reading, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if reading.done():
        reading.result()
    reading.cancel()
    await asyncio.wait((reading,))


@pytest.mark.parametrize(
    ("seed", "most"),
    [(0, 2), *(pytest.param(seed, 3, marks=pytest.mark.slow) for seed in (0, 1))],
)
async def test_no_member_replies_twice_and_none_is_skipped(
    live: Live, model: ModelThread, seed: int, most: int
) -> None:
    with model.answering(speaking):
        await reply_through_deaths(live, model, random.Random(seed), most)


async def reply_through_deaths(
    live: Live, model: ModelThread, chance: random.Random, most: int
) -> None:
    key = await new_project(live, model)
    world = client_of(live, model, key)
    in_turn = await members(world, *NAMES)
    manager, *asked = await members(world, "Max", "Dee", "Eve")
    swarm = await members(world, "Flo", "Gus")
    runs = [
        await start(world, in_turn, max_turns=TURNS),
        await start(
            world, asked, type=group_pb.MANAGER_TYPE_SUPERVISOR, manager_agent_id=manager.id
        ),
        await start(world, swarm, type=group_pb.MANAGER_TYPE_SWARM, max_turns=3),
    ]
    deaths = 0
    while deaths < most:
        # All processes are killed after one to sixteen further events.
        await watch(world, runs, chance.randint(1, 16))
        if all(run.ended for run in runs):
            break
        await live.kill()
        deaths += 1
        await world.channel.close()
        await live.start()
        world = client_of(live, model, key)
    assert deaths >= 2
    await check_in_turn(world, in_turn, await world.follow(runs[0].run_id))
    await check_asked(world, manager, asked, await world.follow(runs[1].run_id))
    await check_handed_over(world, swarm, await world.follow(runs[2].run_id))
    await world.channel.close()


async def check_in_turn(world: System, agents: list[agent_pb.Agent], ran: RunEvents) -> None:
    """Asserts that each window holds all messages once, in order, with their authors."""
    check_log(ran, TURNS)
    expected = [f"{NAMES[turn % 3]} says {turn // 3 + 1}" for turn in range(TURNS)]
    assert replies(ran) == expected
    for agent in agents:
        log = await conversation(world, agent)
        assert [text_of(message) for message in log] == [PLAIN_MESSAGE, *expected]
        assert len({message.group_id for message in log}) == 1
        for message in log[1:]:
            own = text_of(message).startswith(agent.name)
            assert message.role == (message_pb2.ROLE_ASSISTANT if own else message_pb2.ROLE_USER)
            assert own or text_of(message).startswith(message.name)


async def check_asked(
    world: System, manager: agent_pb.Agent, asked: list[agent_pb.Agent], ran: RunEvents
) -> None:
    """Asserts that each member was called and replied once, and the manager has both replies."""
    check_log(ran, 3)
    assert sorted(replies(ran)) == ["Dee says 1", "Eve says 1", "Max says 2"]
    assert replies(ran)[-1] == "Max says 2"
    for agent in asked:
        question, answer = await conversation(world, agent)
        assert text_of(question).endswith(QUESTION)
        assert text_of(answer) == f"{agent.name} says 1"
    message, _, returned, answer = await conversation(world, manager)
    assert (text_of(message), text_of(answer)) == (PLAIN_MESSAGE, "Max says 2")
    content = returned.parts[0].tool_return.content
    assert "Dee says 1" in content
    assert "Eve says 1" in content


async def check_handed_over(world: System, agents: list[agent_pb.Agent], ran: RunEvents) -> None:
    """Asserts that each hand-over counted once, and each window holds all messages once."""
    check_log(ran, 3)
    turns = [event.member.agent_name for event in ran.events if event.HasField("turn_finished")]
    assert turns == ["Flo", "Gus", "Flo"]
    assert replies(ran) == ["Flo says 2"]
    flo, gus = [await conversation(world, agent) for agent in agents]
    roles = message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_TOOL
    spoke = [*roles[:1], *roles[1:]]
    assert [message.role for message in flo] == [*spoke, message_pb2.ROLE_USER, roles[1]]
    assert text_of(flo[-1]) == "Flo says 2"
    assert [message.role for message in gus] == [roles[0], *spoke, roles[0]]
    assert text_of(gus[1]).endswith("Yours.")
    assert text_of(gus[-1]) == "Flo says 2"
    groups = (
        await world.groups.ListGroups(group_pb.ListGroupsRequest(agent_id=agents[0].id))
    ).groups
    assert [group.holder_agent_id for group in groups] == [agents[0].id]


async def conversation(world: System, agent: agent_pb.Agent) -> list[message_pb2.Message]:
    return [
        message for message in await world.log(agent) if message.role != message_pb2.ROLE_SYSTEM
    ]


def replies(ran: RunEvents) -> list[str]:
    """Returns the messages without tool calls and tool returns."""
    messages = [
        event.message_stored.message for event in ran.events if event.HasField("message_stored")
    ]
    return [
        text_of(message)
        for message in messages
        if message.role == message_pb2.ROLE_ASSISTANT and text_of(message)
    ]


def check_log(ran: RunEvents, count: int) -> None:
    """Asserts that the events have no gaps and repetitions, and each turn ends once."""
    stored = [event for event in ran.events if event.sequence]
    assert [event.sequence for event in stored] == list(range(1, len(stored) + 1))
    copied = Counter(
        (event.member.run_id, event.member.sequence) for event in stored if event.HasField("member")
    )
    assert set(copied.values()) == {1}
    turns = [event.member.turn for event in stored if event.HasField("turn_finished")]
    assert sorted(turns) == list(range(1, count + 1))
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.finished.usage.total_tokens > 0
