"""Speakers of a group, the messages that each member reads, and the time limits of group runs."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.gateway.groups.exchange import GroupMessages
from strata.gateway.groups.managers import GroupManager, GroupTurn, TurnReply, manager_of
from strata.gateway.groups.turns import GroupTurns
from strata.gateway.runs.domain.runs import NewRun, Run, RunKind
from strata.gateway.runs.domain.states import RunState
from strata.gateway.webhooks.sender import payload
from strata.shared.context import Caller, RequestContext, use
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

TOKEN = "DONE!"


def message(text: str) -> message_pb2.MessageInput:
    return message_pb2.MessageInput(parts=[message_pb2.Part(text=message_pb2.TextPart(text=text))])


def group_of(size: int, kind: pb.ManagerType.ValueType, max_turns: int) -> pb.Group:
    return pb.Group(
        id=new_id("group"),
        members=[pb.GroupMember(agent_id=f"agent-{i}", name=f"Name {i}") for i in range(size)],
        manager_agent=pb.GroupMember(agent_id="agent-manager", name="Max"),
        manager=pb.ManagerConfig(type=kind, max_turns=max_turns, termination_token=TOKEN),
    )


def play(group: pb.Group, replies: list[str]) -> tuple[list[GroupTurn], GroupManager, list[str]]:
    """Plays a run; the replies are used in turn, and again from the first."""
    manager = manager_of(group, GroupMessages([message("Go.")]))
    turns: list[GroupTurn] = []
    texts: list[str] = []
    while (turn := manager.next_turn()) is not None:
        text = replies[len(turns) % len(replies)]
        # All replies differ.
        text = text if turn.manager or not text.strip() else f"{text} #{len(turns)}"
        turns.append(turn)
        texts.append(text)
        manager.note_reply(turn, TurnReply(text))
    return turns, manager, texts


KINDS = st.sampled_from([pb.MANAGER_TYPE_ROUND_ROBIN, pb.MANAGER_TYPE_DYNAMIC])
REPLIES = st.lists(
    st.sampled_from(["", " ", "Hm.", "agent-0", "agent-1", "name 2", "nobody", "Name 11", TOKEN]),
    min_size=1,
    max_size=12,
)


@given(KINDS, st.integers(1, 5), st.integers(0, 9), REPLIES)
def test_a_group_run_is_reproducible_and_every_member_gets_each_message_once(
    kind: pb.ManagerType.ValueType, size: int, max_turns: int, replies: list[str]
) -> None:
    group = group_of(size, kind, max_turns)
    turns, manager, texts = play(group, replies)
    again, _, _ = play(group, replies)
    assert turns == again
    spoken = [turn for turn in turns if not turn.manager]
    assert len(spoken) <= (max_turns or size)
    if kind == pb.MANAGER_TYPE_ROUND_ROBIN:
        order = [turn.agent.agent_id for turn in turns]
        assert order == [f"agent-{i % size}" for i in range(max_turns or size)]
    elif size > 1:
        ids = [turn.agent.agent_id for turn in spoken]
        assert all(one != other for one, other in itertools.pairwise(ids))
    shown: dict[str, list[str]] = defaultdict(list)
    for turn in [*turns, *manager.rest()]:
        shown[turn.agent.agent_id] += [
            line.message.parts[0].text.text
            for line in turn.messages
            if not line.message.parts[0].text.text.startswith("[You manage")
        ]
    lines = [("", "Go.")] + [
        (turn.agent.agent_id, text)
        for turn, text in zip(turns, texts, strict=True)
        if not turn.manager and text.strip()
    ]
    for member in group.members:
        wanted = [text for sender, text in lines if sender != member.agent_id]
        assert shown[member.agent_id] == wanted


@pytest.mark.parametrize(
    ("answer", "speaker"),
    [
        ("agent-2", "agent-2"),
        ("I think Name 1 should speak.", "agent-1"),
        ("Name 12, of course.", "agent-12"),
        ("AGENT-3!", "agent-3"),
        ("agent-2 before Name 1", "agent-2"),
        (f"agent-1. Then it is {TOKEN}", "agent-1"),
    ],
)
def test_the_answer_of_the_manager_selects_a_member_by_id_or_name(
    answer: str, speaker: str
) -> None:
    group = group_of(13, pb.MANAGER_TYPE_DYNAMIC, 3)
    turns, _, _ = play(group, [answer, "Yes."])
    assert turns[1].agent.agent_id == speaker


async def test_a_member_that_replies_past_the_deadline_is_stopped() -> None:
    stopped = asyncio.Event()
    cancelled: list[str] = []

    async def follow(
        project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield run_event_pb2.RunEvent(
            sequence=1, run_id=run_id, run_started=run_event_pb2.RunStarted(attempt=1)
        )
        await stopped.wait()
        end = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_CANCELLED)
        yield run_event_pb2.RunEvent(sequence=2, run_id=run_id, run_finished=end)

    async def accept(new: NewRun) -> Any:
        return SimpleNamespace(run=SimpleNamespace(id=new.id, project_id="project-1"))

    async def cancel_run(run_id: str) -> None:
        cancelled.append(run_id)
        stopped.set()

    no_store: Any = None
    follower: Any = SimpleNamespace(follow=follow)
    turns = GroupTurns(no_store, follower, no_store)
    turns.connect(accept, cancel_run)
    request = turn_pb.ExecuteRunRequest(
        run_id=new_id("run"),
        attempt=1,
        messages=[message("Go.")],
        group=group_of(2, pb.MANAGER_TYPE_ROUND_ROBIN, 0),
    )
    request.remaining_time.FromMilliseconds(50)
    caller = Caller("org-1", "project-1", "key-1", frozenset(), request.run_id, "token")
    with use(RequestContext(caller=caller)):
        events = [
            response.event async for response in turns.execute(request, asyncio.Event(), seconds=30)
        ]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["run_started", "turn_started", "turn_finished", "run_finished"]
    assert events[-1].run_finished.error.reason == "DEADLINE_EXCEEDED"
    assert cancelled == [events[1].member.run_id]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_stopped_run_does_not_wait_for_a_busy_member(
    cancelled: bool,
) -> None:
    cancel, rest = asyncio.Event(), []

    async def follow(
        project_id: str, run_id: str, after: int, *, tokens: bool
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        yield run_event_pb2.RunEvent(
            sequence=1, run_id=run_id, run_started=run_event_pb2.RunStarted(attempt=1)
        )
        if run_id in rest:
            if cancelled:
                cancel.set()
            # The member is never free.
            await asyncio.Event().wait()
        message = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT)
        message.parts.add().text.text = f"I am {run_id}."
        stored = run_event_pb2.MessageStored(message=message)
        yield run_event_pb2.RunEvent(sequence=2, run_id=run_id, message_stored=stored)
        end = run_event_pb2.RunFinished(stop_reason=run_event_pb2.STOP_REASON_END_TURN)
        yield run_event_pb2.RunEvent(sequence=3, run_id=run_id, run_finished=end)

    async def accept(new: NewRun) -> Any:
        if turn_pb.ExecuteRunRequest.FromString(new.payload).record_only:
            rest.append(new.id)
        return SimpleNamespace(run=SimpleNamespace(id=new.id, project_id="project-1"))

    async def cancel_run(run_id: str) -> None:
        raise AssertionError("No turn is under way.")

    nothing: Any = None
    follower: Any = SimpleNamespace(follow=follow)
    turns = GroupTurns(nothing, follower, nothing)
    turns.connect(accept, cancel_run)
    request = turn_pb.ExecuteRunRequest(
        run_id=new_id("run"),
        attempt=1,
        messages=[message("Go.")],
        group=group_of(2, pb.MANAGER_TYPE_ROUND_ROBIN, 0),
    )
    request.remaining_time.FromMilliseconds(60_000 if cancelled else 200)
    caller = Caller("org-1", "project-1", "key-1", frozenset(), request.run_id, "token")
    with use(RequestContext(caller=caller)):
        events = [response.event async for response in turns.execute(request, cancel, seconds=30)]
    end = events[-1].run_finished
    assert len(rest) == 1
    assert [event.member.turn for event in events if event.HasField("turn_finished")] == [1, 2]
    wanted = run_event_pb2.STOP_REASON_CANCELLED if cancelled else run_event_pb2.STOP_REASON_ERROR
    assert end.stop_reason == wanted
    assert end.error.reason == ("" if cancelled else "DEADLINE_EXCEEDED")


def test_webhook_has_the_group_of_a_run() -> None:
    group_id = new_id("group")
    now = datetime(2026, 11, 25, tzinfo=UTC)
    run = Run(
        project_id="project-1",
        id=new_id("run"),
        agent_id=group_id,
        conversation_id=group_id,
        kind=RunKind.FOREGROUND,
        state=RunState.COMPLETED,
        stop_reason=StopReason.END_TURN,
        failure=None,
        usage=Usage(),
        step_count=2,
        attempt=1,
        last_sequence=9,
        request_id="",
        create_time=now,
        start_time=now,
        finish_time=now,
    )
    data = json.loads(payload(run, "run.completed"))["data"]
    assert (data["group_id"], data["agent_id"], data["conversation_id"]) == (group_id, "", "")
