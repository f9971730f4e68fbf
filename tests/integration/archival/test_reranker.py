"""A reranker that the settings name, through the service."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from callers import TokenKeys
from cross_encoders import export
from integration.archival.archival_calls import made, put
from integration.archival.conftest import Client
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.api.common.v1 import search_pb2
from strata.archival.main import build
from strata.archival.settings import ArchivalSettings
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.inprocess import InProcessNetwork
from strata.shared.metric_names import RERANKS
from strata.shared.service import BackgroundTasks

PLAIN = "The boat is called Nora."
# It has most words of the question, and little of its meaning.
WORDY = "It is the end of the day, the end of the week, the end of the month."
QUESTION = "What is the name of the boat?"


async def until_indexed(client: Client, archive: str) -> None:
    request = archive_pb.GetArchiveRequest(archive_id=archive)
    async with asyncio.timeout(30):
        while (await client.archives.GetArchive(request)).archive.unindexed_count:
            await asyncio.sleep(0.05)


async def test_reranker_of_the_settings_orders_the_results(
    settings: ArchivalSettings, keys: TokenKeys, tmp_path: Path
) -> None:
    folder = export(tmp_path / "counter", [QUESTION, PLAIN, WORDY])
    for path, first in ((None, PLAIN), (folder, WORDY)):
        async with AsyncExitStack() as stack:
            network = InProcessNetwork(keys.verifier)
            stack.push_async_callback(network.close)
            chosen = settings.model_copy(
                update={"reranker_path": path, "reranker_budget_ms": 60_000, "search_floor": 0.0}
            )
            service = await build(chosen, network, stack)
            network.register(service, chosen)
            await stack.enter_async_context(BackgroundTasks(service))
            client = Client(keys, network.channel("archival"))
            archive = await made(client)
            for text in (PLAIN, WORDY):
                await put(client, archive, text)
            await until_indexed(client, archive)
            request = pb.SearchPassagesRequest(archive_ids=[archive], query=QUESTION, top_k=1)
            response = await client.passages.SearchPassages(request)
            [hit] = response.hits
            assert hit.passage.text == first
            assert response.HasField("reranking") == (path is not None)
            assert network.telemetry.total(RERANKS, outcome="done") == (path is not None)
            if path is not None:
                assert response.reranking.outcome == search_pb2.RERANK_OUTCOME_DONE
                assert response.reranking.candidate_count == 2
                assert hit.relevance.rerank_rank == 1


async def test_service_does_not_start_if_its_reranker_is_missing(
    settings: ArchivalSettings, keys: TokenKeys, tmp_path: Path
) -> None:
    wrong = settings.model_copy(update={"reranker_path": tmp_path / "nowhere"})
    async with AsyncExitStack() as stack:
        network = InProcessNetwork(keys.verifier)
        stack.push_async_callback(network.close)
        with pytest.raises(FailedPreconditionError, match="nowhere") as caught:
            await build(wrong, network, stack)
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED
