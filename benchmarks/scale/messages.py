"""Measures recall with a million messages of a thousand agents, and with one agent's messages."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.pace import Losses, plain_loop_ms
from benchmarks.report import Report, Row
from benchmarks.samples import Samples
from benchmarks.scale.material import questions, texts, vector_of
from benchmarks.scale.passages import WARM_UP, check, total
from benchmarks.scale.services import Services, open_services
from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import window_service_pb2 as pb
from strata.recall.search.index import MESSAGES
from strata.shared.context import use
from strata.shared.ids import new_id
from strata.shared.search.vectors import IndexedChunk, IndexedDocument
from strata.shared.search.vectors.sparse import SparseEncoder

_WORDS = 25
_WINDOW = 20
_AT_ONCE = 4
_START = datetime(2024, 1, 1, tzinfo=UTC)
SEARCH_TARGET_MS = 30.0


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent with one conversation, and the sizes of its log."""

    id: str
    conversation: str
    messages: int


async def measure(
    services: Services,
    report: Report,
    count: int,
    agents: int,
    indexed: int,
    searches: int,
    rounds: int = 1,
) -> None:
    """Stores messages, then measures turns and searches.

    Args:
        services: The services.
        report: Gets the results.
        count: Messages of all agents together.
        agents: Number of agents.
        indexed: How many of the agents are in the vector index; the messages of the others are
            only marked as indexed.
        searches: Searches of each kind, and turns.
        rounds: Rounds of searches, each with other agents; all are reported.
    """
    per_agent = count // agents
    first_agent = await _fill(services, per_agent, seed=0)
    await _index(services, first_agent)
    started = time.perf_counter()
    filled = [first_agent]
    for first in range(1, agents, _AT_ONCE):
        seeds = range(first, min(first + _AT_ONCE, agents))
        filled += await asyncio.gather(*(_fill(services, per_agent, seed=seed) for seed in seeds))
    seconds = time.perf_counter() - started
    report.add(
        Row(
            "1,000 messages stored",
            seconds / max(1, (agents - 1) * per_agent) * 1000,
            "s",
            note=f"{(agents - 1) * per_agent / seconds:.0f} a second, a thousand in one call",
        )
    )
    started = time.perf_counter()
    for agent in filled[1:indexed]:
        await _index(services, agent)
    seconds = time.perf_counter() - started
    points = (min(indexed, agents) - 1) * per_agent
    await _mark_the_rest(services)
    if points > 0:
        report.add(
            Row(
                "1,000 messages written into the index, vectors supplied",
                seconds / points * 1000,
                "s",
                samples=points,
                note=f"{points / seconds:.0f} a second",
            )
        )
    alone, beside = await _turns_compared(services, filled, per_agent, searches)
    for name in ("BeginTurn", "CommitStep"):
        one, all_of_them = alone[name], beside[name]
        report.add(
            Row(f"{name}, {per_agent:,} messages", one.median, "ms", one.p95, samples=len(one)),
            Row(
                f"{name}, {count:,} messages",
                all_of_them.median,
                "ms",
                all_of_them.p95,
                floor=one.median,
                floor_name=f"{per_agent:,} messages",
                samples=len(all_of_them),
            ),
        )
    for round_number in range(rounds):
        await services.until_calm()
        await _searches(services, report, filled[: max(1, indexed)], count, searches, round_number)
    share = f"{min(indexed, agents) * per_agent:,} of them in the vector index"
    report.add(
        Row(f"memory with {count:,} messages", total(services.memory()), "MB",
            note=f"{services.memory()}; {share}"),
        Row(f"disk with {count:,} messages", total(services.disk()), "MiB",
            note=f"{services.disk()}; {share}"),
    )  # fmt: skip


