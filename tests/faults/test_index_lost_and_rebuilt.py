"""Every file of the vector engine is deleted; an index is rebuilt while its service is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from faults.live import Client, Live, ModelThread
from live import still_running
from other_models import NOISE, WORDS, endpoints, serve
from passage_uploads import new_passages, upload_passages
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from uploading import upload_requests

pytestmark = pytest.mark.timeout(300)
# Question and answer have no word in common, so only the vector search can find the answer.
PASSAGE = ("The dog chased its ball across a meadow.", "puppies at play")
SAID = ("My doctor told me to swallow pills each morning.", "health and medication")
FILED = ("The locomotive left from platform nine.", "railway station")
# A rebuild takes ten batches, which gives the test time to kill a process during the rebuild.
FILLERS = [f"Ledger line {n}: {n * 7} crates of item {n}." for n in range(320)]


@pytest_asyncio.fixture
async def with_models(open_folder: Path, model: ModelThread) -> AsyncIterator[Live]:
    """A Strata with additional embedding models."""
    endpoint = await serve()
    strata = Live(open_folder / "data", model.url)
    known = json.dumps(endpoints(endpoint.base_url))
    strata.environment |= {
        "STRATA_ARCHIVAL_EMBEDDING_MODELS": known,
        "STRATA_RECALL_EMBEDDING_MODELS": known,
    }
    await strata.start()
    yield strata
    await strata.stop_whole()
    await endpoint.stop()


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.1)


async def store(client: Client, agent: str, texts: list[str]) -> None:
    await upload_passages(client.passages, new_passages(texts), call=client.call, agent_id=agent)


async def passage_found(client: Client, agent: str) -> bool:
    request = passage_pb.SearchPassagesRequest(agent_id=agent, query=PASSAGE[1], top_k=3)
    hits = (await client.passages.SearchPassages(request, **client.call)).hits
    return any(hit.passage.text == PASSAGE[0] for hit in hits)


async def message_found(client: Client, agent: str) -> bool:
    request = message_pb.SearchMessagesRequest(agent_id=agent, query=SAID[1], limit=3)
    hits = (await client.messages.SearchMessages(request, **client.call)).hits
    return any(part.text.text == SAID[0] for hit in hits for part in hit.message.parts)


async def chunk_found(client: Client, agent: str) -> bool:
    request = file_pb.SearchFilesRequest(agent_id=agent, query=FILED[1])
    hits = (await client.files.SearchFiles(request, **client.call)).hits
    return any(FILED[0] in hit.text for hit in hits)


async def all_found(client: Client, agent: str) -> bool:
    return (
        await passage_found(client, agent)
        and await message_found(client, agent)
        and await chunk_found(client, agent)
    )


async def filled(client: Client, fillers: Sequence[str] = ()) -> str:
    """Creates an agent with a passage, a message and a file that searches must find."""
    agent = (await client.new_agent()).id
    await store(client, agent, [PASSAGE[0], *fillers])
    assert (await client.send(agent, SAID[0])).ended_well
    made = await client.files.CreateFolder(
        file_pb.CreateFolderRequest(name="papers"), **client.call
    )
    requests = upload_requests(made.folder.id, "travel.txt", FILED[0].encode())

    async def stream() -> AsyncIterator[file_pb.UploadFileRequest]:
        for request in requests:
            yield request

    await client.files.UploadFile(stream(), **client.call)
    attach = file_pb.AttachFolderRequest(agent_id=agent, folder_id=made.folder.id)
    await client.files.AttachFolder(attach, **client.call)
    return agent


async def strata(live: Live, *arguments: str) -> tuple[int, Any]:
    """Runs a command; returns its exit code and its output as JSON."""
    environment = {**live.environment, "STRATA_API_KEY": live.key}
    environment["STRATA_ORGANIZATION_KEY"] = live.organization_key
    environment["STRATA_ADDRESS"] = live.runtime.address
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "strata.cli.main", *arguments, "--json"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, json.loads(out) if out else err.decode()


async def test_nothing_is_lost_when_all_files_of_the_vector_engine_are_lost(live: Live) -> None:
    async with live.client() as client:
        agent = await filled(client)
        await until(lambda: all_found(client, agent))
    await live.stop()
    folder = live.folder.path / "vectors"
    assert any(folder.rglob("*"))
    shutil.rmtree(folder)
    await live.start()
    async with live.client() as client:
        await until(lambda: all_found(client, agent))
        code, output = await strata(live, "status")
    assert code == 0
    assert set(output["indexes"]) == {"passages", "files", "messages"}


# test_death_at_any_point kills processes during rebuilds in every run of the tests.
@pytest.mark.slow
async def test_a_reindex_continues_after_a_kill_and_can_be_rolled_back(with_models: Live) -> None:
    live = with_models
    async with live.client() as client:
        agent = await filled(client, FILLERS)
        await until(lambda: all_found(client, agent))
    code, begun = await strata(live, "reindex", "passages", "--model", WORDS, "--no-wait")
    assert (code, begun["phase"]) == (0, "REINDEX_PHASE_BUILDING")
    # This kills all services during the rebuild: the main process runs every service.
    before = live.tree()
    os.kill(live.process.pid, signal.SIGKILL)
    assert await still_running(before, 30) == []
    live.process.wait()
    await live.start()

    async def switched() -> bool:
        _, job = await strata(live, "reindex", "passages", "--status")
        assert job["id"] == begun["id"]
        assert job["phase"] not in ("REINDEX_PHASE_FAILED", "REINDEX_PHASE_CANCELLED"), job
        return bool(job["phase"] == "REINDEX_PHASE_SWITCHED")

    await until(switched)
    _, job = await strata(live, "reindex", "passages", "--status")
    assert (job["newModel"], job["done"]) == (WORDS, str(len(FILLERS) + 1))
    async with live.client() as client:
        # The new model compares words only; after the roll-back the old one compares meanings.
        request = passage_pb.SearchPassagesRequest(agent_id=agent, query="dog meadow ball", top_k=1)
        [hit] = (await client.passages.SearchPassages(request, **client.call)).hits
        assert (hit.passage.text, hit.relevance.vector_rank) == (PASSAGE[0], 1)
        code, back = await strata(live, "reindex", "passages", "--rollback")
        assert (code, back["phase"]) == (0, "REINDEX_PHASE_ROLLED_BACK")
        await until(lambda: passage_found(client, agent))
    # A model that fails the check with sample texts is not activated; the command reports that.
    code, job = await strata(live, "reindex", "passages", "--model", NOISE)
    assert (code, job["phase"]) == (1, "REINDEX_PHASE_FAILED")
    # Rebuild the index of one archive, named on the command line.
    code, job = await strata(live, "reindex", f"Archive of {agent}", "--model", WORDS)
    assert (code, job["phase"], job["done"]) == (0, "REINDEX_PHASE_SWITCHED", job["total"])
    # Finish a rebuild of the messages.
    code, job = await strata(live, "reindex", "messages")
    assert (code, job["phase"]) == (0, "REINDEX_PHASE_SWITCHED")
    code, job = await strata(live, "reindex", "messages", "--finish")
    assert (code, job["phase"]) == (0, "REINDEX_PHASE_FINISHED")
    async with live.client() as client:
        await until(lambda: message_found(client, agent))
