"""Projects take turns in reading and indexing files."""

from __future__ import annotations

from callers import as_project
from file_stores import Stores
from strata.core_memory.files.store.queue import FileQueue
from strata.shared import context
from strata.shared.context import current_project
from strata.shared.db import Database


async def uploaded(stores: Stores, count: int) -> str:
    """Uploads files with different contents to a new project."""
    with context.use(as_project()):
        folder = await stores.folder()
        for number in range(count):
            await stores.upload(folder, f"{number}.txt", f"Content {number}.\n".encode())
        return current_project()


async def test_many_files_of_one_project_do_not_delay_the_file_of_another(
    stores: Stores, worker: Database
) -> None:
    queue = FileQueue(stores.database, worker)
    many, single = await uploaded(stores, 6), await uploaded(stores, 1)
    claims = [await queue.claim_content(60) for _ in range(2)]
    assert {claim.project_id for claim in claims if claim is not None} == {many, single}
    # The round continues with projects that have more files, and nothing is claimed twice.
    rest = [await queue.claim_content(60) for _ in range(6)]
    assert [claim.project_id for claim in rest if claim is not None] == [many] * 5
    assert rest[5] is None
