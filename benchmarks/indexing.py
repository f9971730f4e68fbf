"""Measures the speed of indexing, and of turns and searches meanwhile."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.samples import Samples
from benchmarks.texts import facts, questions

# Pause between two turns, as between two messages of several persons.
_PAUSE_S = 0.05
_MOST_TIMES = 1.5
# Large enough that the import does not end while turns are measured.
_IMPORT_BYTES = 10_000_000
_DOCS = Path(__file__).resolve().parents[1] / "docs"


async def indexing(bench: Bench) -> None:
    """Uploads a document, waits until it is indexed, and makes turns during a bulk import."""
    rate = await _rate(bench, bench.effort.indexed_bytes)
    alone, beside = Samples(), Samples()
    searches_alone, searches_beside = Samples(), Samples()
    await _use(bench, await _agent(bench), alone, searches_alone)
    # Another one, since turns take longer with more messages in the window.
    agent = await _agent(bench)
    folder = await bench.client.new_folder()
    file_id = await bench.client.upload_file(folder, "import.txt", _document(_IMPORT_BYTES))
    share, started = await bench.client.follow_file(file_id, 0), time.perf_counter()
    await _use(bench, agent, beside, searches_beside)
    seconds = time.perf_counter() - started
    share = await bench.client.follow_file(file_id, 0) - share
    await bench.client.delete_folder(folder)
    bench.report.add(
        Row("indexing of a document", rate, "KB/s"),
        Row("indexing of a document beside turns", share * _IMPORT_BYTES / 1000 / seconds, "KB/s"),
        Row("turn alone, p95", alone.p95, "ms", samples=len(alone)),
        Row("turn beside a bulk import, p95", beside.p95, "ms", floor=alone.p95,
            floor_name="alone", target=_MOST_TIMES * alone.p95, samples=len(beside)),
        Row("turn beside a bulk import", beside.median, "ms", floor=alone.median,
            floor_name="alone", samples=len(beside)),
        Row("archival search beside a bulk import, p95", searches_beside.p95, "ms",
            floor=searches_alone.p95, floor_name="alone", samples=len(searches_beside)),
    )  # fmt: skip


async def _rate(bench: Bench, size: int) -> float:
    """Returns how many thousand bytes of a document are indexed in a second."""
    folder = await bench.client.new_folder()
    file_id = await bench.client.upload_file(folder, "document.txt", _document(size))
    started = time.perf_counter()
    await bench.client.follow_file(file_id, 1)
    seconds = time.perf_counter() - started
    await bench.client.delete_folder(folder)
    return size / 1000 / seconds


async def _agent(bench: Bench) -> str:
    """Returns a new agent with passages and a few messages."""
    agent = await bench.client.new_agent()
    for text in facts(20):
        await bench.client.insert_passage(agent, text)
    for number in range(5):
        await bench.client.turn(agent, f"Good morning, this is message {number}.")
    return agent


async def _use(bench: Bench, agent: str, turns: Samples, searches: Samples) -> None:
    for number, question in enumerate(questions(bench.effort.turns)):
        turn = await bench.client.turn(agent, f"Good evening, this is message {number}.")
        turns.add(turn.total)
        await asyncio.sleep(_PAUSE_S)
        # The vector of the question must not be cached.
        query = f"{question} Is it note {time.monotonic_ns()}?"
        started = time.perf_counter()
        await bench.client.search_passages(agent, query)
        searches.add((time.perf_counter() - started) * 1000)
        await asyncio.sleep(_PAUSE_S)


def _document(size: int) -> str:
    """Returns about `size` bytes of English prose: the project's own documentation.

    Its paragraphs are numbered, so that none of a longer text is like an earlier one: equal texts
    are embedded once.
    """
    files = sorted(_DOCS.rglob("*.md"))
    paragraphs = [part for file in files for part in file.read_text().split("\n\n")]
    document, total = [], 0
    for number, paragraph in enumerate(cycle(paragraphs)):
        if total >= size:
            break
        document.append(f"{number}. {paragraph}")
        total += len(document[-1]) + 2
    return "\n\n".join(document)
