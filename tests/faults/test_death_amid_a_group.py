"""Everything dies while the members of a group of three speak: each speaks once in each turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from doubles.model_server import ModelServer
from doubles.script import ModelCall, Reply, Step
from live import LiveStrata
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from world import World, text_of, user

pytestmark = pytest.mark.timeout(300)

NAMES = ("Ada", "Bo", "Cy")
TURNS = 6
PLAIN_MESSAGE = "Plan a trip."


@pytest_asyncio.fixture(name="strata")
async def _strata(open_folder: Path) -> AsyncIterator[LiveStrata]:
    async with ModelServer() as model:
        strata = LiveStrata(open_folder / "data", model, split=False)
        try:
            yield strata
        finally:
            await strata.close()


def speaking(request: ModelCall) -> Step:
    """Says the name that the persona has and how many replies of its own it is shown, slowly."""
    name = next(name for name in NAMES if f"You are {name}." in request.system)
    own = sum(message["role"] == "assistant" for message in request.body["messages"])
    return Reply(text=f"{name} says {own + 1}", piece=2, pause=0.02)


async def members(world: World) -> list[agent_pb.Agent]:
    return [await world.make_agent(name=name, system=f"You are {name}.") for name in NAMES]


@pytest.mark.parametrize("seed", range(2))
async def test_no_member_speaks_twice_and_none_is_skipped(strata: LiveStrata, seed: int) -> None:
    chance = random.Random(seed)
    strata.model.respond(speaking)
    world = await strata.start()
    agents = await members(world)
    group = (
        await world.groups.CreateGroup(
            group_pb.CreateGroupRequest(
                agent_ids=[agent.id for agent in agents],
                manager=group_pb.ManagerConfig(max_turns=TURNS),
            )
        )
    ).group
    request = run_pb.StartRunRequest(group_id=group.id, messages=[user(PLAIN_MESSAGE)])
    run_id = (await world.runs.StartRun(request)).run.id
    after, deaths = 0, 0
    while deaths < 4:
        # After one to eight more events of the log everything dies.
        left = chance.randint(1, 8)
        call = world.runs.StreamRun(run_pb.StreamRunRequest(run_id=run_id, after_sequence=after))
        ended = False
        async for response in call:
            after = max(after, response.event.sequence)
            left -= response.event.sequence > 0
            ended = response.event.HasField("run_finished")
            if not left or ended:
                break
        call.cancel()
        if ended:
            break
        await strata.kill()
        deaths += 1
        await world.channel.close()
        world = await strata.start()
    ran = await world.follow(run_id)
    assert deaths >= 2
    check_log(ran.events)
    expected = [f"{NAMES[turn % 3]} says {turn // 3 + 1}" for turn in range(TURNS)]
    replies = [
        text_of(event.message_stored.message)
        for event in ran.events
        if event.HasField("message_stored")
    ]
    assert replies == expected
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.finished.usage.total_tokens > 0
    for agent in agents:
        # Its window holds the whole exchange once, in order, with who wrote what.
        log = [each for each in await world.log(agent) if each.role != message_pb2.ROLE_SYSTEM]
        assert [text_of(each) for each in log] == [PLAIN_MESSAGE, *expected]
        assert {each.group_id for each in log} == {group.id}
        for each in log[1:]:
            own = text_of(each).startswith(agent.name)
            assert each.role == (message_pb2.ROLE_ASSISTANT if own else message_pb2.ROLE_USER)
            assert own or text_of(each).startswith(each.name)
    await world.channel.close()


def check_log(events: list[event_pb.RunEvent]) -> None:
    """The log has no gap and no double, and each turn ends once."""
    stored = [event for event in events if event.sequence]
    assert [event.sequence for event in stored] == list(range(1, len(stored) + 1))
    copied = Counter(
        (event.member.run_id, event.member.sequence) for event in stored if event.HasField("member")
    )
    assert set(copied.values()) == {1}
    turns = [event.member.turn for event in stored if event.HasField("turn_finished")]
    assert turns == list(range(1, TURNS + 1))
