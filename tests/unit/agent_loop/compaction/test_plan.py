"""Plans of compactions: which messages leave a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from histories import assert_answered, histories, unpinned
from security_examples import durability_examples
from strata.agent_loop.compaction.plan import (
    MIN_SUMMARY_BYTES,
    Obstacle,
    Plan,
    plan,
    plan_of_next_turn,
)
from strata.agent_loop.context.requests import Offer, View, build_request
from strata.agent_loop.domain.agent.agents import CompactionSettings
from strata.agent_loop.domain.conversation.approvals import ApprovalRequest
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart
from strata.agent_loop.domain.model.chat import ImagePart, TextPart
from strata.agent_loop.domain.tools import ToolSet
from strata.protocol.images import MAX_IMAGES
from strata.shared.messages import MessageRole

VIEW = View(5000)
SLIDING = CompactionSettings()
ALL = CompactionSettings(mode="all")
MODES = st.builds(
    CompactionSettings,
    mode=st.sampled_from(["", "sliding_window", "all"]),
    sliding_window_percentage=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    clip_chars=st.sampled_from([0, 200, 5000]),
)

INPUTS = frozenset({MessageRole.USER, MessageRole.SYSTEM})


def text_message(role: MessageRole, text: str, number: int, **fields: object) -> Message:
    part = SummaryPart(text, 1, 1, 1) if role is MessageRole.SUMMARY else TextPart(text)
    return Message(f"m{number}", role, (part,), sequence=number, **fields)  # type: ignore[arg-type]


def talk(exchanges: int, size: int = 100) -> list[Message]:
    window = [text_message(MessageRole.SYSTEM, "system", 0)]
    for number in range(exchanges):
        window.append(text_message(MessageRole.USER, "u" * size, 2 * number + 1))
        window.append(text_message(MessageRole.ASSISTANT, "a" * size, 2 * number + 2))
    return window


def ids(messages: object) -> list[str]:
    return [message.id for message in messages]  # type: ignore[attr-defined]


def with_summary(window: list[Message], planned: Plan) -> list[Message]:
    """Returns the window after the compaction, with a summary of the greatest size."""
    body = SummaryPart("s" * (planned.summary_bytes - 260))
    summary = Message("summary", MessageRole.SUMMARY, (body,))
    return [window[0], summary, *planned.kept]


@durability_examples
@given(histories(), MODES, st.floats(-2_000, 80_000))
def test_plan_is_valid_for_any_history_and_space(
    window: list[Message], chosen: CompactionSettings, space: float
) -> None:
    planned = plan(window, VIEW, space, chosen)
    body = [m for m in window[1:] if m.role is not MessageRole.SUMMARY]
    if isinstance(planned, Obstacle):
        return

    assert planned.evicted
    assert sorted([*ids(planned.evicted), *ids(planned.kept)]) == sorted(ids(body)), (
        "every message is either evicted or kept"
    )
    for part in (planned.evicted, planned.kept):
        assert list(part) == sorted(part, key=lambda m: m.sequence), "order is kept"
        assert_answered(VIEW.chats(part))
    kept = set(ids(planned.kept))
    newest = [m for m in body if m.role is MessageRole.USER][-1]
    assert newest.id in kept, "the newest message of the user stays"
    assert {m.id for m in body if m.pinned} <= kept, "pinned messages stay"
    assert body[-1].id in kept, "the messages that the model has to answer stay"
    earlier = [p for m in window if m.role is MessageRole.SUMMARY for p in m.parts]
    assert list(planned.earlier) == earlier, "the new summary includes the earlier one"

    system = VIEW.size(window[:1])
    after = with_summary(window, planned)
    fitted = build_request(after, Offer(ToolSet(())), VIEW, max_bytes=system + space)
    removable = plan(after, VIEW, space, chosen)
    assert fitted.whole_size <= system + space or isinstance(removable, Obstacle), (
        "the window fits, or no message can be evicted"
    )


SHAPES: dict[str, Callable[[list[Message]], bool]] = {
    "approval": lambda window: any(m.role is MessageRole.APPROVAL for m in window),
    "parallel calls": lambda window: any(len(m.tool_calls) == 3 for m in window),
    "returns in two messages": lambda window: any(
        one.role is other.role is MessageRole.TOOL for one, other in pairwise(window)
    ),
    "huge return": lambda window: any(
        len(tool_return.content) > 10_000 for m in window for tool_return in m.tool_returns
    ),
    "earlier summary": lambda window: any(m.role is MessageRole.SUMMARY for m in window),
    "pinned call": lambda window: any(m.pinned and m.tool_calls for m in window),
    "two users in a row": lambda window: any(
        one.role is other.role is MessageRole.USER for one, other in pairwise(window)
    ),
    "question under way": lambda window: window[-1].role is MessageRole.USER,
    "step under way": lambda window: window[-1].role is MessageRole.TOOL,
}


def test_random_histories_cover_every_shape() -> None:
    seen: set[str] = set()

    @settings(max_examples=60, derandomize=True, database=None, phases=[Phase.generate])
    @given(histories())
    def look(window: list[Message]) -> None:
        seen.update(name for name, is_there in SHAPES.items() if is_there(window))

    look()
    assert seen == set(SHAPES)


@durability_examples
@given(histories().map(unpinned), st.integers(0, 40_000))
def test_no_reply_is_kept_without_its_user_message(window: list[Message], space: int) -> None:
    planned = plan(window, VIEW, space, SLIDING)
    if isinstance(planned, Obstacle):
        return
    kept = set(ids(planned.kept))
    whole = exchanges([m for m in window[1:] if m.role is not MessageRole.SUMMARY])
    stayed = [[m for m in exchange if m.id in kept] for exchange in whole]
    for exchange, rest in zip(whole, stayed, strict=True):
        if rest and any(m.role in INPUTS for m in exchange):
            assert rest[0].role in INPUTS
    first = next(number for number, rest in enumerate(stayed) if rest)
    assert whole[first:-1] == stayed[first:-1], "only the current exchange may be evicted in part"


def exchanges(messages: list[Message]) -> list[list[Message]]:
    """Returns the messages by exchange: inputs, and their answers."""
    exchange_list: list[list[Message]] = []
    for before, message in zip([None, *messages], messages, strict=False):
        begins = before is None or before.role not in INPUTS
        if not exchange_list or (message.role in INPUTS and begins):
            exchange_list.append([])
        exchange_list[-1].append(message)
    return exchange_list


def test_sliding_window_frees_the_share_that_the_settings_name() -> None:
    window = talk(40, 500)
    space = VIEW.size(window[1:]) - 1
    for share in (0.2, 0.5, 0.8):
        chosen = CompactionSettings(sliding_window_percentage=share, clip_chars=300)
        planned = plan(window, VIEW, space, chosen)
        assert isinstance(planned, Plan)
        left = VIEW.size(planned.kept) / space
        assert 1 - share - 0.06 <= left <= 1 - share


def test_images_that_the_model_is_not_shown_take_no_space() -> None:
    window = talk(100, 500)
    for number, message in enumerate(window):
        if message.role is MessageRole.USER:
            image = ImagePart("image/png", f"id-{number}", 2000, 2000, 9)
            window[number] = replace(message, parts=(*message.parts, image))
    chats = build_request(window, Offer(ToolSet(())), VIEW, max_bytes=10**9)
    assert sum(len(chat.images) for chat in chats.request.messages) == MAX_IMAGES
    assert VIEW.size(window) == chats.size == sum(VIEW.sizes([message] for message in window))
    space = VIEW.size(window[1:]) - 1
    planned = plan(window, VIEW, space, CompactionSettings(sliding_window_percentage=0.2))
    assert isinstance(planned, Plan)
    assert VIEW.size(planned.kept) / space > 0.7


def test_a_window_with_enough_space_is_unchanged() -> None:
    window = talk(3)
    assert plan(window, VIEW, 10_000, SLIDING) is Obstacle.SPACE_IS_FREE


def test_mode_all_keeps_only_the_current_exchange() -> None:
    window = [*talk(5), text_message(MessageRole.USER, "now", 11)]
    planned = plan(window, VIEW, 10_000, ALL)
    assert isinstance(planned, Plan)
    assert ids(planned.kept) == ["m11"]


def test_the_obstacle_is_the_reason_why_nothing_is_compacted() -> None:
    window = talk(3)
    pinned = [replace(message, pinned=True) for message in window]
    assert plan(window[:3], VIEW, 10_000, ALL) is Obstacle.NO_OLDER_EXCHANGE
    assert plan(window[:1], VIEW, 10_000, ALL) is Obstacle.NO_OLDER_EXCHANGE
    assert plan(pinned, VIEW, 10_000, ALL) is Obstacle.OLDER_MESSAGES_PINNED
    assert plan(pinned, VIEW, 700, ALL) is Obstacle.PINNED_MESSAGES_FILL_SPACE
    assert plan(pinned, VIEW, 700, ALL, forced=True) is Obstacle.OLDER_MESSAGES_PINNED


def test_the_next_turn_makes_the_last_exchange_an_older_one() -> None:
    window = talk(3)
    planned = plan_of_next_turn(window, VIEW, 10_000, ALL)
    assert isinstance(planned, Plan)
    assert (ids(planned.kept), len(planned.evicted)) == ([], 6)
    assert plan_of_next_turn(window, VIEW, 10_000, SLIDING) is Obstacle.SPACE_IS_FREE


def test_next_turn_continues_an_exchange_that_waits_for_approval() -> None:
    request = Message("m8", MessageRole.APPROVAL, (ApprovalRequest("approval-1", ()),))
    window = [*talk(3), text_message(MessageRole.USER, "now", 7), request]
    planned = plan_of_next_turn(window, VIEW, 10_000, ALL)
    assert isinstance(planned, Plan)
    assert ids(planned.kept) == ["m7", "m8"]
    assert planned == plan(window, VIEW, 10_000, ALL)


def test_steps_of_the_current_exchange_leave_last() -> None:
    window = [
        text_message(MessageRole.SYSTEM, "system", 0),
        text_message(MessageRole.USER, "Do it.", 1),
    ]
    window += [text_message(MessageRole.ASSISTANT, "s" * 1000, number) for number in range(2, 12)]
    planned = plan(window, VIEW, 4_000, SLIDING)
    assert isinstance(planned, Plan)
    assert ids(planned.kept) == ["m1", "m10", "m11"]
    assert ids(planned.evicted) == [f"m{number}" for number in range(2, 10)]


def test_a_pinned_answer_keeps_its_question() -> None:
    window = talk(10)
    window[4] = replace(window[4], pinned=True)
    planned = plan(window, VIEW, 800, SLIDING)
    assert isinstance(planned, Plan)
    assert ids(planned.kept)[:2] == ["m3", "m4"]


def test_summary_gets_the_free_space_and_a_minimum() -> None:
    window = talk(20, 500)
    planned = plan(window, VIEW, 12_000, SLIDING)
    assert isinstance(planned, Plan)
    assert planned.summary_bytes == 12_000 - VIEW.size(planned.kept)
    tight = plan(window, VIEW, 10, SLIDING)
    assert isinstance(tight, Plan)
    assert tight.summary_bytes == MIN_SUMMARY_BYTES


@pytest.mark.parametrize("space", [-5_000.0, 0.0])
def test_without_space_the_newest_unit_is_kept(space: float) -> None:
    planned = plan([*talk(4), text_message(MessageRole.USER, "now", 9)], VIEW, space, SLIDING)
    assert isinstance(planned, Plan)
    assert ids(planned.kept) == ["m9"]
