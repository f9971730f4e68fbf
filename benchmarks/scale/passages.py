"""One archive with a hundred thousand passages: storing, indexing and searching them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from benchmarks.pace import Losses, plain_loop_ms
from benchmarks.report import Report, Row
from benchmarks.samples import Samples
from benchmarks.scale.material import Sized, questions, with_vectors
from benchmarks.scale.services import Services
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb

_WORDS = 40
_BATCH = 500
_TAGS = 10
_START = datetime(2020, 1, 1, tzinfo=UTC)
_MINUTES = timedelta(minutes=20)
WARM_UP = 5
SEARCH_TARGET_MS = 20.0
STORE_TARGET_S = 1.0


async def measure(services: Services, report: Report, count: int, searches: int) -> None:
    """Fills an archive and searches it.

    Args:
        services: The services.
        report: Gets the results.
        count: Number of passages.
        searches: Searches of each kind.
    """
    created = await services.archives.CreateArchive(archive_pb.CreateArchiveRequest(name="Big"))
    archive = created.archive.id
    # Made before the measurement.
    requests = list(_upload(archive, count, services))
    started = time.perf_counter()
    responses = services.passages.UploadPassages(_all_of(requests))
    if not [response.complete async for response in responses][-1]:
        raise RuntimeError("the upload did not finish")
    store_s = time.perf_counter() - started
    requests.clear()
    await _until_indexed(services, archive)
    indexed = time.perf_counter() - started
    report.add(
        Row(
            "1,000 passages stored, vectors supplied",
            store_s / count * 1000,
            "s",
            target=STORE_TARGET_S,
            samples=count,
            note=f"{count / store_s:.0f} a second, durable, batches of {_BATCH}, while indexing",
        ),
        Row(
            "1,000 passages stored and indexed",
            indexed / count * 1000,
            "s",
            samples=count,
            note=f"{count / indexed:.0f} a second",
        ),
    )
    asked = questions(searches, seed=3)
    # Puts the vectors of the queries into the cache, so that only the search is measured.
    await services.embedder.embed(asked, "query")
    await services.until_calm()
    for name, conditions in _filters(archive, count).items():
        samples = Samples()
        before, losses = services.cpu_ms(), Losses()
        for number, question in enumerate([*asked[:WARM_UP], *asked]):
            request = pb.SearchPassagesRequest(
                query=question, top_k=10, explain=number < WARM_UP, **conditions
            )
            begun = time.perf_counter()
            response = await services.passages.SearchPassages(request)
            samples.add((time.perf_counter() - begun) * 1000)
            check(response.hits)
        cpu = (services.cpu_ms() - before) / len(samples)
        lost = f"stolen {losses.stolen():.0%}, waiting for the disk {losses.disk():.0%}"
        note = f"CPU {cpu:.1f} ms; a plain loop {plain_loop_ms():.1f} ms; {lost}"
        del samples.values[:WARM_UP]
        report.add(
            Row(f"search of {count:,} passages, {name}", samples.median, "ms", samples.p95,
                samples=len(samples), note=note),
            Row("  its p95", samples.p95, "ms", target=SEARCH_TARGET_MS, samples=len(samples)),
        )  # fmt: skip
    report.add(
        Row(
            f"memory with {count:,} passages",
            total(services.memory()),
            "MB",
            note=services.memory(),
        ),
        Row(f"disk with {count:,} passages", total(services.disk()), "MiB", note=services.disk()),
    )


def check(hits: Sequence[Any]) -> None:
    """Checks that a search used the index.

    Args:
        hits: Its hits, with explanations.

    Raises:
        RuntimeError: The search found nothing, or only searched words in PostgreSQL.
    """
    if not hits or any("Only its words" in hit.relevance.explanation for hit in hits):
        raise RuntimeError("a search did not use the index")


def _filters(archive: str, count: int) -> dict[str, dict[str, Any]]:
    middle = _START + _MINUTES * (count // 2)
    within: dict[str, Any] = {"archive_ids": [archive]}
    return {
        "no filter but the archive": within,
        "a tag that one in ten has": {**within, "tags": ["tag-3"]},
        "the newer half": {**within, "start_time": middle},
        "two tags, both, and the newer half": {
            **within,
            "tags": ["tag-3", "odd"],
            "tag_match_mode": pb.TAG_MATCH_MODE_ALL,
            "start_time": middle,
        },
    }


def _upload(archive: str, count: int, services: Services) -> Iterator[pb.UploadPassagesRequest]:
    numbered = enumerate(with_vectors(count, words=_WORDS, seed=1, dim=services.embedder.dim))
    first = True
    while batch := list(islice(numbered, _BATCH)):
        yield pb.UploadPassagesRequest(
            archive_id=archive if first else "",
            passages=[_passage(number, sized, services) for number, sized in batch],
        )
        first = False


def _passage(number: int, sized: Sized, services: Services) -> pb.NewPassage:
    passage = pb.NewPassage(
        text=sized.text,
        tags=[f"tag-{number % _TAGS}", "odd" if number % 2 else "even"],
        embedding=sized.vector,
        embedding_model=services.embedder.model_id,
    )
    passage.create_time.FromDatetime(_START + _MINUTES * number)
    return passage


async def _all_of(requests: list[pb.UploadPassagesRequest]) -> AsyncIterator[Any]:
    for request in requests:
        yield request


async def _until_indexed(services: Services, archive: str) -> None:
    request = archive_pb.GetArchiveRequest(archive_id=archive)
    while True:
        response = await services.archives.GetArchive(request)
        if not response.archive.unindexed_count:
            return
        await asyncio.sleep(0.5)


def total(by_kind: str) -> float:
    """Returns the sum of the numbers in a text of `Services.memory` or `Services.disk`."""
    return float(sum(int(part.rsplit(" ", 1)[1]) for part in by_kind.split(", ")))