async def _searches(
    services: Services,
    report: Report,
    agents: Sequence[Agent],
    count: int,
    searches: int,
    round_number: int,
) -> None:
    asked = questions(searches, seed=5)
    await services.embedder.embed(asked, "query")
    middle = message_pb.SearchMessagesRequest()
    middle.start_time.FromDatetime(_START + timedelta(minutes=agents[0].messages // 2))
    kinds = {
        "hybrid": message_pb.SearchMessagesRequest(mode=message_pb.SEARCH_MODE_HYBRID),
        "hybrid, the newer half": middle,
        "full text": message_pb.SearchMessagesRequest(mode=message_pb.SEARCH_MODE_FULL_TEXT),
    }
    for name, kind in kinds.items():
        samples = Samples()
        before = services.cpu_ms()
        losses = Losses()
        for number, question in enumerate([*asked[:WARM_UP], *asked]):
            request = message_pb.SearchMessagesRequest(
                agent_id=agents[(number * 7 + round_number * 3) % len(agents)].id,
                query=question,
                limit=10,
                explain=number < WARM_UP,
            )
            request.MergeFrom(kind)
            begun = time.perf_counter()
            response = await services.messages.SearchMessages(request)
            samples.add((time.perf_counter() - begun) * 1000)
            if name != "full text":
                check(response.hits)
        cpu = (services.cpu_ms() - before) / len(samples)
        note = (
            f"CPU {cpu:.1f} ms; a plain loop {plain_loop_ms():.1f} ms;"
            f" waiting for the disk {losses.disk():.0%}"
        )
        del samples.values[:WARM_UP]
        report.add(
            Row(f"search beside {count:,} messages, {name}", samples.median, "ms", samples.p95,
                samples=len(samples), note=note),
            Row("  its p95", samples.p95, "ms", target=SEARCH_TARGET_MS, samples=len(samples)),
        )  # fmt: skip


async def _fill(services: Services, count: int, seed: int) -> Agent:
    """Stores the messages of an agent through the service; the last twenty stay in its window."""
    agent = Agent(new_id("agent"), new_id("conversation"), count)
    lines = list(texts(count, words=_WORDS, seed=seed))
    messages = [_message(text, number) for number, text in enumerate(lines)]
    system = common.Message(id=new_id("message"), role=common.ROLE_SYSTEM)
    await services.windows.OpenWindow(
        pb.OpenWindowRequest(
            conversation_id=agent.conversation, agent_id=agent.id, messages=[system, *messages]
        )
    )
    await _turn(services, agent, evicted=count - _WINDOW)
    return agent


async def _turn(services: Services, agent: Agent, *, evicted: int = 0) -> tuple[float, float]:
    """Makes a plain turn; returns the durations of its two calls in milliseconds."""
    run = new_id("run")
    now = int((datetime.now(UTC) - _START).total_seconds() // 60)
    asked = _message("How is the weather?", now - now % 2, run)
    answered = _message("It rains.", now - now % 2 + 1, run)
    started = time.perf_counter()
    await services.windows.BeginTurn(
        pb.BeginTurnRequest(
            conversation_id=agent.conversation,
            agent_id=agent.id,
            run_id=run,
            attempt=1,
            inputs=[asked],
        )
    )
    begun = time.perf_counter()
    await services.windows.CommitStep(
        pb.CommitStepRequest(
            conversation_id=agent.conversation,
            agent_id=agent.id,
            run_id=run,
            attempt=1,
            step=1,
            step_id=new_id("step"),
            messages=[answered],
            # As many messages leave the window as enter it.
            evict_count=evicted or 2,
        )
    )
    return (begun - started) * 1000, (time.perf_counter() - begun) * 1000


async def _turns_compared(
    services: Services, agents: Sequence[Agent], per_agent: int, count: int
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Makes turns of an agent alone and of agents among all messages, alternately.

    They alternate, because the speed of a shared machine varies by half within minutes.
    """
    draw = random.Random(7)
    folder = services.folder / "few"
    folder.mkdir()
    folder.chmod(0o711)
    async with open_services(folder, services.pid) as few:
        one = await _fill(few, per_agent, seed=0)
        await _index(few, one)
        await services.until_calm()
        columns = ((few, [one]), (services, agents))
        latencies = tuple({"BeginTurn": Samples(), "CommitStep": Samples()} for _ in columns)
        for number in range(count + 5):
            for (where, those), samples in zip(columns, latencies, strict=True):
                with use(where.context):
                    begin, commit = await _turn(where, draw.choice(those))
                if number >= 5:
                    samples["BeginTurn"].add(begin)
                    samples["CommitStep"].add(commit)
    return latencies[0], latencies[1]


async def _index(services: Services, agent: Agent) -> None:
    """Writes an agent's messages to the index as the indexer does, with precomputed vectors."""
    sparse = SparseEncoder()
    ids: list[str] = []
    token = ""
    while True:
        page = await services.messages.ListMessages(
            message_pb.ListMessagesRequest(
                conversation_id=agent.conversation, page_size=500, page_token=token
            )
        )
        documents = [
            _document(message, agent, services.embedder.dim, sparse)
            for message in page.messages
            if message.role != common.ROLE_SYSTEM
        ]
        await services.vectors.upsert(MESSAGES, services.project, documents)
        ids += [document.id for document in documents]
        token = page.next_page_token
        if not token:
            break
    await services.pending.done(services.project, ids)


async def _mark_the_rest(services: Services) -> None:
    while batch := (await services.pending.find(10_000)).ids:
        for project, ids in batch.items():
            await services.pending.done(project, ids)


def _document(
    message: common.Message, agent: Agent, dim: int, sparse: SparseEncoder
) -> IndexedDocument:
    text = message.parts[0].text.text
    return IndexedDocument(
        message.id,
        [IndexedChunk(vector_of(text, dim), sparse.document(text))],
        {
            "agent_id": agent.id,
            "conversation_id": agent.conversation,
            "role": "user" if message.role == common.ROLE_USER else "assistant",
            "run_id": message.run_id,
            "create_time": message.create_time.ToDatetime(tzinfo=UTC),
        },
    )


def _message(text: str, minute: int, run: str = "") -> common.Message:
    message = common.Message(
        id=new_id("message"),
        run_id=run,
        role=common.ROLE_ASSISTANT if minute % 2 else common.ROLE_USER,
        parts=[common.Part(text=common.TextPart(text=text))],
    )
    message.create_time.FromDatetime(_START + timedelta(minutes=minute))
    return message
