"""The round-robin over projects."""

from __future__ import annotations

import asyncio

from strata.shared.project_turns import ProjectRoundRobin


async def test_caller_finds_work_although_another_one_moved_the_position_meanwhile() -> None:
    round_robin = ProjectRoundRobin()

    async def take_one(after: str) -> tuple[str | None, str]:
        """Finds work of the only project with work, ``b``, unless the search begins after it."""
        await asyncio.sleep(0)
        return ("work of b", "b") if after < "b" else (None, "")

    async def take_all(after: str) -> tuple[str | None, str]:
        return "all work", ""

    assert await round_robin.take(take_one) == "work of b"
    overtaken = asyncio.create_task(round_robin.take(take_one))
    await asyncio.sleep(0)
    await round_robin.take(take_all)
    assert await overtaken == "work of b"
