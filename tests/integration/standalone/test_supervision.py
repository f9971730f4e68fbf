"""Engines end with the process that started them, and acknowledged data is not lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from qdrant_client import AsyncQdrantClient, models

from strata.protocol.errors import FailedPreconditionError
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

if TYPE_CHECKING:
    from integration.standalone.conftest import Engines


def _client(port: int, key: str) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        host="127.0.0.1",
        grpc_port=port,
        prefer_grpc=True,
        https=False,
        headers={"api-key": key},
        check_compatibility=False,
        pool_size=1,
    )


@pytest.mark.parametrize("watchdog", [False, True])
async def test_a_killed_supervisor_leaves_no_process_and_loses_no_data(
    run_engines: Callable[..., Engines], open_folder: Path, watchdog: bool
) -> None:
    engines = run_engines(watchdog=watchdog)
    assert len(engines.tree) >= 2
    connection = await asyncpg.connect(engines.details["url"])
    await connection.execute("CREATE TABLE kept (number int)")
    client = _client(engines.details["port"], engines.details["key"])
    await client.create_collection(
        "kept", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT)
    )
    for number in range(50):
        await connection.execute("INSERT INTO kept VALUES ($1)", number)
        await client.upsert("kept", [models.PointStruct(id=number, vector=[1.0, number])])

    engines.kill()

    assert engines.survivors() == []
    connection.terminate()
    await client.close()
    await _check(open_folder)


async def _check(folder: Path) -> None:
    postgres, vectors = EmbeddedPostgres(folder / "postgres"), EmbeddedVectors(folder / "vectors")
    await postgres.start()
    await vectors.start()
    connection = await asyncpg.connect(postgres.url())
    client = _client(vectors.port, vectors.api_key)
    try:
        assert await connection.fetchval("SELECT count(DISTINCT number) FROM kept") == 50
        assert (await client.count("kept")).count == 50
    finally:
        await connection.close()
        await client.close()
        await vectors.stop()
        await postgres.stop()


async def test_folders_in_use_by_another_process_are_refused_by_its_pid(
    run_engines: Callable[..., Engines], open_folder: Path
) -> None:
    engines = run_engines()

    for engine in (
        EmbeddedPostgres(open_folder / "postgres"),
        EmbeddedVectors(open_folder / "vectors"),
    ):
        with pytest.raises(FailedPreconditionError, match=f"process {engines.process.pid}"):
            await engine.start()


async def test_a_successor_can_start_while_the_predecessor_is_stopping(
    run_engines: Callable[..., Engines], open_folder: Path
) -> None:
    engines = run_engines()
    engines.kill()

    # Start immediately, while the old engines are still stopping.
    postgres, vectors = (
        EmbeddedPostgres(open_folder / "postgres"),
        EmbeddedVectors(open_folder / "vectors"),
    )
    await postgres.start()
    await vectors.start()
    await vectors.stop()
    await postgres.stop()
