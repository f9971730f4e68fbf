"""The threads of a local embedding model."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from loop_time import put_forward
from polling import settle
from strata.shared import heap_trim
from strata.shared.search.embedding import model_threads
from strata.shared.search.embedding.base import Kind
from strata.shared.search.embedding.minilm import MiniLmEmbedder
from strata.shared.search.embedding.model_threads import ModelThreads, SpareCores
from strata.shared.search.embedding.multilingual import MultilingualEmbedder


def _niceness(_: str) -> list[float]:
    return [os.getpriority(os.PRIO_PROCESS, threading.get_native_id())]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.parametrize(("kind", "nicer_by"), [("query", 0), ("document", 10)])
async def test_documents_are_embedded_with_lower_priority(kind: Kind, nicer_by: int) -> None:
    threads = ModelThreads()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    [[niceness]] = await threads.embed(["text"], kind, _niceness, lambda: None)
    assert niceness == min(own + nicer_by, 19)
    await threads.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems embed documents in one thread")
async def test_documents_use_all_cores_and_a_query_waits_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_threads, "usable_cores", lambda: 3)
    threads = ModelThreads()
    assert threads.documents_at_once == 3
    barrier, release = threading.Barrier(3 + 1), threading.Event()

    def held(text: str) -> list[float]:
        barrier.wait(60)
        release.wait(60)
        return [float(text)]

    waiting = asyncio.create_task(threads.embed(["0", "1", "2"], "document", held, lambda: None))
    await asyncio.to_thread(barrier.wait, 60)
    assert await threads.embed(["7"], "query", lambda text: [float(text)], lambda: None) == [[7.0]]
    assert not waiting.done()
    release.set()
    assert await waiting == [[0.0], [1.0], [2.0]]
    await threads.close()


@pytest.mark.parametrize("model", [MiniLmEmbedder, MultilingualEmbedder])
async def test_memory_is_returned_after_long_texts(
    model: type[MiniLmEmbedder | MultilingualEmbedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = await model.load()
    returned = threading.Event()
    monkeypatch.setattr(model_threads, "_GIVE_BACK_AFTER_S", 0.0)
    monkeypatch.setattr(heap_trim, "trim_heap", returned.set)
    await embedder.embed(["short"], "document")
    await embedder.embed(["short"], "query")
    assert not returned.is_set()
    await embedder.embed(["long " * 100], "document")
    await asyncio.to_thread(returned.wait, 60)
    assert returned.is_set()
    await embedder.close()


async def test_memory_is_returned_once_no_text_is_embedded_any_more() -> None:
    threads, returned = ModelThreads(), 0

    def release() -> None:
        nonlocal returned
        returned += 1

    async def pass_time(seconds: float) -> None:
        put_forward(seconds)
        await settle()
        # Memory is released in the thread of the queries.
        await threads.run(lambda: None)

    for _ in range(5):
        await threads.embed(["short"], "query", lambda _: [0.0], release)
        await pass_time(0.8 * model_threads._IDLE_S)
    assert returned == 0
    await pass_time(model_threads._IDLE_S)
    assert returned == 1
    await pass_time(3 * model_threads._IDLE_S)
    assert returned == 1, "nothing was used since"
    await threads.embed(["short"], "document", lambda _: [0.0], release)
    await pass_time(model_threads._IDLE_S)
    assert returned == 2
    await threads.close()


class Cores:
    """Simulated cores, whose time passes only during runs of a model."""

    def __init__(self) -> None:
        self.now = 100.0
        self.spare = SpareCores(lambda: self.now)

    def run(self, seconds: float, *, waiting_share: float) -> None:
        """Runs a model for some seconds, in pieces of 20 ms."""
        for _ in range(round(seconds / 0.02)):
            self.now += 0.02
            self.spare.note(0.02, 0.02 * (1 - waiting_share))


def test_cores_are_left_to_others_while_threads_wait_for_a_processor() -> None:
    cores = Cores()
    cores.run(10, waiting_share=0.16)
    assert not cores.spare.wanted, "an import alone causes waits of this size"
    cores.run(0.02, waiting_share=0.7)
    assert not cores.spare.wanted, "a single run was interrupted"
    cores.run(1, waiting_share=0.4)
    assert cores.spare.wanted
    cores.now += 5
    assert not cores.spare.wanted


def test_cores_that_stay_in_use_are_left_to_others_for_increasing_times() -> None:
    cores, seconds_of_use = Cores(), 0.0
    for _ in range(1000):
        wanted = cores.spare.wanted
        seconds_of_use += 0 if wanted else 0.1
        # With one document at a time, the other work gets a core.
        cores.run(0.1, waiting_share=0.05 if wanted else 0.4)
    assert seconds_of_use < 6

    cores.now += 100
    cores.run(1, waiting_share=0.4)
    assert cores.spare.wanted
    cores.now += 5
    assert not cores.spare.wanted, "the pause is short again after an idle time"


async def test_a_document_waiting_for_a_processor_is_detected() -> None:
    threads = ModelThreads()

    def wait(text: str) -> list[float]:
        threading.Event().wait(0.5)
        return [0.0]

    await threads.embed(["text"], "query", wait, lambda: None)
    assert not threads.cores_wanted()
    await threads.embed(["text"], "document", wait, lambda: None)
    assert threads.cores_wanted()
    await threads.close()
