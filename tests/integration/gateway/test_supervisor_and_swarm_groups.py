"""Messages to supervisor and swarm groups: members that are asked, members that hand over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from integration.gateway.members import Members, events_after_takeover, send, spoken_texts
from integration.gateway.scripted_runs import finished, plays
from integration.gateway.scripted_services import Gateway, ScriptedServices, message
from polling import eventually
from run_events import collect
from strata.api.agent_loop.v1 import group_service_pb2 as group_pb
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.ids import new_id
from strata.shared.interceptors.client import ClientChannel
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER


def supervised(members: Members, *names: str) -> group_pb.Group:
    """Creates a group whose manager agent Max asks one question and then answers."""
    members.asks["Max"] = ["Where to?"]
    return members.group(*names, manager="Max", type=group_pb.MANAGER_TYPE_SUPERVISOR)


def swarm(members: Members, *names: str, **config: Any) -> group_pb.Group:
    return members.group(*names, type=group_pb.MANAGER_TYPE_SWARM, **config)


def check_turns(events: Sequence[run_event_pb2.RunEvent], turns: int) -> None:
    """Asserts that the log has no gaps or repetitions and each turn starts and ends once."""
    log = [event for event in events if event.sequence]
    assert [event.sequence for event in log] == list(range(1, len(log) + 1))
    copied = Counter(
        (event.member.run_id, event.member.sequence) for event in log if event.HasField("member")
    )
    assert set(copied.values()) == {1}
    for kind in ("turn_started", "turn_finished"):
        numbers = [event.member.turn for event in log if event.HasField(kind)]
        assert sorted(set(numbers)) == list(range(1, turns + 1))
        if kind == "turn_finished":
            assert len(numbers) == turns
    steps: dict[int, set[str]] = {}
    for event in log:
        if event.HasField("step_started"):
            steps.setdefault(event.step_started.step, set()).add(event.member.run_id)
    assert sorted(steps) == list(range(1, len(steps) + 1))
    assert {len(runs) for runs in steps.values()} == {1}
    assert log[-1].HasField("run_finished")


def words(events: Sequence[run_event_pb2.RunEvent]) -> list[tuple[str, str]]:
    return [(name, text) for name, text, _ in spoken_texts(events) if text]


async def _runs_of(gateway: Gateway, agent_id: str) -> list[run_pb.Run]:
    request = run_pb.ListRunsRequest(agent_id=agent_id)
    return list((await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs)


async def test_a_supervisor_asks_all_members_and_answers_with_their_replies(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    members.gateway = gateway
    group = supervised(members, "Ada", "Bo")
    members.asks["Max"] = ["Where to?", "When?"]
    members.held["Ada 2"] = asyncio.Event()
    events = []
    async for response in send(gateway, group, "Plan a trip."):
        events.append(response.event)
        if response.event.HasField("turn_started") and response.event.member.turn == 4:
            members.held["Ada 2"].set()
    check_turns(events, 5)
    assert sorted(words(events)) == [
        ("Ada", "Ada 1"),
        ("Ada", "Ada 2"),
        ("Bo", "Bo 1"),
        ("Bo", "Bo 2"),
        ("Max", "Max 1"),
    ]
    assert words(events)[-1] == ("Max", "Max 1")
    # Text of members is streamed during the reply, with their names.
    deltas = {event.member.agent_name for event in events if event.HasField("text_delta")}
    assert {"Ada", "Max"} <= deltas
    numbers = {name: turn for name, text, turn in spoken_texts(events) if text.endswith("1")}
    assert numbers == {"Max": 1, "Ada": 2, "Bo": 3}
    assert [[answer["agent_name"] for answer in answers] for answers in members.answers] == [
        ["Ada", "Bo"]
    ] * 2
    assert [answer["reply"] for answer in members.answers[0]] == ["Ada 1", "Bo 1"]
    # A member reads only the question, not the rest of the conversation.
    assert members.shown("Max") == [[("", "Plan a trip.")]]
    [[(sender, question)], _] = members.shown("Ada")
    assert sender
    assert question.endswith("\n\nWhere to?")
    asked = [
        request for request in services.turns.requests if members.names[request.agent_id] == "Ada"
    ]
    assert {request.group_id for request in asked} == {group.id}
    assert {request.sender_agent_id for request in asked} == {group.manager_agent.agent_id}
    # The tokens of all members count once: in the run of the group, and in the sums of the project.
    end = events[-1].run_finished
    assert (end.usage.total_tokens, end.stop_reason) == (50, run_event_pb2.STOP_REASON_END_TURN)
    usage = await gateway.admin.GetUsage(admin_pb.GetUsageRequest(), metadata=gateway.metadata)
    assert usage.prompt_tokens == 35
    run = await gateway.run(events[0].run_id)
    assert (run.state, run.usage.total_tokens) == (run_pb.RUN_STATE_COMPLETED, 50)


async def test_the_tool_of_a_group_is_offered_in_its_runs_only(services: ScriptedServices) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = supervised(members, "Ada", "Bo")
    members.gateway = gateway
    await collect(send(gateway, group))
    await collect(gateway.send(group.manager_agent.agent_id))
    first, last = (
        [
            request
            for request in services.turns.requests
            if members.names[request.agent_id] == "Max"
        ][place]
        for place in (0, -1)
    )
    assert first.group_tool.name == ASK_MEMBERS
    assert [member.name for member in first.group_tool.members] == ["Ada", "Bo"]
    assert not last.HasField("group_tool")
    asked = [
        request for request in services.turns.requests if members.names[request.agent_id] == "Ada"
    ]
    assert not any(request.HasField("group_tool") for request in asked)


@pytest.mark.parametrize("held", ["Ada 1", "Max 1"])
async def test_a_lost_gateway_repeats_no_reply_of_an_asked_member(
    socket_services: ScriptedServices, held: str
) -> None:
    services, members = socket_services, Members(socket_services)
    group = supervised(members, "Ada", "Bo")
    members.held[held] = asyncio.Event()
    first = members.gateway = await services.gateway()
    request = run_pb.StartRunRequest(group_id=group.id, messages=[message("Hi")])
    run_id = (await first.runs.StartRun(request, metadata=first.metadata)).run.id
    await eventually(lambda: held in members.begun and "Bo 1" in members.spoken)
    if held == "Max 1":
        await eventually(lambda: "Ada 1" in members.spoken and members.answers)
    members.gateway = await services.gateway()
    await first.stop()
    members.held[held].set()
    events = await collect(members.gateway.stream(run_id))
    check_turns(events, 3)
    assert sorted(words(events)) == [("Ada", "Ada 1"), ("Bo", "Bo 1"), ("Max", "Max 1")]
    assert members.turns == {"Max": 1, "Ada": 1, "Bo": 1}
    assert [answer["reply"] for answer in members.answers[-1]] == ["Ada 1", "Bo 1"]
    assert events[-1].run_finished.usage.total_tokens == 30


async def test_a_cancelled_group_stops_its_manager_agent_and_the_asked_members(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    members.gateway = gateway
    group = supervised(members, "Ada", "Bo")
    members.held["Ada 1"] = asyncio.Event()

    services.turns.on_cancel = plays(finished(run_event_pb2.STOP_REASON_CANCELLED))
    reading = asyncio.create_task(collect(send(gateway, group)))
    await eventually(lambda: "Ada 1" in members.begun and "Bo 1" in members.spoken)
    request = run_pb.ListRunsRequest(group_id=group.id)
    [run] = (await gateway.runs.ListRuns(request, metadata=gateway.metadata)).runs
    await gateway.cancel(run.id)
    events = await reading
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_CANCELLED
    for member in (group.manager_agent, group.members[0]):
        [member_run] = await _runs_of(gateway, member.agent_id)
        assert member_run.state == run_pb.RUN_STATE_CANCELLED


async def test_groups_that_wait_for_asked_members_hold_neither_slots_nor_quota(
    services: ScriptedServices,
) -> None:
    gateway, members = (
        await services.gateway(runs_at_once=1, open_runs_per_project=3),
        Members(services),
    )
    members.gateway = gateway
    groups = [supervised(members, "Ada", "Bo") for _ in range(3)]
    for events in await asyncio.gather(*(collect(send(gateway, group)) for group in groups)):
        check_turns(events, 3)
        assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert [[answer["status"] for answer in answers] for answers in members.answers] == [
        ["answered"] * 2
    ] * 3


async def test_only_the_manager_agent_of_the_run_can_ask_for_the_group(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = members.group("Ada", "Bo")
    members.held["Ada 1"] = asyncio.Event()
    reading = asyncio.create_task(collect(send(gateway, group)))
    await eventually(lambda: "Ada 1" in members.begun)
    token = services.turns.callers[-1].token
    for group_id in (members.group("Cy").id, new_id("group")):
        request = run_pb.SendMessageRequest(
            group_id=group_id, agent_id=group.members[1].agent_id, messages=[message("Hi")]
        )
        call = ClientChannel(gateway.channel).unary_stream(
            "/strata.api.gateway.v1.RunService/SendMessage",
            request_serializer=run_pb.SendMessageRequest.SerializeToString,
            response_deserializer=run_pb.SendMessageResponse.FromString,
        )(request, metadata=(("authorization", f"Bearer {token}"),))
        with pytest.raises(InvalidArgumentError) as caught:
            await collect(call)
        assert [violation.field for violation in caught.value.violations] == ["group_id"]
    members.held["Ada 1"].set()
    await reading


async def test_after_a_handover_the_next_message_goes_to_the_new_holder(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = swarm(members, "Ada", "Bo", "Cy")
    members.hands["Ada 1"] = ("Bo", "It is about tents.")
    events = await collect(send(gateway, group, "Help."))
    check_turns(events, 2)
    assert words(events) == [("Ada", "Ada 1"), ("Bo", "Bo 1")]
    [shown] = members.shown("Bo")
    assert shown[:2] == [("", "Help."), ("Ada", "Ada 1")]
    assert shown[2][0] == "Ada"
    assert shown[2][1].endswith("\n\nIt is about tents.")
    asked = [
        request for request in services.turns.requests if members.names[request.agent_id] == "Bo"
    ]
    assert list(asked[0].senders) == ["", *[group.members[0].agent_id] * 2]
    # All members have read all messages.
    assert members.shown("Cy") == [[("", "Help."), ("Ada", "Ada 1"), ("Bo", "Bo 1")]]
    assert services.turns.holders[group.id].agent_id == group.members[1].agent_id
    assert words(await collect(send(gateway, group, "And?"))) == [("Bo", "Bo 2")]
    # When the holder leaves the group, the first member gets the conversation.
    del group.members[1]
    assert words(await collect(send(gateway, group, "Still there?"))) == [("Ada", "Ada 2")]


async def test_the_last_turn_of_a_swarm_cannot_hand_over_the_conversation(
    services: ScriptedServices,
) -> None:
    gateway, members = await services.gateway(), Members(services)
    group = swarm(members, "Ada", "Bo", max_turns=3)
    members.hands |= {"Ada 1": ("bo", ""), "Bo 1": ("ADA", ""), "Ada 2": ("Bo", "")}
    events = await collect(send(gateway, group))
    assert words(events) == [("Ada", "Ada 1"), ("Bo", "Bo 1"), ("Ada", "Ada 2")]
    assert events[-1].run_finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    asked = [request for request in services.turns.requests if not request.record_only]
    assert [request.group_tool.name for request in asked] == [HAND_OVER, HAND_OVER, ""]
    assert [[member.name for member in request.group_tool.members] for request in asked] == [
        ["Bo"],
        ["Ada"],
        [],
    ]
    assert services.turns.holders[group.id].agent_id == group.members[0].agent_id


@pytest.mark.parametrize("held", ["Ada 1", "Bo 1", "Cy 1"])
async def test_a_swarm_continues_with_the_same_holder_after_a_lost_gateway(
    socket_services: ScriptedServices, held: str
) -> None:
    services, members = socket_services, Members(socket_services)
    group = swarm(members, "Ada", "Bo", "Cy", max_turns=5)
    members.hands |= {"Ada 1": ("Bo", ""), "Bo 1": ("Cy", ""), "Cy 1": ("Ada", "")}
    events = await events_after_takeover(services, members, group, held)
    check_turns(events, 4)
    assert [text for _, text in words(events)] == ["Ada 1", "Bo 1", "Cy 1", "Ada 2"]
    assert members.turns == {"Ada": 2, "Bo": 1, "Cy": 1}
    assert services.turns.holders[group.id].agent_id == group.members[0].agent_id
