"""Messages to groups: one run whose turns are runs of its members; with kills."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from integration.gateway.members import (
    Members,
    check_log,
    events_after_takeover,
    send,
    spoken_texts,
)
from integration.gateway.scripted_runs import finished, plays
from integration.gateway.scripted_services import Gateway, ScriptedServices, message
from metering import Cost, SqlMeter, store_events_at_the_end
from nested_transactions import port_and_name
from polling import eventually
from run_events import collect
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.agent_loop.v1 import group_service_pb2_grpc as group_grpc
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import NotFoundError, Reason, UnavailableError
from strata.shared.ids import new_id


async def test_members_reply_in_turn_and_read_the_messages_of_the_others(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo", "Cy", max_turns=4)
    events = await collect(send(gateway, group, "Plan a trip."))
    check_log(events, 4)
    assert spoken_texts(events) == [
        ("Ada", "Ada 1", 1),
        ("Bo", "Bo 1", 2),
        ("Cy", "Cy 1", 3),
        ("Ada", "Ada 2", 4),
    ]
    assert members.shown("Ada")[:2] == [
        [("", "Plan a trip.")],
        [("Bo", "Bo 1"), ("Cy", "Cy 1")],
    ]
    assert members.shown("Bo")[0] == [("", "Plan a trip."), ("Ada", "Ada 1")]
    # Messages after the last turn of a member are stored in its window, too.
    assert members.shown("Bo")[1:] == [[("Cy", "Cy 1"), ("Ada", "Ada 2")]]
    assert members.shown("Cy")[1:] == [[("Ada", "Ada 2")]]
    assert len(members.shown("Ada")) == 2
    deltas = [event for event in events if event.HasField("text_delta")]
    assert {event.member.agent_name for event in deltas} == {"Ada", "Bo", "Cy"}
    end = events[-1].run_finished
    assert (end.usage.total_tokens, end.step_count) == (40, 4)
    assert end.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    asked = [
        request for request in services.turns.requests if members.names[request.agent_id] == "Bo"
    ]
    assert list(asked[0].senders) == ["", group.members[0].agent_id]
    assert asked[0].group_id == group.id
    assert list(asked[0].messages[1].taint) == [message_pb2.PROVENANCE_MCP]


async def test_later_turns_of_a_group_cost_as_much_as_earlier_ones(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_events_at_the_end(monkeypatch)
    meter = SqlMeter([port_and_name(services.urls.service_url)])
    counts = []
    with meter.on():
        gateway, members = await services.gateway(), Members(services)
        names = [f"Member {number}" for number in range(6)]
        for turns in (6, 18, 30):
            cost = Cost()
            meter.into(cost)
            check_log(await collect(send(gateway, members.group(*names, max_turns=turns))), turns)
            meter.into(None)
            statements = Counter(sql for _, sql in cost.lasting)
            # Events of the group are stored many at a time; a member's run that has ended already
            # is read from the database. Both depend on how fast the machine is.
            by_pace = [sql for sql in statements if "fence" in sql or "event.payload" in sql]
            assert sum(map(statements.pop, by_pace)) <= 2 * turns
            counts.append(statements)
    first, second, third = counts
    assert third - second == second - first, (second - first, third - second)


async def test_a_group_run_is_stored_listed_and_repeated_like_other_runs(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    request_id = new_id("request")
    events = await collect(send(gateway, group, request_id=request_id))
    # The group changes meanwhile: the same request is still the same run.
    group.manager.max_turns = 9
    assert await collect(send(gateway, group, request_id=request_id)) == [
        event for event in events if event.sequence
    ]
    assert members.spoken == ["Ada 1", "Bo 1"]
    run = await gateway.run(events[0].run_id)
    assert (run.group_id, run.agent_id, run.conversation_id) == (group.id, "", "")
    assert run.state == run_pb.RUN_STATE_COMPLETED
    assert run.usage.total_tokens == 20
    after = events[4].sequence or events[5].sequence
    rest = await collect(gateway.stream(run.id, after))
    assert rest == [event for event in events if event.sequence > after]
    steps = await gateway.runs.ListSteps(
        run_pb.ListStepsRequest(run_id=run.id), metadata=gateway.metadata
    )
    assert [step.step for step in steps.steps] == [1, 2]
    request = run_pb.ListRunsRequest(group_id=group.id)
    listed = (await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs
    assert [listed_run.id for listed_run in listed] == [run.id]
    request = run_pb.ListRunsRequest(agent_id=group.members[0].agent_id)
    [member_run] = (await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs[-1:]
    assert member_run.parent_run_id == run.id
    # The tokens of the members are counted once.
    usage = await gateway.admin.GetUsage(admin_pb.GetUsageRequest(), metadata=gateway.metadata)
    assert (usage.prompt_tokens, usage.step_count) == (14, 2)


@pytest.mark.parametrize("held", ["Ada 1", "Bo 1", "Cy 1", "Ada 2"])
async def test_a_gateway_lost_at_any_turn_repeats_no_reply_of_a_member(
    socket_services: ScriptedServices, held: str
) -> None:
    services, members = socket_services, Members(socket_services)
    group = members.group("Ada", "Bo", "Cy", max_turns=5)
    events = await events_after_takeover(services, members, group, held)
    check_log(events, 5)
    assert [text for _, text, _ in spoken_texts(events)] == [
        "Ada 1",
        "Bo 1",
        "Cy 1",
        "Ada 2",
        "Bo 2",
    ]
    assert events[-1].run_finished.usage.total_tokens == 50
    assert sorted(set(members.turns.items())) == [("Ada", 2), ("Bo", 2), ("Cy", 1)]


async def test_a_suspended_gateway_that_counts_as_lost_repeats_no_reply_of_a_member(
    socket_services: ScriptedServices,
) -> None:
    services, members = socket_services, Members(socket_services)
    group = members.group("Ada", "Bo", "Cy", max_turns=4)
    members.held["Bo 1"] = asyncio.Event()
    # The gateway does not renew its leases but continues its runs.
    hanging = await services.gateway(lease_s=0.4, heartbeat_s=600, poll_s=600)
    request = run_pb.StartRunRequest(group_id=group.id, messages=[message("Hi")])
    run_id = (await hanging.runs.StartRun(request, metadata=hanging.metadata)).run.id
    await eventually(lambda: "Bo 1" in members.begun)
    other = await services.gateway(lease_s=30)

    async def taken_over() -> bool:
        return (await other.run(run_id)).attempt > 1

    await eventually(taken_over)
    members.held["Bo 1"].set()
    events = await collect(other.stream(run_id))
    check_log(events, 4)
    assert [text for _, text, _ in spoken_texts(events)] == ["Ada 1", "Bo 1", "Cy 1", "Ada 2"]
    assert members.turns == {"Ada": 2, "Bo": 1, "Cy": 1}


async def test_a_turn_whose_stream_breaks_is_requested_again(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    play, broken = services.turns.script, []

    async def breaks_once(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        async for happened in play(request):
            if happened.HasField("message_stored") and request.agent_id not in broken:
                broken.append(request.agent_id)
                raise UnavailableError("Gone.")
            yield happened

    services.turns.script = breaks_once
    events = await collect(send(gateway, group))
    assert [text for _, text, _ in spoken_texts(events)] == ["Ada 1", "Bo 1"]
    assert members.turns == {"Ada": 1, "Bo": 1}


async def test_a_cancelled_group_stops_its_active_member_and_starts_no_turn(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    members.held["Ada 1"] = asyncio.Event()

    services.turns.on_cancel = plays(finished(run_event_pb2.STOP_REASON_CANCELLED))
    call = send(gateway, group)
    reading = asyncio.create_task(collect(call))
    await eventually(lambda: "Ada 1" in members.begun)
    request = run_pb.ListRunsRequest(group_id=group.id)
    [run] = (await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs
    await gateway.cancel(run.id)
    events = await reading
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert (await gateway.run(run.id)).state == run_pb.RUN_STATE_CANCELLED
    assert members.turns == {"Ada": 1}
    request = run_pb.ListRunsRequest(agent_id=group.members[0].agent_id)
    [member_run] = (await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs
    assert member_run.state == run_pb.RUN_STATE_CANCELLED


async def test_a_group_run_ends_at_its_deadline(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(run_timeout_s=1.0), Members(services)
    group = members.group("Ada", "Bo")
    members.held["Ada 1"] = asyncio.Event()

    services.turns.on_cancel = plays(finished(run_event_pb2.STOP_REASON_CANCELLED))
    events = await collect(send(gateway, group))
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    assert members.turns == {"Ada": 1}


async def test_a_member_that_fails_ends_the_run_with_its_reason(services: ScriptedServices) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo", "Cy")
    members.reasons["Bo 1"] = run_event_pb2.STOP_REASON_LLM_API_ERROR
    events = await collect(send(gateway, group))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_LLM_API_ERROR
    assert members.spoken == ["Ada 1", "Bo 1"]
    ended = [event for event in events if event.HasField("turn_finished")]
    assert ended[-1].turn_finished.stop_reason == run_event_pb2.STOP_REASON_LLM_API_ERROR


async def test_a_member_that_needs_approval_ends_the_run_and_the_group_accepts_messages(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    members.reasons["Ada 1"] = run_event_pb2.STOP_REASON_REQUIRES_APPROVAL
    events = await collect(send(gateway, group))
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_REQUIRES_APPROVAL
    assert (await gateway.run(events[0].run_id)).state == run_pb.RUN_STATE_COMPLETED
    assert members.spoken == ["Ada 1"]
    check_log(await collect(send(gateway, group)), 2)


async def test_second_message_waits_for_the_first_and_continues_after_its_last_speaker(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    members.held["Bo 1"] = asyncio.Event()
    first = asyncio.create_task(collect(send(gateway, group, "First.")))
    await eventually(lambda: "Bo 1" in members.begun)
    second = asyncio.create_task(collect(send(gateway, group, "Second.")))
    members.held["Bo 1"].set()
    check_log(await first, 2)
    check_log(await second, 2)
    assert members.spoken == ["Ada 1", "Bo 1", "Ada 2", "Bo 2"]
    assert members.shown("Ada")[1:] == [
        [("Bo", "Bo 1")],
        [("", "Second.")],
        [("Bo", "Bo 2")],
    ]


async def test_groups_that_wait_for_their_members_do_not_hold_slots(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(runs_at_once=2), Members(services)
    groups = [members.group("Ada", "Bo") for _ in range(4)]
    runs = await asyncio.gather(*(collect(send(gateway, group)) for group in groups))
    for events in runs:
        check_log(events, 2)


@pytest.mark.parametrize("by_name", [False, True])
async def test_the_manager_agent_picks_the_speakers_and_ends_the_run(
    services: ScriptedServices, by_name: bool
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group(
        "Ada",
        "Bo",
        manager="Max",
        type=group_pb.MANAGER_TYPE_DYNAMIC,
        max_turns=5,
        termination_token="DONE!",
    )
    ids = {member.name: member.agent_id for member in group.members}
    choices = iter([("Bo", ""), ("Ada", ""), ("", "nobody"), ("Bo", ""), ("", "DONE!")])

    def choose() -> str:
        name, other = next(choices)
        return other or (f"I choose {name}." if by_name else ids[name])

    members.says["Max"] = choose
    events = await collect(send(gateway, group, "Go."))
    check_log(events, 8)
    assert [text for name, text, _ in spoken_texts(events) if name != "Max"] == [
        "Bo 1",
        "Ada 1",
        "Bo 2",
    ]
    begun = [event for event in events if event.HasField("turn_started")]
    assert [event.turn_started.manager for event in begun] == [True, False] * 2 + [
        True,
        True,
        False,
        True,
    ]
    shown = members.shown("Max")
    assert shown[0][0] == ("", "Go.")
    assert ids["Ada"] in shown[0][1][1]
    assert shown[1][0] == ("Bo", "Bo 1")
    # The member that spoke last is not offered again.
    assert ids["Bo"] not in shown[1][1][1]
    assert "names none of these agents" in shown[3][0][1]
    assert not any("Max" in name for turn in members.shown("Bo") for name, _ in turn)


async def test_a_member_ends_a_dynamic_run_with_the_token_and_turns_are_bounded(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    config: dict[str, Any] = {
        "type": group_pb.MANAGER_TYPE_DYNAMIC,
        "termination_token": "DONE!",
        "max_turns": 3,
        "manager": "Max",
    }
    group = members.group("Ada", "Bo", **config)
    # A manager that names no member twice: the members speak in their order.
    members.says["Max"] = lambda: "I do not know."
    events = await collect(send(gateway, group))
    spoken = [text for name, text, _ in spoken_texts(events) if name != "Max"]
    assert spoken == ["Ada 1", "Bo 1", "Ada 2"]
    group = members.group("Eve", "Flo", **config)
    members.says["Flo"] = lambda: "That is all. DONE!"
    events = await collect(send(gateway, group))
    assert [name for name, _, _ in spoken_texts(events) if name != "Max"] == ["Eve", "Flo"]


@pytest.mark.parametrize(
    "kind", [group_pb.MANAGER_TYPE_SLEEPTIME, group_pb.MANAGER_TYPE_VOICE_SLEEPTIME]
)
async def test_the_agent_of_a_pair_answers_and_its_memory_agent_gets_no_message(
    services: ScriptedServices, kind: Any
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Max-sleeptime", manager="Max", type=kind)
    events = await collect(send(gateway, group, "Go."))
    check_log(events, 1)
    assert spoken_texts(events) == [("Max", "Max 1", 1)]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert len(services.turns.requests) == 1
    assert not services.turns.requests[0].HasField("group_tool")
    assert members.shown("Max") == [[("", "Go.")]]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"group_id": new_id("group")}, "NOT_FOUND", "GROUP_NOT_FOUND"),
        ({"group_id": "group-x"}, "INVALID_ARGUMENT", "INVALID_ID"),
        ({"agent_id": new_id("agent")}, "INVALID_ARGUMENT", "INVALID_FIELD"),
        ({"conversation_id": new_id("conversation")}, "INVALID_ARGUMENT", "INVALID_FIELD"),
        ({"messages": []}, "INVALID_ARGUMENT", "INVALID_FIELD"),
    ],
)
async def test_wrong_messages_to_groups_are_refused(
    services: ScriptedServices, fields: dict[str, Any], code: str, reason: str
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada")
    request = run_pb.StartRunRequest(
        **{"group_id": group.id, "messages": [message("Hi")], **fields}
    )
    await _refused(gateway, request, code, reason)
    assert not members.begun


async def _refused(gateway: Gateway, request: Any, code: str, reason: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.runs.StartRun(request, metadata=gateway.metadata)
    assert caught.value.code().name == code
    assert reason in str(caught.value.trailing_metadata())


async def test_groups_that_cannot_answer_return_the_reason(services: ScriptedServices) -> None:
    gateway, members = await services.gateway(), Members(services)
    for group, code, reason in (
        (members.group(), "FAILED_PRECONDITION", "GROUP_INCOMPLETE"),
        (
            members.group("Ada", type=group_pb.MANAGER_TYPE_DYNAMIC),
            "FAILED_PRECONDITION",
            "GROUP_INCOMPLETE",
        ),
        # The memory agent was deleted, or the manager agent.
        (
            members.group(manager="Max", type=group_pb.MANAGER_TYPE_SLEEPTIME),
            "FAILED_PRECONDITION",
            "GROUP_INCOMPLETE",
        ),
        (
            members.group("Ada", type=group_pb.MANAGER_TYPE_VOICE_SLEEPTIME),
            "FAILED_PRECONDITION",
            "GROUP_INCOMPLETE",
        ),
    ):
        request = run_pb.StartRunRequest(group_id=group.id, messages=[message("Hi")])
        await _refused(gateway, request, code, reason)


async def test_a_deleted_group_has_its_run_cancelled(services: ScriptedServices) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    members.held["Ada 1"] = asyncio.Event()

    services.turns.on_cancel = plays(finished(run_event_pb2.STOP_REASON_CANCELLED))
    reading = asyncio.create_task(collect(send(gateway, group)))
    await eventually(lambda: "Ada 1" in members.begun)
    await group_grpc.GroupServiceStub(gateway.channel).DeleteGroup(
        group_pb.DeleteGroupRequest(group_id=group.id), metadata=gateway.metadata
    )
    assert (await reading)[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED


@pytest.mark.parametrize("deleted", ["Ada", "Bo"])
async def test_a_member_deleted_before_its_turn_ends_the_run_and_no_message_is_lost(
    services: ScriptedServices, deleted: str
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo", "Cy")
    ids = {member.name: member.agent_id for member in group.members}
    members.held["Ada 1"] = asyncio.Event()
    if deleted == "Ada":
        services.agents.agents.discard(ids["Ada"])
    reading = asyncio.create_task(collect(send(gateway, group, "Plan a trip.")))
    if deleted == "Bo":
        await eventually(lambda: "Ada 1" in members.begun)
        services.agents.agents.discard(ids["Bo"])
    members.held["Ada 1"].set()
    end = (await reading)[-1].run_finished
    assert end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    spoken = ["Ada 1"] if deleted == "Bo" else []
    assert members.spoken == spoken
    seen = [("", "Plan a trip."), *(("Ada", text) for text in spoken)]
    assert members.shown("Cy") == [seen]


async def test_a_member_deleted_as_its_turn_begins_ends_the_run_as_cancelled(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo", "Cy")
    play = services.turns.script

    async def without_bo(request: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        if members.names[request.agent_id] == "Bo":
            raise NotFoundError("There is no agent.", reason=Reason.AGENT_NOT_FOUND)
        async for happened in play(request):
            yield happened

    services.turns.script = without_bo
    end = (await collect(send(gateway, group)))[-1].run_finished
    assert end.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert not end.HasField("error")
    assert members.shown("Cy") == [[("", "Hi"), ("Ada", "Ada 1")]]


async def test_runs_of_members_do_not_count_as_open_runs(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(open_runs_per_project=1), Members(services)
    group, other = members.group("Ada", "Bo"), members.group("Cy")
    members.held["Bo 1"] = asyncio.Event()
    reading = asyncio.create_task(collect(send(gateway, group)))
    await eventually(lambda: "Bo 1" in members.begun)
    request = run_pb.StartRunRequest(group_id=other.id, messages=[message("Hi")])
    await _refused(gateway, request, "RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    members.held["Bo 1"].set()
    check_log(await reading, 2)
    assert members.shown("Ada")[1:] == [[("Bo", "Bo 1")]]
    check_log(await collect(send(gateway, other)), 1)


async def _with_a_busy_member(
    services: ScriptedServices, **settings: Any
) -> tuple[Gateway, Members, Any, Any]:
    """Starts a group run at whose end the member Bo has another active run."""
    gateway, members = await services.gateway(**settings), Members(services)
    group = members.group("Ada", "Bo", "Cy", max_turns=3)
    members.held |= {"Cy 1": asyncio.Event(), "Bo 2": asyncio.Event()}
    reading = asyncio.create_task(collect(send(gateway, group)))
    await eventually(lambda: "Cy 1" in members.begun)
    busy = asyncio.create_task(collect(gateway.send(group.members[1].agent_id)))
    await eventually(lambda: "Bo 2" in members.begun)
    members.held["Cy 1"].set()

    async def rest_waits() -> bool:
        listing = run_pb.ListRunsRequest(agent_id=group.members[1].agent_id)
        runs = (await gateway.runs.ListRuns(listing, metadata=gateway.metadata)).runs
        return runs[0].state == run_pb.RUN_STATE_QUEUED

    await eventually(rest_waits)
    return gateway, members, reading, busy


async def test_a_cancelled_group_run_does_not_wait_for_a_busy_member(
    services: ScriptedServices,
) -> None:
    gateway, members, reading, busy = await _with_a_busy_member(services)
    listing = run_pb.ListRunsRequest(states=[run_pb.RUN_STATE_RUNNING])
    runs = (await gateway.runs.ListRuns(listing, metadata=gateway.metadata)).runs
    [run_id] = [run.id for run in runs if run.group_id]
    await gateway.cancel(run_id)
    # Bo is still busy.
    events = await reading
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    assert not events[-1].run_finished.HasField("error")
    assert not busy.done()
    members.held["Bo 2"].set()
    await busy
    # It gets the missed messages when it is free.
    await eventually(lambda: members.shown("Bo")[-1] == [("Cy", "Cy 1")])


async def test_a_group_run_past_its_deadline_does_not_wait_for_a_busy_member(
    services: ScriptedServices,
) -> None:
    _, members, reading, busy = await _with_a_busy_member(services, run_timeout_s=4.0)
    events = await reading
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    assert [text for _, text, _ in spoken_texts(events)] == ["Ada 1", "Bo 1", "Cy 1"]
    members.held["Bo 2"].set()
    await busy
