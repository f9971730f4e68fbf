"""Concurrent edits of one block: none is lost or done twice, and the history replays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.core_memory.domain.blocks import Block, EditorKind, NewBlock, Origin, Version
from strata.core_memory.domain.commands import (
    Actor,
    Attachment,
    CreateBlock,
    EditBlock,
    Edited,
    PrepareAgent,
    UpdateBlock,
)
from strata.core_memory.domain.core_memory import CoreMemory, Receipt
from strata.core_memory.domain.ports import ReplayedError
from strata.core_memory.domain.text_edits.edited_text import apply_edit
from strata.core_memory.domain.text_edits.patches import apply_section, parse_patch
from strata.core_memory.domain.text_edits.three_way_merge import merge3_text
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Edit,
    Insert,
    Patch,
    Replace,
    Rethink,
    StringReplace,
    TextEdit,
)
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import AbortedError, FailedPreconditionError, Reason, StrataError
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

WRITERS = 8
EDITS = 15
LABEL = "shared"


@dataclass
class Shared:
    """A block that several agents share, and all requested edits."""

    memory: CoreMemory
    store: PostgresBlockStore
    agents: list[str] = field(default_factory=list)
    block_id: str = ""
    asked: dict[str, EditBlock] = field(default_factory=dict)
    acknowledged: dict[str, Edited] = field(default_factory=dict)
    refused: dict[str, StrataError] = field(default_factory=dict)

    async def open(self, value: str = "", *, writers: int = 1, limit: int = 20_000) -> None:
        """Makes the block and the agents."""
        new = NewBlock(LABEL, value, "Shared.", limit)
        actor = Actor("key-1", Origin(kind=EditorKind.USER))
        block = await self.memory.create(CreateBlock(actor, new), receipt())
        self.block_id = block.id
        for _ in range(writers):
            agent = new_id("agent")
            await self.memory.prepare_agent(PrepareAgent(actor, agent))
            await self.memory.attach(Attachment(agent, block.id), receipt())
            self.agents.append(agent)

    async def block(self) -> Block:
        """Returns the current block."""
        block = await self.store.block(self.block_id)
        assert block is not None
        return block

    async def versions(self) -> list[Version]:
        """Returns the whole history, oldest first."""
        return (await self.store.versions(self.block_id, 0, 10_000))[::-1]

    async def edit(self, writer: int, call: str, edit: Edit, base_revision: int = 0) -> None:
        """Sends an edit and records the answer."""
        agent = self.agents[writer]
        origin = Origin(agent, "run-1", "step-1", call, "some-model", kind=EditorKind.AGENT)
        command = EditBlock(Actor("key-1", origin), agent, LABEL, edit, base_revision=base_revision)
        self.asked[call] = command
        try:
            self.acknowledged[call] = await self.memory.edit(command, self._receipt(call))
        except StrataError as error:
            self.refused[call] = error

    async def repeat(self, call: str) -> None:
        """Repeats the request of a completed edit, as after a lost answer."""
        with pytest.raises(ReplayedError):
            await self.memory.edit(self.asked[call], self._receipt(call))

    def _receipt(self, call: str) -> Receipt[Any]:
        return receipt(f"{self.block_id}/{call}")

    async def change(self, **fields: Any) -> None:
        """Changes the block through the API; a refused change must change nothing."""
        actor = Actor("key-1", Origin(kind=EditorKind.USER))
        with suppress(FailedPreconditionError):
            await self.memory.update(UpdateBlock(actor, self.block_id, **fields), receipt())

    async def check_history(self) -> None:
        """Asserts that every version results from the previous one by its edit."""
        versions = await self.versions()
        texts = {version.revision: version.value for version in versions}
        assert list(texts) == list(range(1, len(versions) + 1))
        for before, version in pairwise(versions):
            if version.authorship.operation == "update":
                continue
            command = self.asked[version.authorship.origin.tool_call_id]
            assert version.authorship.operation == command.edit.operation
            assert version.value == replayed(before, version, texts, command.edit)
            assert len(version.value) <= version.limit
        block = await self.block()
        assert (block.revision, block.value) == (len(versions), versions[-1].value)

    async def check_edits(self) -> None:
        """Asserts that exactly the acknowledged edits with an effect are in the history, once."""
        calls = [version.authorship.origin.tool_call_id for version in await self.versions()]
        effective = [call for call, edited in self.acknowledged.items() if edited.changes]
        assert sorted(filter(None, calls)) == sorted(effective)


def receipt(request_id: str = "") -> Receipt[Any]:
    return Receipt(RequestKey(request_id, request_id.encode().hex()), lambda _: b"done")


def replayed(before: Version, version: Version, texts: Mapping[int, str], edit: Edit) -> str | None:
    """Returns the result of the edit for the previous version."""
    base_revision = version.authorship.base_revision
    block = replace(as_block(before), limit=10**9, read_only=False)
    if isinstance(edit, Patch):
        (section,) = parse_patch(edit.patch)
        return apply_section(LABEL, before.value, section, [LABEL])
    assert isinstance(edit, TextEdit)
    if not base_revision:
        return apply_edit(block, edit)
    base = texts[base_revision]
    return merge3_text(base, before.value, apply_edit(replace(block, value=base), edit))


def as_block(version: Version) -> Block:
    time = version.authorship.time
    return Block(
        version.block_id,
        version.label,
        version.value,
        version.description,
        version.limit,
        version.read_only,
        version.revision,
        time,
        time,
    )


@pytest.fixture
def pool_size() -> int:
    return WRITERS


@pytest.fixture
def store(database: Database) -> PostgresBlockStore:
    return PostgresBlockStore(database)


@pytest.fixture
def shared(store: PostgresBlockStore) -> Shared:
    return Shared(CoreMemory(store, SystemClock()), store)


def any_edit(chance: random.Random, seen: str, mark: str) -> Edit:
    """Returns an edit of the text that the writer saw, which inserts its mark."""
    lines = seen.split("\n")
    at = chance.randrange(len(lines))
    line = lines[at]
    rewritten = [*lines[:at], f"{line} {mark}", *lines[at + 1 :]]
    changes: Sequence[Edit] = [
        Append(mark),
        Insert(mark),
        Insert(mark, at),
        Insert(mark, at),
        Rethink("\n".join(rewritten)),
        Rethink("\n".join(lines[:at] + lines[at + 1 :] + [mark])),
        StringReplace(line, f"{line} {mark}"),
        Replace(line, mark),
        Patch(f"@@\n-{line}\n+{line} {mark}"),
        Patch(f"@@\n {line}\n+{mark}"),
    ]
    return chance.choice(changes)


@pytest.mark.parametrize("seed", range(3))
async def test_every_acknowledged_edit_of_eight_writers_is_in_the_history_once(
    shared: Shared, seed: int
) -> None:
    await shared.open("\n".join(f"line {n} of it" for n in range(12)), writers=WRITERS)

    async def write(writer: int) -> None:
        chance = random.Random(f"{seed} {writer}")
        for number in range(EDITS):
            seen = await shared.block()
            await asyncio.sleep(chance.random() / 100)
            call = f"call-{writer}-{number}"
            edit = any_edit(chance, seen.value, call)
            await shared.edit(writer, call, edit, seen.revision)
            if call in shared.acknowledged and chance.random() < 0.3:
                await shared.repeat(call)

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    assert len(shared.acknowledged) > WRITERS * EDITS / 3
    await shared.check_edits()
    await shared.check_history()


async def test_all_additions_of_eight_writers_are_kept(shared: Shared) -> None:
    await shared.open("first\nlast", writers=WRITERS)

    async def write(writer: int) -> None:
        chance = random.Random(writer)
        for number in range(EDITS):
            seen = await shared.block()
            lines = seen.value.split("\n")
            mark, at = f"mark-{writer}-{number}", chance.randint(0, len(lines))
            edits: Sequence[Edit] = [
                Append(mark),
                Insert(mark, at),
                Rethink("\n".join([*lines[:at], mark, *lines[at:]])),
                Patch(f"@@\n {lines[at - 1]}\n+{mark}"),
            ]
            await asyncio.sleep(chance.random() / 100)
            await shared.edit(writer, mark, chance.choice(edits), seen.revision)

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    assert not shared.refused
    marks = [f"mark-{writer}-{number}" for writer in range(WRITERS) for number in range(EDITS)]
    lines = (await shared.block()).value.split("\n")
    assert sorted(lines) == sorted(["first", "last", *marks])
    versions = await shared.versions()
    assert any(version.authorship.base_revision for version in versions)
    await shared.check_history()


async def test_one_of_two_rewrites_of_the_same_line_gets_a_conflict(shared: Shared) -> None:
    await shared.open("likes tea", writers=2)
    await asyncio.gather(
        shared.edit(0, "a", Rethink("likes coffee"), 1),
        shared.edit(1, "b", Rethink("likes milk"), 1),
    )
    (winner,), (error,) = shared.acknowledged.values(), shared.refused.values()
    assert isinstance(error, AbortedError)
    assert error.reason is Reason.EDIT_CONFLICT
    assert winner.block.value in error.message
    assert await shared.block() == winner.block


async def test_concurrent_patches_of_several_blocks_are_atomic_without_deadlocks(
    shared: Shared,
) -> None:
    await shared.open("start", writers=WRITERS)
    actor = Actor("key-1", Origin(kind=EditorKind.USER))
    other = await shared.memory.create(
        CreateBlock(actor, NewBlock("other", "start", "Other.")), receipt()
    )
    for agent in shared.agents:
        await shared.memory.attach(Attachment(agent, other.id), receipt())

    async def write(writer: int) -> None:
        for number in range(EDITS):
            mark = f"mark-{writer}-{number}"
            labels = [LABEL, "other"] if number % 2 else ["other", LABEL]
            sections = [f"*** Update Block: {label}\n@@\n+{mark}" for label in labels]
            await shared.edit(writer, mark, Patch("\n".join(sections)))

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    assert not shared.refused
    second = await shared.store.block(other.id)
    assert second is not None
    # Both blocks have the same order, since each patch changed both.
    assert second.value == (await shared.block()).value
    assert sorted(second.value.split("\n")) == sorted(["start", *shared.acknowledged])


TEXTS = st.text(alphabet="ab \n\té", max_size=8)
EDITS_OF_ANY_KIND = st.one_of(
    st.builds(Append, TEXTS),
    st.builds(Replace, TEXTS, TEXTS),
    st.builds(StringReplace, TEXTS, TEXTS),
    st.builds(Insert, TEXTS, st.integers(-2, 5)),
    st.builds(Rethink, TEXTS),
    st.builds(lambda text: Patch("@@\n+" + text.replace("\n", "\n+")), TEXTS),
    st.builds(lambda text: Patch("@@\n " + text.replace("\n", "\n-") + "\n+new"), TEXTS),
)
MOVES = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, 2), EDITS_OF_ANY_KIND, st.integers(0, 3)),
    st.tuples(st.just("edit"), st.integers(0, 2), EDITS_OF_ANY_KIND, st.integers(0, 3)),
    st.tuples(st.just("lock"), st.booleans()),
    st.tuples(st.just("limit"), st.integers(5, 40)),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=TEXTS, moves=st.lists(MOVES, min_size=8, max_size=20))
async def test_after_random_edits_the_block_keeps_its_limits_and_history(
    store: PostgresBlockStore, value: str, moves: list[tuple[Any, ...]]
) -> None:
    """Three agents edit earlier revisions; the API locks and resizes the block."""
    shared = Shared(CoreMemory(store, SystemClock()), store)
    await shared.open(value, writers=3, limit=30)
    for number, move in enumerate(moves):
        before = await shared.block()
        call = f"call-{number}"
        match move:
            case ("edit", writer, edit, lag):
                await shared.edit(writer, call, edit, max(1, before.revision - lag))
            case ("lock", read_only):
                await shared.change(read_only=read_only)
            case ("limit", limit):
                await shared.change(limit=limit)
        after = await shared.block()
        assert len(after.value) <= after.limit
        if call in shared.refused:
            assert after == before
        if move[0] == "edit" and before.read_only:
            assert shared.refused[call].reason is Reason.BLOCK_READ_ONLY
    await shared.check_edits()
    await shared.check_history()
