"""Members of a group that reply concurrently are shown one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from strata.api.common.v1 import run_event_pb2 as pb
from strata.cli.chat.speakers import SpeakersInTurn

TEXTS = 3


def event(turn: int, kind: str, text: str = "") -> pb.RunEvent:
    made = pb.RunEvent(member=pb.EventMember(turn=turn, agent_name=f"agent {turn}"))
    if kind == "start":
        made.turn_started.SetInParent()
    elif kind == "end":
        made.turn_finished.SetInParent()
    else:
        made.text_delta.text = text
    return made


def turn_of(turn: int) -> list[pb.RunEvent]:
    texts = [event(turn, "text", f"{turn}.{number}") for number in range(TEXTS)]
    return [event(turn, "start"), *texts, event(turn, "end")]


def shown(events: Sequence[pb.RunEvent]) -> list[pb.RunEvent]:
    speakers = SpeakersInTurn()
    end = pb.RunEvent(run_finished=pb.RunFinished())
    return [shown_event for event in [*events, end] for shown_event in speakers.take(event)]


def texts(events: Sequence[pb.RunEvent]) -> list[str]:
    return [event.text_delta.text for event in events if event.HasField("text_delta")]


def test_consecutive_turns_are_shown_as_they_arrive() -> None:
    events = [*turn_of(1), *turn_of(2)]
    assert shown(events)[:-1] == events


@given(st.lists(st.integers(2, 5), min_size=4 * (TEXTS + 2), max_size=4 * (TEXTS + 2)), st.data())
def test_answers_that_arrive_concurrently_are_not_mixed(
    order: list[int], data: st.DataObject
) -> None:
    left = {turn: turn_of(turn) for turn in range(2, 6)}
    turns = [*order, *sorted(left) * (TEXTS + 2)]
    mixed = [left[turn].pop(0) for turn in turns if left[turn]]
    opening, closing = turn_of(1)[:2], turn_of(1)[2:]
    # The manager agent may continue before the last answer ends.
    cut = data.draw(st.integers(len(mixed) - 3, len(mixed)))
    out = shown([*opening, *mixed[:cut], *closing, *mixed[cut:]])
    assert sorted(texts(out)) == sorted(f"{turn}.{n}" for turn in range(1, 6) for n in range(TEXTS))
    speakers = [turn for turn, _ in groupby(text.partition(".")[0] for text in texts(out))]
    assert sorted(speakers) == ["1", "1", "2", "3", "4", "5"]
    assert out[-1].HasField("run_finished")
    # The name of its agent precedes each text.
    named = 0
    for event in out:
        named = event.member.turn if event.HasField("turn_started") else named
        if event.HasField("text_delta"):
            assert event.member.turn == named
