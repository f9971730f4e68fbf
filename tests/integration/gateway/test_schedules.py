"""Schedules through the API and the command line, with several gateways and with kills."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from typing import Any

import grpc.aio
import pytest

from command_line import run_command
from integration.gateway.gateway_processes import start_process
from integration.gateway.projects import project, project_key
from integration.gateway.schedule_calls import YEARLY, Schedules
from integration.gateway.scripted_services import Gateway, ScriptedServices, message
from polling import eventually
from sql_queries import execute
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import schedule_service_pb2 as pb
from strata.api.gateway.v1 import schedule_service_pb2_grpc as pb_grpc
from strata.protocol.status import from_rpc_error
from strata.shared.ids import new_id


async def make_due(services: ScriptedServices) -> None:
    """Makes all schedules due by setting them back to the tick of this year."""
    await execute(
        services.urls.admin_url,
        "UPDATE gateway.schedules SET next_time = next_time - interval '1 year'"
        " WHERE state = 'ACTIVE'",
    )


async def completed(gateway: Gateway, run_id: str) -> bool:
    return (await gateway.run(run_id)).state == run_pb.RUN_STATE_COMPLETED


async def refused(call: Any) -> tuple[str, str, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error = from_rpc_error(raised.value)
    return error.status, error.reason.value, [violation.field for violation in error.violations]


async def test_a_due_schedule_starts_one_run_on_any_gateway(
    services: ScriptedServices,
) -> None:
    first, second = await services.gateway(), await services.gateway()
    schedules = Schedules(first)
    schedule = await schedules.create(services.new_agent())
    assert schedule.state == pb.SCHEDULE_STATE_ACTIVE
    await make_due(services)

    async def started() -> bool:
        return bool((await schedules.get(schedule.id)).last_run_id)

    await eventually(started)
    run_id = (await Schedules(second).get(schedule.id)).last_run_id
    await eventually(lambda: completed(second, run_id))
    run = await second.run(run_id)
    assert run.kind == run_pb.RUN_KIND_BACKGROUND
    [request] = services.turns.requests
    assert [part.text.text for part in request.messages[0].parts] == ["Good morning"]
    [tick] = (await schedules.ticks(schedule.id)).ticks
    assert (tick.run_id, tick.outcome) == (run_id, pb.TICK_OUTCOME_STARTED)
    # The run has the scopes of the key that made the schedule.
    assert set(services.turns.callers[0].scopes) >= {"run"}


async def test_a_killed_gateway_neither_loses_nor_repeats_a_tick(
    socket_services: ScriptedServices,
) -> None:
    services = socket_services
    survivor = await services.gateway()
    schedules = Schedules(survivor)
    made = [await schedules.create(services.new_agent()) for _ in range(12)]
    process, _ = await start_process(services, lease_s=2, poll_s=0.05)
    try:
        await make_due(services)

        async def some_started() -> bool:
            listing = await schedules.list(page_size=100)
            return any(schedule.last_run_id for schedule in listing.schedules)

        await eventually(some_started)
        process.send_signal(signal.SIGKILL)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def all_completed() -> bool:
        listing = await schedules.list(page_size=100)
        run_ids = [schedule.last_run_id for schedule in listing.schedules]
        return all(run_ids) and all([await completed(survivor, run_id) for run_id in run_ids])

    await eventually(all_completed, seconds=60)
    for schedule in made:
        [tick] = (await schedules.ticks(schedule.id)).ticks
        assert tick.outcome == pb.TICK_OUTCOME_STARTED
        runs = await survivor.runs.ListRuns(
            run_pb.ListRunsRequest(agent_id=schedule.agent_id), metadata=survivor.metadata
        )
        assert [run.id for run in runs.runs] == [tick.run_id]
    # A turn may be dispatched again; no agent has a second run.
    assert len(Counter(request.run_id for request in services.turns.requests)) == len(made)


async def test_a_deleted_agent_disables_its_schedules(socket_services: ScriptedServices) -> None:
    gateway = await socket_services.gateway()
    schedules = Schedules(gateway)
    agent_id = socket_services.new_agent()
    schedule = await schedules.create(agent_id)
    agents = agent_grpc.AgentServiceStub(gateway.channel)
    request = agent_pb.DeleteAgentRequest(agent_id=agent_id)
    await agents.DeleteAgent(request, metadata=gateway.metadata)
    response = await schedules.get(schedule.id)
    assert response.state == pb.SCHEDULE_STATE_DISABLED
    assert response.state_reason == "AGENT_NOT_FOUND"
    assert not response.HasField("next_time")
    stub = pb_grpc.ScheduleServiceStub(gateway.channel)
    resume = stub.ResumeSchedule(
        pb.ResumeScheduleRequest(schedule_id=schedule.id), metadata=gateway.metadata
    )
    assert (await refused(resume))[:2] == ("NOT_FOUND", "AGENT_NOT_FOUND")


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"cron": ""}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"cron": "", "start_time": {"seconds": 1}}, "start_time"),
        ({"cron": "", "start_time": {"seconds": 2**62}}, "start_time"),
        ({"name": ""}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"messages": []}, "messages"),
        ({"max_steps": 201}, "max_steps"),
        ({"on_overlap": 9}, "on_overlap"),
        ({"on_approval": 9}, "on_approval"),
    ],
)
async def test_a_wrong_field_is_named(
    socket_services: ScriptedServices, fields: dict[str, Any], violation: str
) -> None:
    schedules = Schedules(await socket_services.gateway())
    refusal = await refused(schedules.create(socket_services.new_agent(), **fields))
    assert refusal == ("INVALID_ARGUMENT", "INVALID_FIELD", [violation])
    assert not (await schedules.list()).schedules


async def test_a_schedule_of_an_unknown_agent_is_refused(socket_services: ScriptedServices) -> None:
    schedules = Schedules(await socket_services.gateway())
    assert (await refused(schedules.create(new_id("agent"))))[:2] == (
        "NOT_FOUND",
        "AGENT_NOT_FOUND",
    )


async def test_schedules_are_listed_in_pages_and_changed_field_by_field(
    socket_services: ScriptedServices,
) -> None:
    schedules = Schedules(await socket_services.gateway())
    agents = [socket_services.new_agent() for _ in range(3)]
    made = [await schedules.create(agent, time_zone="Europe/Berlin") for agent in agents]
    first = await schedules.list(page_size=2)
    rest = await schedules.list(page_size=2, page_token=first.next_page_token)
    listed = [schedule.id for page in (first, rest) for schedule in page.schedules]
    assert listed == [schedule.id for schedule in reversed(made)]
    [named] = (await schedules.list(name=made[1].name)).schedules
    assert named == made[1]
    assert [schedule.id for schedule in (await schedules.list(agent_id=agents[2])).schedules] == [
        made[2].id
    ]

    changed = await schedules.update(named.id, cron="30 9 * * MON-FRI")
    assert (changed.cron, changed.time_zone) == ("30 9 * * MON-FRI", "Europe/Berlin")
    assert changed.next_time != named.next_time
    changed = await schedules.update(named.id, messages=[message("Hi")], max_steps=3)
    assert changed.cron == "30 9 * * MON-FRI"
    assert (changed.max_steps, changed.messages[0].parts[0].text.text) == (3, "Hi")
    again = await schedules.update(named.id, on_overlap=pb.ON_OVERLAP_ENQUEUE)
    assert (again.max_steps, again.on_overlap) == (3, pb.ON_OVERLAP_ENQUEUE)
    assert again.next_time == changed.next_time
    once = await schedules.update(named.id, start_time={"seconds": 4_000_000_000})
    assert (once.cron, once.next_time.seconds) == ("", 4_000_000_000)


async def test_the_command_line_creates_shows_pauses_and_deletes_schedules(
    socket_services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await socket_services.gateway()
    monkeypatch.setenv("STRATA_ADDRESS", gateway.address)
    monkeypatch.setenv("STRATA_API_KEY", gateway.api_key)
    agent_id = socket_services.new_agent()

    async def strata(*arguments: str, code: int = 0) -> str:
        done = await run_command("schedules", *arguments)
        assert done.code == code, done
        return done.out if code == 0 else done.err

    created = json.loads(
        await strata(
            *("create", "morning", agent_id, "Good morning", "--cron", YEARLY),
            *("--time-zone", "Europe/Berlin", "--enqueue", "--json"),
        )
    )
    assert (created["cron"], created["timeZone"]) == (YEARLY, "Europe/Berlin")
    assert "morning" in await strata("list")
    assert "Good morning" in await strata("show", "morning")
    assert "0 9 * * *" in await strata("update", "morning", "--cron", "0 9 * * *")
    assert "paused" in (await strata("pause", "morning")).lower()
    assert "active" in (await strata("resume", created["id"])).lower()
    assert await strata("ticks", "morning", "--json")
    await strata("create", "once", agent_id, "Ping", "--at", "2h")
    await strata("create", "neither", agent_id, "Ping", code=2)
    await strata("delete", "morning")
    assert "no schedule" in await strata("show", "morning", code=1)


@pytest.mark.parametrize("pause", [False, True])
async def test_revoking_a_key_lists_its_schedules_and_can_pause_them(
    services: ScriptedServices, pause: bool
) -> None:
    gateway = await services.gateway()
    own = await project(gateway, f"own {pause}")
    admin = await project_key(gateway, own.id, "admin", "read", "run")
    other = await project_key(gateway, own.id, "read", "run")
    agent = services.new_agent()
    kept = await Schedules(admin).create(agent)
    of_other = await Schedules(other).create(agent)
    start_time = {"seconds": int(time.time()) + 3600}
    kept_run = await admin.start_run(agent, start_time=start_time)
    delayed = await other.start_run(agent, start_time=start_time)
    listed = await admin.admin.ListApiKeys(admin_pb.ListApiKeysRequest(), metadata=admin.metadata)
    [key_id] = [key.id for key in listed.api_keys if "admin" not in key.scopes]
    revoke = admin_pb.RevokeApiKeyRequest(api_key_id=key_id, pause_schedules=pause)
    revoked = await admin.admin.RevokeApiKey(revoke, metadata=admin.metadata)
    assert (revoked.schedule_count, revoked.delayed_run_count) == (1, 1)
    assert (await admin.run(kept_run.id)).state == run_pb.RUN_STATE_QUEUED
    ended = run_pb.RUN_STATE_CANCELLED if pause else run_pb.RUN_STATE_QUEUED
    assert (await admin.run(delayed.id)).state == ended
    assert (await Schedules(admin).get(kept.id)).state == pb.SCHEDULE_STATE_ACTIVE
    shown = await Schedules(admin).get(of_other.id)
    expected = pb.SCHEDULE_STATE_PAUSED if pause else pb.SCHEDULE_STATE_ACTIVE
    assert (shown.state, shown.state_reason) == (expected, "KEY_REVOKED" if pause else "")
