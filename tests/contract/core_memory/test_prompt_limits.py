"""The limit of an agent's memory in its prompt, enforced by PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callers import as_project
from strata.core_memory.domain.blocks import (
    Authorship,
    Block,
    NewBlock,
    Origin,
    deleted_block,
    made_block,
)
from strata.core_memory.domain.ports import Unit
from strata.core_memory.domain.prompt.limits import PromptLimit, PromptSize
from strata.core_memory.domain.prompt.memory_section import MemoryForm, render_memory
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared import context
from strata.shared.db import Database
from strata.shared.idempotency.keys import RequestKey

if TYPE_CHECKING:
    from conftest import ServiceDatabase

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
AUTHORSHIP = Authorship("update", Origin(), "key-1", NOW)
PLAIN = MemoryForm(blocks=True, line_numbers=False)
NUMBERED = MemoryForm(blocks=True, line_numbers=True)


@pytest_asyncio.fixture(loop_scope="session")
async def database(urls: ServiceDatabase) -> AsyncIterator[Database]:
    """The database, with connections of the event loop in which these tests run."""
    opened = Database(urls.service_url)
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Database) -> PostgresBlockStore:
    return PostgresBlockStore(database)


def make(label: str, value: str = "", description: str = "About.", **more: Any) -> Block:
    return replace(made_block(NewBlock(label, value, description), (), NOW), **more)


async def once(store: PostgresBlockStore, work: Any) -> Any:
    return await store.mutate(RequestKey(), work)


async def begin(
    store: PostgresBlockStore, agent: str, most: int | None = None, *, numbered: bool = False
) -> None:
    await once(store, lambda unit: unit.begin_agent(agent, PromptLimit(most, numbered), 1))


async def insert(store: PostgresBlockStore, block: Block, *agents: str) -> Block:
    first = agents[0] if agents else ""

    async def work(unit: Unit) -> None:
        await unit.insert(block, AUTHORSHIP, agent_id=first, made_for="", response=b"")
        for agent in agents[1:]:
            await unit.attach(agent, {block.id: block.label}, NOW)

    await once(store, work)
    return block


async def write(store: PostgresBlockStore, *blocks: Block) -> None:
    changes = [(block, AUTHORSHIP) for block in blocks]
    await once(store, lambda unit: unit.update_all(changes, response=b""))


async def size_of(store: PostgresBlockStore, agent: str) -> PromptSize:
    size: PromptSize = await once(store, lambda unit: unit.prompt_size(agent))
    return size


async def set_limit(store: PostgresBlockStore, agent: str, limit: PromptLimit, at: int) -> None:
    await once(store, lambda unit: unit.set_prompt(agent, limit, at))


async def limit_of(store: PostgresBlockStore, agent: str) -> PromptLimit | None:
    limit: PromptLimit | None = await once(store, lambda unit: unit.lock_prompt(agent))
    return limit


async def refused(attempt: Any) -> Mapping[str, str]:
    with pytest.raises(FailedPreconditionError) as caught:
        await attempt
    assert caught.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    over = int(caught.value.metadata["size"]) - int(caught.value.metadata["limit"])
    assert f"{over} more than" in caught.value.message
    return caught.value.metadata


PIECES = ["a", "<", "/", "value>", "<a>", "&lt;", "&amp;", "\n", " ", "\N{GRINNING FACE}", "é"]
# Long runs of the characters that grow most: tags of the prompt, and lines of one byte.
ODD = st.builds(
    lambda pieces, times: "".join(pieces) * times,
    st.lists(st.sampled_from(PIECES), max_size=20),
    st.sampled_from([1, 1, 5, 200]),
)
WORDS = st.lists(st.sampled_from(["Sam", "lives", "in", "Lisbon", "with", "Bit,", "Ça", "東京"]))
PROSE = st.lists(WORDS.map(" ".join), min_size=1, max_size=12).map("\n".join)
LABELS = st.lists(st.sampled_from(["a", "human", "x" * 64]), unique=True, min_size=1)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data(), labels=LABELS)
async def test_counted_size_is_at_least_half_of_the_rendered_size(
    store: PostgresBlockStore, data: st.DataObject, labels: list[str]
) -> None:
    with context.use(as_project()):
        await begin(store, "agent-a")
        blocks = []
        for label in labels:
            value = data.draw(ODD | PROSE)
            limit = data.draw(st.sampled_from([20_000, max(1, len(value))]))
            read_only = data.draw(st.booleans())
            block = make(label, value, data.draw(ODD), limit=limit, read_only=read_only)
            blocks.append(await insert(store, block, "agent-a"))
        size = await size_of(store, "agent-a")
        assert 2 * size.plain >= rendered(PLAIN, blocks)
        assert 2 * size.numbered >= rendered(NUMBERED, blocks)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(labels=LABELS, values=st.lists(PROSE, min_size=3, max_size=3), times=st.integers(1, 40))
async def test_ordinary_text_is_counted_about_as_it_is_rendered(
    store: PostgresBlockStore, labels: list[str], values: list[str], times: int
) -> None:
    with context.use(as_project()):
        await begin(store, "agent-a")
        texts = ["\n".join([value] * times) for value in values]
        # A long value forty times exceeds the default limit of a block.
        blocks = [
            await insert(store, make(label, text, limit=max(20_000, len(text))), "agent-a")
            for label, text in zip(labels, texts, strict=False)
        ]
        size = await size_of(store, "agent-a")
        assert 0.9 * size.plain <= rendered(PLAIN, blocks) <= 1.1 * size.plain
        assert 0.9 * size.numbered <= rendered(NUMBERED, blocks) <= 1.1 * size.numbered


def rendered(form: MemoryForm, blocks: Sequence[Block]) -> int:
    return len(render_memory(form, blocks, []).encode())


async def test_an_agent_without_blocks_has_size_zero(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a", 0)
    assert await size_of(store, "agent-a") == PromptSize(0, 0)
    assert await size_of(store, "agent-nobody") == PromptSize(0, 0)


async def test_without_a_limit_any_size_is_accepted(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a")
    block = await insert(store, make("human", "x" * 20_000), "agent-a")
    await write(store, replace(block, value="x" * 200_000, limit=200_000, revision=2))


async def test_the_limit_is_exact_to_the_byte(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a", 1_000)
    block = await insert(store, make("human"), "agent-a")
    space = 1_000 - (await size_of(store, "agent-a")).plain
    await write(store, replace(block, value="é" * (space // 2) + "x" * (space % 2), revision=2))
    assert (await size_of(store, "agent-a")).plain == 1_000
    error = await refused(write(store, replace(block, value="x" * (space + 1), revision=3)))
    assert error == {"agent_id": "agent-a", "size": "1001", "limit": "1000"}
    stored = await store.block(block.id)
    assert stored is not None
    assert stored.revision == 2
    assert len(await store.versions(block.id, 0, 10)) == 2


@pytest.mark.parametrize("field", ["value", "description", "label"])
async def test_every_field_shown_in_the_prompt_counts(
    store: PostgresBlockStore, field: str
) -> None:
    await begin(store, "agent-a", 300)
    block = await insert(store, make("human"), "agent-a")
    longer: dict[str, Any] = {field: "x" * (64 if field == "label" else 200)}
    await refused(write(store, replace(block, revision=2, **longer)))


async def test_line_numbers_count_where_they_are_shown(store: PostgresBlockStore) -> None:
    value = "x\n" * 200
    await begin(store, "agent-plain", 1_000)
    await begin(store, "agent-numbered", 1_000, numbered=True)
    block = await insert(store, make("human"), "agent-plain", "agent-numbered")
    await write(store, replace(block, value="x" * len(value), revision=2))
    error = await refused(write(store, replace(block, value=value, revision=3)))
    assert error["agent_id"] == "agent-numbered", "as many bytes, but more lines"
    await once(store, lambda unit: unit.detach("agent-numbered", block.id, NOW))
    await write(store, replace(block, value=value, revision=3))
    await refused(once(store, lambda unit: unit.attach("agent-numbered", {block.id: "human"}, NOW)))


async def test_the_limits_of_all_agents_with_the_block_apply(store: PostgresBlockStore) -> None:
    for agent, most in (("agent-a", None), ("agent-b", 2_000), ("agent-c", 1_500)):
        await begin(store, agent, most)
    block = await insert(store, make("shared"), "agent-a", "agent-b", "agent-c")
    await insert(store, make("own", "x" * 1_000), "agent-b")
    error = await refused(write(store, replace(block, value="x" * 700, revision=2)))
    assert error["agent_id"] == "agent-b", "the block that exceeds the limit most is named"
    error = await refused(write(store, replace(block, value="x" * 1_900, revision=2)))
    assert error["agent_id"] == "agent-b"
    await write(store, replace(block, value="x" * 300, revision=2))


async def test_above_the_limit_only_growth_is_refused(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a")
    block = await insert(store, make("human", "x" * 3_000), "agent-a")
    other = await insert(store, make("other"))
    await set_limit(store, "agent-a", PromptLimit(1_000), 2)
    await write(store, replace(block, value="y" * 3_000, revision=2))
    await write(store, replace(block, value="y" * 2_900, revision=3, metadata={"a": "b"}))
    await refused(write(store, replace(block, value="y" * 2_901, revision=4)))
    await refused(once(store, lambda unit: unit.attach("agent-a", {other.id: "other"}, NOW)))
    await refused(insert(store, make("new"), "agent-a"))
    await once(store, lambda unit: unit.detach("agent-a", block.id, NOW))
    await once(store, lambda unit: unit.attach("agent-a", {other.id: "other"}, NOW))


async def test_a_deleted_block_frees_its_space(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a", 1_000)
    block = await insert(store, make("human", "x" * 600), "agent-a")
    other = make("other", "x" * 600)
    await refused(insert(store, other, "agent-a"))
    await write(store, deleted_block(block, NOW))
    await insert(store, other, "agent-a")
    assert await once(store, lambda unit: unit.purge(other.id))
    await insert(store, make("third", "x" * 600), "agent-a")


async def test_an_agent_whose_first_blocks_are_too_large_is_not_created(
    store: PostgresBlockStore,
) -> None:
    shared = await insert(store, make("shared", "x" * 600))
    own = make("own", "x" * 600)

    async def work(unit: Unit) -> None:
        await unit.begin_agent("agent-a", PromptLimit(1_000), 1)
        await unit.insert_all([own], AUTHORSHIP, made_for="agent-a")
        await unit.attach("agent-a", {own.id: "own", shared.id: "shared"}, NOW)

    await refused(once(store, work))
    assert not await store.knows_agent("agent-a")
    assert await store.block(own.id) is None


async def test_limit_of_an_older_revision_is_ignored(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a", 1_000)
    await set_limit(store, "agent-a", PromptLimit(3_000, line_numbers=True), 5)
    await set_limit(store, "agent-a", PromptLimit(2_000), 4)
    assert await limit_of(store, "agent-a") == PromptLimit(3_000, line_numbers=True)
    await once(store, lambda unit: unit.raise_prompt("agent-a", PromptLimit(4_000)))
    assert await limit_of(store, "agent-a") == PromptLimit(4_000, line_numbers=True)
    await set_limit(store, "agent-a", PromptLimit(2_000), 5)
    assert await limit_of(store, "agent-a") == PromptLimit(2_000)
    with context.use(as_project()):
        assert await limit_of(store, "agent-a") is None


async def test_two_edits_at_once_cannot_be_too_large_together(store: PostgresBlockStore) -> None:
    await begin(store, "agent-a", 1_500)
    one = await insert(store, make("one"), "agent-a")
    two = await insert(store, make("two"), "agent-a")
    both = asyncio.Barrier(2)

    async def grow(block: Block) -> None:
        async def work(unit: Unit) -> None:
            await unit.lock_block(block.id)
            await both.wait()
            changed = replace(block, value="x" * 800, revision=2)
            await unit.update(changed, AUTHORSHIP, response=b"")
            # The other transaction is executing its statement by now, or waits for this one.
            await asyncio.sleep(0.2)

        await once(store, work)

    results = await asyncio.gather(grow(one), grow(two), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [FailedPreconditionError]
    assert (await size_of(store, "agent-a")).plain <= 1_500


async def test_concurrent_edits_of_shared_blocks_do_not_deadlock(
    store: PostgresBlockStore,
) -> None:
    """Growth, renames, attachments and releases of the same agents and blocks, all at once."""
    agents = [f"agent-{n}" for n in range(4)]
    for agent in agents:
        await begin(store, agent, 100_000)
    blocks = [
        await insert(store, make(f"block{n}"), *agents[n % 2 :], *agents[: n % 2]) for n in range(3)
    ]

    async def grow(which: Sequence[int]) -> None:
        async def work(unit: Unit) -> None:
            locked = await unit.lock_blocks([blocks[n].id for n in which])
            changed = [
                replace(b, value=b.value + "x", label=b.label + "y", revision=b.revision + 1)
                for b in locked.values()
            ]
            await unit.update_all(
                [(changed_block, AUTHORSHIP) for changed_block in changed], response=b""
            )

        for _ in range(8):
            await once(store, work)

    async def come_and_go(agent: str) -> None:
        async def leave(unit: Unit) -> None:
            await unit.detach_all(agent, NOW)
            await unit.made_for(agent)

        async def join(unit: Unit) -> None:
            await unit.begin_agent(agent, PromptLimit(100_000), 1)
            labels = await unit.labels([block.id for block in blocks])
            await unit.attach(agent, labels, NOW)

        for _ in range(8):
            await once(store, leave)
            await once(store, join)

    await asyncio.gather(
        grow([0, 1]), grow([1, 2]), grow([2]), come_and_go(agents[0]), come_and_go(agents[3])
    )
    stored = [await store.block(block.id) for block in blocks]
    assert [stored_block.value for stored_block in stored if stored_block is not None] == [
        "x" * 8,
        "x" * 16,
        "x" * 16,
    ]


@dataclass(frozen=True)
class Step:
    """One statement of a transaction."""

    kind: str
    block: int
    agent: str = "agent-a"
    length: int = 0


STEPS = st.builds(
    Step,
    st.sampled_from(["write", "attach", "detach"]),
    st.integers(0, 3),
    st.sampled_from(["agent-a", "agent-b"]),
    st.sampled_from([0, 100, 300, 600, 1_200]),
)


class Ledger:
    """The memory of the agents and its size, computed without the store."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = list(blocks)
        self.seen: dict[str, set[int]] = {"agent-a": set(), "agent-b": set()}

    def copy(self) -> Ledger:
        other = Ledger(self.blocks)
        other.seen = {agent: set(seen) for agent, seen in self.seen.items()}
        return other

    def sizes(self) -> dict[str, int]:
        """Bytes by agent: a frame of 112, and 120 for each block beside its texts."""
        return {
            agent: sum(
                120 + 2 * len(b.label) + len(b.description) + len(b.value)
                for b in (self.blocks[n] for n in seen)
            )
            + (112 if seen else 0)
            for agent, seen in self.seen.items()
        }

    async def do(self, unit: Unit, step: Step) -> None:
        block = self.blocks[step.block]
        if step.kind == "write":
            changed = replace(block, value="x" * step.length, revision=block.revision + 1)
            self.blocks[step.block] = changed
            await unit.update(changed, AUTHORSHIP, response=b"")
        elif step.kind == "attach":
            self.seen[step.agent].add(step.block)
            await unit.attach(step.agent, {block.id: block.label}, NOW)
        else:
            self.seen[step.agent].discard(step.block)
            await unit.detach(step.agent, block.id, NOW)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    transactions=st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=1, max_size=8),
    limits=st.tuples(st.integers(300, 2_000), st.integers(300, 2_000)),
    tight=st.booleans(),
)
async def test_a_transaction_is_refused_exactly_when_it_exceeds_a_limit(
    store: PostgresBlockStore,
    transactions: list[list[Step]],
    limits: tuple[int, int],
    tight: bool,
) -> None:
    """Several statements of a transaction count together."""
    most = dict(zip(("agent-a", "agent-b"), limits, strict=True))
    with context.use(as_project()):
        ledger = Ledger([await insert(store, make(f"block{n}")) for n in range(4)])
        for agent, limit in most.items():
            await begin(store, agent, None if tight else limit)
        if tight:
            # The limits are set when there is more memory already.
            for n in range(4):
                first = [Step("attach", n, agent) for agent in most]
                for step in (Step("write", n, length=600), *first):
                    await once(store, lambda unit, step=step: ledger.do(unit, step))
            for agent, limit in most.items():
                await set_limit(store, agent, PromptLimit(limit), 2)
        for steps in transactions:
            before, after = ledger.sizes(), ledger.copy()

            async def work(unit: Unit, steps: list[Step] = steps, after: Ledger = after) -> None:
                for step in steps:
                    await after.do(unit, step)

            try:
                await once(store, work)
            except FailedPreconditionError as error:
                agent, reached = error.metadata["agent_id"], after.sizes()
                assert int(error.metadata["size"]) == reached[agent]
                assert reached[agent] > max(most[agent], before[agent])
            else:
                ledger = after
                for agent, size in ledger.sizes().items():
                    assert size <= max(most[agent], before[agent])


async def test_the_limit_check_costs_no_additional_statement(
    store: PostgresBlockStore, database: Database
) -> None:
    await begin(store, "agent-a", 10_000)
    block = await insert(store, make("human"), "agent-a")
    with database.statistics.record() as texts:
        await write(store, replace(block, value="x", revision=2))
    assert len(texts) == 1


async def test_a_block_of_a_thousand_agents_is_checked_with_few_statements(
    store: PostgresBlockStore, urls: Any
) -> None:
    """The database does not check the agents one by one."""
    agents = [f"agent-{n:04}" for n in range(1_000)]

    async def prepare(unit: Unit) -> None:
        for agent in agents:
            await unit.begin_agent(agent, PromptLimit(5_000), 1)

    await once(store, prepare)
    block = await insert(store, make("shared"), *agents)
    await write(store, replace(block, value="x" * 4_000, revision=2))
    error = await refused(write(store, replace(block, value="x" * 6_000, revision=3)))
    assert error["agent_id"] == "agent-0000"
