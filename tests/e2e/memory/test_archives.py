"""``strata archival archives``, with a second embedding model beside the default one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from command_line import Run
from other_models import DIM, WORDS, endpoints, serve
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.shared.ids import new_id
from whole_system import Shape, System, open_system

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running_system(databases: Any, vectors: Any) -> AsyncIterator[System]:
    async with AsyncExitStack() as stack:
        endpoint = await serve()
        stack.push_async_callback(endpoint.stop)
        settings = stack.enter_context(pytest.MonkeyPatch.context())
        models = json.dumps(endpoints(endpoint.base_url))
        settings.setenv("STRATA_ARCHIVAL_EMBEDDING_MODELS", models)
        yield await stack.enter_async_context(open_system(databases, vectors, Shape.IN_PROCESS))


def some_name() -> str:
    return f"Field notes {new_id('x')[-8:]}"


async def made(strata: Run, name: str, *options: str) -> dict[str, Any]:
    done = await strata("archival", "archives", "create", name, "--json", *options)
    assert done.code == 0, done
    archive: dict[str, Any] = json.loads(done.out)
    return archive


async def listed(strata: Run, *options: str) -> list[dict[str, Any]]:
    done = await strata("archival", "archives", "list", "-n", "5000", "--json", *options)
    assert done.code == 0, done
    archives: list[dict[str, Any]] = json.loads(done.out)["archives"]
    return archives


async def test_archives_are_created_listed_attached_and_deleted(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    name = some_name()
    archive = await made(strata, name, "--description", "From the field.", "--days", "30")
    assert (archive["name"], archive["description"]) == (name, "From the field.")
    assert archive["timeToLiveSeconds"] == str(30 * 86_400)
    assert archive["embeddingDim"] == 384
    again = await strata("archival", "archives", "create", name)
    assert (again.code, "[NAME_TAKEN]" in again.err) == (1, True), again
    assert archive["id"] in [entry["id"] for entry in await listed(strata)]
    assert await listed(strata, "--agent", ann.name) == []

    attached = await strata("archival", "archives", "attach", ann.name, name)
    assert f"{ann.name} now has {name}, with 0 passages." in attached.out
    assert [entry["id"] for entry in await listed(strata, "--agent", ann.id)] == [archive["id"]]
    file = tmp_path / "notes.jsonl"
    file.write_text('{"text": "Herons nest by the mill."}\n{"text": "The mill is closed."}\n')
    imported = await strata("archival", "import", str(file), "--archive", name)
    assert "Stored 2 of 2" in imported.out, imported
    for named in (name, archive["id"]):
        shown = await strata("archival", "archives", "show", named)
        assert {f"id: {archive['id']}", "passages: 2"} <= set(shown.out.splitlines()), shown
    as_json = json.loads((await strata("archival", "archives", "show", name, "--json")).out)
    assert (as_json["id"], as_json["agentIds"]) == (archive["id"], [ann.id])
    rows = (await strata("archival", "archives", "list", "--agent", ann.name)).out.splitlines()
    assert rows[0].split("\t")[:2] == ["NAME", "PASSAGES"]
    assert rows[1].split("\t")[:2] == [name, "2"]
    taken = await strata("archival", "archives", "detach", ann.name, archive["id"])
    assert f"{ann.name} no longer has {name}." in taken.out
    assert await listed(strata, "--agent", ann.name) == []

    # There is no terminal for the question here.
    assert (await strata("archival", "archives", "delete", name)).code == 2
    deleted = await strata("archival", "archives", "delete", name, "--yes")
    assert f"Deleted {name} with 2 passages." in deleted.out
    assert archive["id"] not in [entry["id"] for entry in await listed(strata)]
    for action in (("attach", ann.name, name), ("show", name), ("delete", name, "--yes")):
        gone = await strata("archival", "archives", *action)
        assert (gone.code, "strata archival archives list" in gone.err) == (1, True), gone


async def test_an_archive_is_made_for_an_agent_and_shown(strata: Run, ann: agent_pb.Agent) -> None:
    name = some_name()
    done = await strata("archival", "archives", "create", name, "--agent", ann.name, "--days", "1")
    assert done.code == 0, done
    (archive,) = await listed(strata, "--agent", ann.name)
    assert archive["agentIds"] == [ann.id]
    assert [line.split(": ")[0] for line in done.out.splitlines()] == [
        "name",
        "id",
        "embedding",
        "passages are kept",
        "passages",
        "agents",
        "created",
    ]
    assert "passages are kept: for 1 day\n" in done.out
    nobody = await strata("archival", "archives", "create", some_name(), "--agent", "nobody")
    assert (nobody.code, "[AGENT_NOT_FOUND]" in nobody.err) == (1, True), nobody


async def test_an_archive_with_its_own_model_is_searched_beside_others(
    strata: Run, ann: agent_pb.Agent, tmp_path: Path
) -> None:
    name = some_name()
    archive = await made(strata, name, "--embedding-model", WORDS, "--agent", ann.name)
    assert (archive["embeddingModel"], archive["embeddingDim"]) == (WORDS, DIM)
    file = tmp_path / "notes.jsonl"
    file.write_text('{"text": "Herons nest by the old mill."}\n')
    await strata("archival", "import", str(file), "--archive", archive["id"])
    await strata("archival", "insert", ann.name, "Ada paints wading birds.")

    async def are_indexed() -> bool:
        return not any(int(a["unindexedCount"]) for a in await listed(strata, "--agent", ann.name))

    await eventually(are_indexed, 60)
    searched = await strata("archival", "search", ann.name, "herons by the mill", "--json")
    hits = json.loads(searched.out)["hits"]
    assert {hit["passage"]["archiveId"] for hit in hits} > {archive["id"]}
    assert sorted(hit["relevance"]["vectorRank"] for hit in hits) == [1, 2]


async def test_an_unknown_model_is_refused_with_the_known_ones(strata: Run) -> None:
    done = await strata("archival", "archives", "create", some_name(), "--embedding-model", "none")
    assert done.code == 1
    assert WORDS in done.err
