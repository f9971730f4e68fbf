"""Measures single calls: the overhead of the gateway, and the memory services."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import count

from benchmarks.bench import Bench
from benchmarks.floors import EmbeddingFloor
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.texts import facts, questions

_SEARCHED_TURNS = 30


async def gateway_calls(bench: Bench) -> None:
    """Measures a call that the gateway answers, and one that it forwards to a service."""
    agent = await bench.client.new_agent()
    own, proxied = Samples(), Samples()
    await bench.client.who_am_i()
    await bench.client.get_agent(agent)
    await own.time(bench.effort.calls, bench.client.who_am_i)
    await proxied.time(bench.effort.calls, lambda: bench.client.get_agent(agent))
    await bench.floors.hop.measure(bench.effort.calls)
    hop = bench.floors.hop.samples.median
    bench.report.add(
        Row("gateway call (WhoAmI)", own.median, "ms", p95=own.p95, floor=hop, floor_name="hop",
            samples=len(own)),
        Row("proxied call (GetAgent)", proxied.median, "ms", p95=proxied.p95, floor=hop,
            floor_name="hop", samples=len(proxied)),
    )  # fmt: skip


async def archival(bench: Bench) -> None:
    """Measures storing and searching passages, which are indexed later in the background."""
    agent = await bench.client.new_agent()
    inserts, searches = Samples(), Samples()
    texts = iter(facts(bench.effort.passages))
    await inserts.time(
        bench.effort.passages, lambda: bench.client.insert_passage(agent, next(texts))
    )
    await bench.floors.commit.measure(min(bench.effort.passages, 100))
    asked = questions(bench.effort.calls)
    async with AsyncExitStack() as stack:
        embedding = await EmbeddingFloor.open(stack)
        await embedding.measure(asked[:1])
        embedding.samples.values.clear()
        await embedding.measure(asked)
        for _ in range(3):
            hits = await bench.client.search_passages(agent, asked[0])
        waiting = iter(asked)
        await searches.time(len(asked), lambda: bench.client.search_passages(agent, next(waiting)))
    if not hits:
        raise RuntimeError("the search found nothing")
    commit = bench.floors.commit.samples.median
    bench.report.add(
        Row("archival insert", inserts.median, "ms", p95=inserts.p95, floor=commit,
            floor_name="commit", samples=len(inserts)),
        Row("floor: embedding of a question", embedding.samples.median, "ms",
            p95=embedding.samples.p95, samples=len(embedding.samples)),
        Row("archival search", searches.median, "ms", p95=searches.p95,
            floor=embedding.samples.median, floor_name="embedding", samples=len(searches),
            note=f"{bench.effort.passages} passages, {hits[0].relevance.search_mode}"),
    )  # fmt: skip


async def conversation_search(bench: Bench) -> None:
    """Measures full-text search over messages."""
    agent = await bench.client.new_agent()
    for text in facts(_SEARCHED_TURNS):
        await bench.client.turn(agent, text)
    numbers = count()
    words = ("boat", "espresso", "telescope", "quarterly report", "garden", "Lisbon", "piano")
    response = await bench.client.search_messages(agent, words[0])
    if not response:
        raise RuntimeError("the search found nothing")
    searches = Samples()
    await searches.time(
        bench.effort.calls,
        lambda: bench.client.search_messages(agent, words[next(numbers) % len(words)]),
    )
    bench.report.add(
        Row("conversation search", searches.median, "ms", p95=searches.p95,
            floor=bench.floors.hop.samples.median if bench.floors.hop.samples.values else None,
            floor_name="hop", samples=len(searches), note=f"{2 * _SEARCHED_TURNS} messages"),
    )  # fmt: skip
