"""The contract of forks, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from callers import as_project
from recall_conversations import NOW, Talk, call_of, ids, return_of, text, with_pinned_steps
from strata.protocol.errors import NotFoundError, Reason
from strata.recall.domain.messages import Message, MessageFilter, Step
from strata.recall.domain.search import SearchQuery
from strata.recall.domain.summary_expansion import SummaryExpansion, expand
from strata.shared import context
from strata.shared.db import Database, sql
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole


@pytest.fixture
async def talk(database: Database) -> Talk:
    return await Talk(database).open()


def same(copies: Sequence[Message], originals: Sequence[Message]) -> bool:
    """Returns whether messages are copies of others, apart from ids and conversations."""

    def bare(message: Message) -> Message:
        return replace(message, id="", conversation_id="", copied_from_id="")

    return [bare(message) for message in copies] == [bare(message) for message in originals]


async def test_a_fork_starts_with_copies_of_the_window(talk: Talk) -> None:
    first = await talk.turn("one")
    second = await talk.turn("two")
    before = await talk.window()
    fork = await talk.fork(first[1].id)
    window = await fork.windows.get(fork.id)

    assert same(window.messages, before[:3])
    assert [m.copied_from_id for m in window.messages] == ids(before[:3])
    assert {m.conversation_id for m in window.messages} == {fork.id}
    assert not set(ids(window.messages)) & set(ids(before))
    assert (window.agent_id, window.revision, window.message_count) == (talk.agent, 1, 3)
    assert await talk.window() == before
    assert ids(second)[0] not in [m.copied_from_id for m in window.messages]
    assert ids(await fork.listed()) == ids(window.messages)


async def test_fork_and_source_continue_independently(talk: Talk) -> None:
    asked, reply = await talk.turn("one")
    fork = await talk.fork(reply.id)
    there = await talk.turn("there")
    here = await fork.turn("here")
    assert [m.sequence for m in here] == [m.sequence for m in there] == [3, 4]
    assert ids(await fork.window())[3:] == ids(here)
    assert ids(await talk.window())[1:] == ids([asked, reply, *there])
    assert ids(await fork.listed())[3:] == ids(here)
    assert ids(await talk.listed())[1:] == ids([asked, reply, *there])


async def test_a_fork_without_a_message_id_ends_at_the_newest_message(talk: Talk) -> None:
    await talk.turn("one")
    assert same(await (await talk.fork()).window(), await talk.window())


async def test_a_fork_at_a_message_of_an_emptied_window_has_the_log_up_to_it(talk: Talk) -> None:
    asked, call, returned = await talk.turn("one", calls=1)
    await talk.turn("two")
    run = new_id("run")
    await talk.windows.begin_turn(
        talk.id, talk.agent, run, 1, [text(MessageRole.USER, "three", run_id=run)], clear=True
    )
    log = await talk.listed()
    for message, last in ((asked, asked), (call, returned), (returned, returned)):
        fork = await talk.fork(message.id)
        window = await fork.windows.get(fork.id)
        assert [m.role for m in window.messages] == [MessageRole.SYSTEM]
        assert window.message_count == last.sequence + 1
        assert ids((await fork.listed())[1:]) == ids(log[1 : last.sequence + 1])
        (new, *_) = await fork.turn("there")
        assert new.sequence == last.sequence + 1
        again = await fork.fork(asked.id)
        assert ids((await again.listed())[1:]) == [asked.id]


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_fork_keeps_calls_with_their_returns(talk: Talk, position: int) -> None:
    asked, call, one, two = await talk.turn("use it", calls=2)
    await talk.turn("later")
    until = [call, one, two][position]
    window = await (await talk.fork(until.id)).window()
    assert [m.copied_from_id for m in window][1:] == ids([asked, call, one, two])
    assert ids(await (await talk.fork(asked.id)).window())[1:] != []
    only = await (await talk.fork(asked.id)).window()
    assert [m.copied_from_id for m in only][1:] == [asked.id]


async def test_a_fork_at_a_message_before_a_compaction_has_the_earlier_window(talk: Talk) -> None:
    one = await talk.turn("one")
    two = await talk.turn("two")
    three = await talk.turn("three")
    await talk.pins.set(one[0].id, pinned=True)
    first = (await talk.compact(one[0], *three)).messages[1]
    four = await talk.turn("four")
    five = await talk.turn("five")
    await talk.pins.set(one[0].id, pinned=False)
    await talk.compact(*five)
    six = await talk.turn("six")

    async def seen(until: Message) -> list[str]:
        return [m.copied_from_id for m in await (await talk.fork(until.id)).window()][1:]

    assert await seen(two[1]) == ids([*one, *two])
    assert await seen(first) == ids([first, one[0], *three])
    assert await seen(four[1]) == ids([first, one[0], *three, *four])
    assert await seen(six[0]) == ids([*(await talk.window())[1:-1]])
    async with talk.database.transaction() as connection:
        await connection.execute(sql("UPDATE recall.compactions SET kept = NULL"))
    # For a compaction that was stored without its kept messages, the window has what came after its
    # range.
    assert await seen(four[1]) == ids([first, *three, *four])
    # A message that is pinned now is shown whole, also where it was not in the window then.
    await talk.pins.set(two[1].id, pinned=True)
    assert await seen(four[0]) == ids([first, two[1], *three, four[0]])
    await talk.pins.set(two[0].id, pinned=True)
    assert await seen(four[0]) == ids([first, *two, *three, four[0]])


async def test_a_fork_has_copies_of_pins_and_summary_that_change_independently(talk: Talk) -> None:
    one = await talk.turn("one")
    two = await talk.turn("two")
    await talk.pins.set(one[0].id, pinned=True)
    await talk.compact(one[0], *two)
    fork = await talk.fork()
    window = await fork.window()
    assert [m.role for m in window] == [
        *(
            MessageRole.SYSTEM,
            MessageRole.SUMMARY,
            MessageRole.USER,
            MessageRole.USER,
            MessageRole.ASSISTANT,
        )
    ]
    assert [m.pinned for m in window] == [False, False, True, False, False]
    await fork.pins.set(window[2].id, pinned=False)
    await fork.pins.set(window[3].id, pinned=True)
    assert [m.pinned for m in await talk.window()] == [False, False, True, False, False]
    pinned = MessageFilter(agent_id=talk.agent, pinned_only=True)
    assert ids((await talk.log.page(pinned, 9, None)).messages) == ids([one[0], window[3]])
    assert ids(await fork.listed(pinned_only=True)) == [window[3].id]
    assert ids(await talk.listed(pinned_only=True)) == [one[0].id]


async def test_a_fork_lists_and_expands_the_messages_before_it(talk: Talk) -> None:
    turns = [await talk.turn(f"turn {n}", calls=n % 2) for n in range(4)]
    await talk.compact(*turns[3])
    fork = await talk.fork()
    copies = await fork.window()
    await talk.turn("elsewhere")
    here = await fork.turn("here")
    before = [m for turn in turns[:3] for m in turn]
    listed = await fork.listed()
    assert ids(listed)[1:] == ids([*before, *copies[2:], copies[1], *here])
    assert [m.sequence for m in listed] == sorted(m.sequence for m in listed)

    summary = copies[1]
    got = await expand(fork.log, SummaryExpansion(100, conversation_id=fork.id))
    assert got.summary == summary
    assert ids(got.messages) == ids(before)
    # The conversation is compacted again: the range begins in the source and ends in the fork.
    await fork.compact(*here)
    page, sequence = None, 0
    listed_messages: list[Message] = []
    while page is None or sequence:
        page = await expand(fork.log, SummaryExpansion(4, fork.id, from_sequence=sequence))
        listed_messages += page.messages
        sequence = page.next_sequence
    assert ids(listed_messages) == ids([*before, *copies[2:]])
    part = page.summary.parts[0] if page.summary else {}
    ranged = await fork.listed(from_id=part["first_message_id"], to_id=part["last_message_id"])
    assert set(ids(listed_messages)) <= set(ids(ranged))


async def test_expanding_starts_at_a_time_and_refuses_other_messages_than_summaries(
    talk: Talk,
) -> None:
    turns = [await talk.turn(f"turn {n}") for n in range(4)]
    assert await expand(talk.log, SummaryExpansion(9, conversation_id=talk.id)) == (
        await expand(talk.log, SummaryExpansion(9, conversation_id=new_id("conversation")))
    )
    await talk.compact(*turns[3])
    since = turns[1][0].create_time
    got = await expand(talk.log, SummaryExpansion(3, talk.id, start_time=since))
    assert ids(got.messages) == ids([*turns[1], turns[2][0]])
    assert got.next_sequence == turns[2][1].sequence
    late = await expand(talk.log, SummaryExpansion(3, talk.id, start_time=NOW + timedelta(days=1)))
    assert (late.messages, late.next_sequence) == ((), 0)
    with pytest.raises(NotFoundError):
        await expand(talk.log, SummaryExpansion(3, summary_id=new_id("message")))


async def test_the_copies_are_found_in_their_conversation_and_listed_once(talk: Talk) -> None:
    one = await talk.turn("the parrot is called Rico")
    fork = await talk.fork()
    here = await fork.turn("the parrot speaks Greek")
    query = SearchQuery(talk.agent, "parrot", 9)
    matches = await talk.search.by_words(query, [])
    assert {m.id for m, _ in matches} == set(ids([*one, *here]))
    within = replace(query, conversation_id=fork.id)
    matches = await talk.search.by_words(within, [])
    assert {m.id for m, _ in matches} == set(ids(here))
    everything = await talk.log.page(MessageFilter(agent_id=talk.agent), 50, None)
    assert set(ids(everything.messages)[1:]) == set(ids([*one, *here]))


async def test_a_fork_of_a_fork_lists_messages_back_to_the_first_conversation(talk: Talk) -> None:
    one = await talk.turn("one")
    two = await talk.turn("two")
    await talk.compact(*two)
    fork = await talk.fork()
    here = await fork.turn("here")
    second = await fork.fork(here[0].id)
    there = await second.turn("there")
    listed = await second.listed()
    assert ids(listed)[1:3] == ids(one)
    assert ids(listed)[-3:] == [(await second.window())[-3].id, *ids(there)]
    assert [m.sequence for m in listed] == list(range(len(listed)))
    # The fork is at a message that is older than both forks.
    oldest = await second.fork(one[1].id)
    assert [m.copied_from_id for m in await oldest.window()][1:] == ids(one)
    assert (await oldest.windows.get(oldest.id)).message_count == 3
    with pytest.raises(NotFoundError) as raised:
        await oldest.fork(two[0].id)
    assert raised.value.reason is Reason.MESSAGE_NOT_FOUND


async def test_a_resumed_run_gets_no_messages_of_a_fork(talk: Talk) -> None:
    run = new_id("run")
    asked = text(MessageRole.USER, "one", run_id=run)
    await talk.windows.begin_turn(talk.id, talk.agent, run, 1, [asked])
    step = Step(talk.id, talk.agent, run, 1, 1, (call_of(run, "c"), return_of(run, "c")))
    done = await talk.windows.commit_step(step)
    await talk.fork()
    again = await talk.windows.begin_turn(talk.id, talk.agent, run, 2, [asked])
    assert ids(again.inputs) == [asked.id]
    assert ids(again.committed) == ids(done.messages)


async def test_repeating_a_fork_changes_nothing_and_other_projects_see_none(talk: Talk) -> None:
    one = await talk.turn("one")
    fork = await talk.fork(one[0].id)
    before = await fork.window()
    await talk.forks.fork(talk.id, fork.id, one[1].id)
    assert await fork.window() == before
    with pytest.raises(NotFoundError) as raised:
        await talk.forks.fork(new_id("conversation"), new_id("conversation"), "")
    assert raised.value.reason is Reason.WINDOW_NOT_FOUND
    with pytest.raises(NotFoundError) as raised:
        await talk.fork(new_id("message"))
    assert raised.value.reason is Reason.MESSAGE_NOT_FOUND
    stranger = as_project()
    with context.use(stranger), pytest.raises(NotFoundError):
        await talk.fork(one[0].id)


async def test_deleting_an_agent_deletes_its_forks_only(talk: Talk) -> None:
    await talk.turn("one")
    fork = await talk.fork()
    other = await Talk(talk.database).open()
    await other.turn("elsewhere")
    await talk.compact()
    assert await talk.windows.delete_agent(talk.agent) == 7
    for gone in (talk, fork):
        with pytest.raises(NotFoundError):
            await gone.windows.get(gone.id)
    assert len(await other.window()) == 3


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "calls", "pin", "unpin", "compact", "fork"]),
        st.integers(0, 60),
    ),
    min_size=4,
    max_size=12,
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES)
@example(moves=[("calls", 1), ("pin", 8), ("turn", 0), ("compact", 0), ("fork", 0)])
async def test_a_fork_equals_the_window_at_that_message_after_random_operations(
    database: Database, moves: list[tuple[str, int]]
) -> None:
    """Each window is recorded; a fork at its last message must equal it."""
    talks = [await Talk(database).open()]
    await talks[0].turn("first")
    for move, number in moves:
        talk = talks[number % len(talks)]
        window = await talk.window()
        body = [m for m in window if m.role not in {MessageRole.SYSTEM, MessageRole.SUMMARY}]
        match move:
            case "turn" | "calls":
                await talk.turn(f"words {number}", calls=number % 3 if move == "calls" else 0)
            case "pin" | "unpin" if body:
                await talk.pins.set(body[number % len(body)].id, pinned=move == "pin")
            case "compact" if body:
                newest, pinned = body[-1].run_id, with_pinned_steps(body)
                kept = [m for m in body if m.run_id == newest or m in pinned]
                if kept != body:
                    await talk.compact(*kept)
            case "fork":
                listed = await talk.listed()
                until = listed[number % len(listed)]
                fork = await talk.fork(until.id)
                made = await fork.window()
                assert made[0].role is MessageRole.SYSTEM
                calls = [c for m in made for c in m.tool_call_ids()]
                assert sorted(calls) == sorted(c for m in made for c in m.tool_return_ids())
                tail = [m for m in made if m.role is not MessageRole.SUMMARY]
                assert [m.sequence for m in tail] == sorted(m.sequence for m in tail)
                assert max(m.sequence for m in made) >= until.sequence
                assert same(await fork.listed(), (await talk.listed())[: len(await fork.listed())])
                whole = await talk.fork()
                assert same(await whole.window(), window)
                talks.append(fork)
        for conversation in talks:
            assert len(await conversation.window()) >= 1
