"""The pages of schedules, groups and memory agents."""

from __future__ import annotations

import html
import re

import pytest

from chat_messages import user_message
from console_client import HOSTILE, ConsoleClient, shown
from console_records import YEARLY, make_schedule
from doubles.script import say
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as schedule_grpc
from strata.protocol.errors import NotFoundError
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def schedule_of(system: System, schedule_id: str) -> schedule_pb.Schedule:
    stub = schedule_grpc.ScheduleServiceStub(system.channel)
    request = schedule_pb.GetScheduleRequest(schedule_id=schedule_id)
    schedule: schedule_pb.Schedule = (await stub.GetSchedule(request)).schedule
    return schedule


async def test_schedule_is_created_paused_resumed_and_deleted(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent()
    created = await ann.post(
        "/schedules",
        {
            "name": "each new year",
            "agent": agent.name,
            "message": "Happy new year.\r\nTidy up.",
            "cron": YEARLY,
            "time_zone": "Europe/Lisbon",
            "max_steps": "7",
            "enqueue": "on",
        },
    )
    assert created.status_code == 303, created.text
    path = created.headers["location"].removeprefix("/console")
    schedule = await schedule_of(system, path.rpartition("/")[2])
    assert (schedule.cron, schedule.time_zone, schedule.max_steps) == (YEARLY, "Europe/Lisbon", 7)
    assert schedule.messages[0].parts[0].text.text == "Happy new year.\nTidy up."
    assert schedule.on_overlap == schedule_pb.ON_OVERLAP_ENQUEUE
    assert "each new year" in (await ann.get("/schedules")).text
    assert "Pause" in (await ann.get(path)).text

    await ann.post(f"{path}/pause")
    assert (await schedule_of(system, schedule.id)).state == schedule_pb.SCHEDULE_STATE_PAUSED
    assert "Resume" in (await ann.get(path)).text
    await ann.post(f"{path}/resume")
    assert (await schedule_of(system, schedule.id)).state == schedule_pb.SCHEDULE_STATE_ACTIVE
    deleted = await ann.post(f"{path}/delete")
    assert deleted.headers["location"] == "/console/schedules"
    with pytest.raises(NotFoundError):
        await schedule_of(system, schedule.id)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_steps": "many"}, "max_steps"),
        ({"start_time": "tomorrow", "cron": ""}, "start_time"),
        ({"cron": "every day"}, "cron"),
        ({"agent": "nobody of this name"}, "AGENT_NOT_FOUND"),
    ],
)
async def test_refused_schedule_is_explained(
    system: System, ann: ConsoleClient, fields: dict[str, str], named: str
) -> None:
    agent = await system.make_agent()
    form = {"name": "refused", "agent": agent.id, "message": "Hello.", "cron": YEARLY, **fields}
    response = await ann.post("/schedules", form)
    assert response.status_code in (400, 404)
    assert f'id="{named}-problem"' in response.text or named == "AGENT_NOT_FOUND"
    assert named in response.text
    assert 'value="refused"' in response.text


async def test_groups_are_shown_with_members_and_runs(system: System, ann: ConsoleClient) -> None:
    agents = [await system.make_agent(description=HOSTILE) for _ in range(2)]
    group = (
        await system.groups.CreateGroup(
            group_pb.CreateGroupRequest(
                description=HOSTILE, agent_ids=[agent.id for agent in agents]
            )
        )
    ).group
    system.model.script(say("First."), say("Second."))
    [run_id] = {
        response.event.run_id
        async for response in system.runs.SendMessage(
            run_pb.SendMessageRequest(group_id=group.id, messages=[user_message("Hello, both.")])
        )
    }
    page = (await ann.get(f"/groups/{group.id}")).text
    assert all(agent.name in page for agent in agents)
    assert run_id in page
    listing = (await ann.get("/groups")).text
    assert f"/groups/{group.id}" in listing
    for text in (page, listing):
        assert shown("<script>alert(1)") in text
        assert "<script>alert" not in text
    timeline = (await ann.get(f"/runs/{run_id}")).text
    assert f"/groups/{group.id}" in timeline
    assert "<strong>model</strong>" in timeline
    events = (await ann.get(f"/runs/{run_id}/events")).text
    assert "Turn 2 started" in events
    assert agents[1].name in events


async def memory_agents(ann: ConsoleClient) -> str:
    """Returns all pages of the memory agents."""
    pages, path = "", "/memory-agents"
    while path:
        page = (await ann.get(path)).text
        pages += page
        following = re.search(r'href="/console([^"]+)">Next page', page)
        path = html.unescape(following.group(1)) if following else ""
    return pages


async def test_memory_agents_at_work_are_shown_and_started(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=50)
    assert agent.name in await memory_agents(ann)
    system.model.respond(lambda _: say("Nothing to keep."))
    await system.send(agent, "Hello.")
    await system.send(agent, "I like tea.")
    page = await memory_agents(ann)
    section = page[page.index(f"of-{agent.id}") :]
    assert "last run" in section
    assert re.search(r"\d+ messages", section)
    started = await ann.post(
        f"/agents/{agent.id}/memory-run", {"conversation_id": agent.default_conversation_id}
    )
    assert started.status_code == 303, started.text
    target = started.headers["location"].removeprefix("/console")
    assert target.startswith(("/runs/run-", "/memory-agents"))
    assert (await ann.get(target)).status_code == 200


async def test_hostile_texts_of_a_schedule_are_escaped(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent(name="<b onclick=alert(1)>scheduled")
    name = "<script>alert(1)</script> yearly"
    schedule = await make_schedule(system, agent, text=HOSTILE, name=name)
    for path in ("/schedules", f"/schedules/{schedule.id}"):
        page = (await ann.get(path)).text
        assert shown(name) in page
        assert "<script>alert" not in page
        assert "<b onclick" not in page
    assert shown(HOSTILE) in (await ann.get(f"/schedules/{schedule.id}")).text
