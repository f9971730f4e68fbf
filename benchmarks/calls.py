"""Single calls: what the gateway adds, and what the tiers take."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import count

from benchmarks.bench import Bench
from benchmarks.floors import EmbeddingFloor
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.texts import facts, questions
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.core_memory import main as core_memory
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.auth import TokenSigner, TokenVerifier, public_key_of
from strata.shared.context import Caller, RequestContext, use
from strata.shared.inprocess import InProcessNetwork

_SEARCHED_TURNS = 30


async def gateway_calls(bench: Bench) -> None:
    """A call that the gateway answers, and one that it passes on to a room."""
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


async def compile_unchanged(bench: Bench) -> None:
    """Core memory asked for a revision that the caller has: what every step of a turn costs.

    It is an internal call, which the gateway does not pass on. So the room is built here once
    more, on the same database, and called as the agent loop calls it within one process.
    """
    me = await bench.client.who_am_i()
    agent = await bench.client.new_agent()
    folder = bench.system.folder
    private_key = folder.secret("token-signing-key")
    token = TokenSigner(private_key).mint(
        me.organization_id, me.project.id, "benchmark", ("agents:read",)
    )
    caller = Caller(me.organization_id, me.project.id, "benchmark", token=token)
    password = folder.role_passwords("core_memory").service
    url = bench.system.database_url("strata", "strata_core_memory", password)
    async with AsyncExitStack() as stack:
        public_key = public_key_of(private_key)
        network = await stack.enter_async_context(InProcessNetwork(TokenVerifier(public_key)))
        settings = CoreMemorySettings(database_url=url, token_public_keys=public_key)
        network.register(await core_memory.build(settings, network, stack), settings)
        stub = context_grpc.ContextServiceStub(network.channel(core_memory.NAME))
        with use(RequestContext(caller=caller, request_id="benchmark")):
            request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent")
            full, unchanged = Samples(), Samples()
            request.if_revision = (await stub.Compile(request)).revision
            if not (await stub.Compile(request)).not_changed:
                raise RuntimeError("the memory of an idle agent has changed")
            revision = request.if_revision
            for _ in range(bench.effort.calls):
                # In turn, so that what else the machine does bears on both.
                request.if_revision = revision
                await unchanged.time(1, lambda: stub.Compile(request))
                request.if_revision = ""
                await full.time(1, lambda: stub.Compile(request))
    bench.report.add(
        Row("Compile, unchanged", unchanged.median, "ms", p95=unchanged.p95,
            samples=len(unchanged), note="in-process channel, one SELECT"),
        Row("Compile, whole", full.median, "ms", p95=full.p95, samples=len(full)),
    )  # fmt: skip


async def archival(bench: Bench) -> None:
    """Passages stored and found. A stored passage is indexed afterwards, in the background."""
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
    """Full-text search over what was said."""
    agent = await bench.client.new_agent()
    for text in facts(_SEARCHED_TURNS):
        await bench.client.turn(agent, text)
    numbers = count()
    words = ("boat", "espresso", "telescope", "quarterly report", "garden", "Lisbon", "piano")
    found = await bench.client.search_messages(agent, words[0])
    if not found:
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
