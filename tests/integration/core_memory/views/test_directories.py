"""``<directories>`` as it is read from PostgreSQL."""

from __future__ import annotations

import re
from typing import Any

import pytest

from block_records import insert, make
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.files.domain.file_windows import OpenWindows, WindowRequest
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.shared.idempotency.keys import RequestKey

NO_RECEIPT: Receipt[Any] = Receipt(RequestKey(), lambda _: b"")
LIMITS = FileLimits(max_open=5, view_chars=1_000)


async def shown(files: Any, agent: str, limits: FileLimits = LIMITS) -> str:
    async with PostgresBlockStore(files.database).snapshot() as snapshot:
        return (await snapshot.directories(agent, limits)).render(["human"])


async def opened(files: Any, agent: str, *requests: WindowRequest) -> None:
    await files.windows.open(OpenWindows(agent, requests), NO_RECEIPT)


async def test_an_agent_without_folders_is_shown_nothing(files: Any) -> None:
    assert await shown(files, await files.seeds.agent()) == ""


async def test_folders_are_ordered_by_attachment_and_files_by_name(files: Any) -> None:
    second = await files.seeds.folder("aaa", description="Second.")
    first = await files.seeds.folder("zzz", instructions="First.")
    await files.seeds.file(first, "b.txt", "one\ntwo\n")
    await files.seeds.file(first, "a.txt", "x")
    agent = await files.seeds.agent(first, second)
    await opened(files, agent, WindowRequest("zzz/b.txt"))
    assert await shown(files, agent) == (
        "<directories>\n"
        "<file_limits>\n"
        "- current_files_open=1\n"
        "- max_files_open=5\n"
        "</file_limits>\n"
        "\n"
        '<directory name="zzz">\n'
        "<instructions>First.</instructions>\n"
        "\n"
        '<file status="closed" name="zzz/a.txt">\n'
        "<metadata>\n"
        "- read_only=true\n"
        "- chars_current=0\n"
        "- chars_limit=1000\n"
        "</metadata>\n"
        "<value>\n"
        "\n"
        "</value>\n"
        "</file>\n"
        "\n"
        '<file status="open" name="zzz/b.txt">\n'
        "<metadata>\n"
        "- read_only=true\n"
        "- chars_current=51\n"
        "- chars_limit=1000\n"
        "</metadata>\n"
        "<value>\n"
        "[Viewing file start (out of 2 lines)]\n"
        "1: one\n"
        "2: two\n"
        "</value>\n"
        "</file>\n"
        "\n"
        "</directory>\n"
        "\n"
        '<directory name="aaa">\n'
        "<description>Second.</description>\n"
        "\n"
        "</directory>\n"
        "</directories>"
    )


async def test_only_the_first_closed_files_of_many_are_shown(files: Any) -> None:
    folder = await files.seeds.folder("big")
    await files.seeds.files(folder, [f"{number:04}" for number in range(120)], "x")
    agent = await files.seeds.agent(folder)
    await opened(files, agent, WindowRequest("big/0119"), WindowRequest("big/0000"))
    section = await shown(files, agent)
    assert section.count('status="open"') == 2
    assert section.count('status="closed"') == 50
    assert 'name="big/0050"' in section
    assert 'name="big/0051"' not in section
    assert "\n68 more files are in this directory: use grep_files or" in section


async def test_closed_files_of_many_folders_are_read_in_turn(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.core_memory.files.store.views.MOST_LISTED", 5)
    folders = [await files.seeds.folder(name) for name in ("large", "small")]
    await files.seeds.files(folders[0], [str(number) for number in range(9)], "x")
    await files.seeds.files(folders[1], ["0", "1"], "x")
    agent = await files.seeds.agent(*folders)
    await opened(files, agent, WindowRequest("small/0"))
    section = await shown(files, agent)
    names = re.findall(r'status="closed" name="([^"]*)"', section)
    assert names == ["large/0", "large/1", "large/2", "large/3", "small/1"]
    assert section.count('status="open"') == 1
    assert "\n5 more files are in this directory" in section


async def test_a_window_shows_its_lines_at_any_place_in_the_file(files: Any) -> None:
    # Some pages of the size that the product uses.
    value = "".join(f"{number} {'é' * 60}\n" for number in range(1, 4001))
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "long", value)
    agent = await files.seeds.agent(folder)
    every = value.splitlines()
    for start, count in ((0, 3), (1030, 8), (1032, 1), (3998, 5), (2000, 700)):
        await opened(files, agent, WindowRequest("docs/long", start, count))
        section = await shown(files, agent, FileLimits(5, 150_000))
        last = min(start + count, 4000)
        lines = [f"{number}: {every[number - 1]}" for number in range(start + 1, last + 1)]
        head = f"[Viewing lines {start + 1} to {last} (out of 4000 lines)]"
        assert "<value>\n" + "\n".join([head, *lines]) + "\n</value>" in section


async def test_a_long_window_is_filled_up_to_the_limit(files: Any) -> None:
    value = "".join(f"{number} {'é' * 60}\n" for number in range(1, 4001))
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "long", value)
    agent = await files.seeds.agent(folder)
    numbered = [f"{number}: {line}" for number, line in enumerate(value.splitlines(), start=1)]
    # Cut in the first page, at its end, in the second one, and much later.
    for start, limit in ((0, 1_000), (0, 65_536), (0, 70_000), (1_000, 131_072), (0, 200_000)):
        await opened(files, agent, WindowRequest("docs/long", start))
        section = await shown(files, agent, FileLimits(5, limit))
        view = section.partition("<value>\n")[2].partition("\n</value>")[0]
        assert len(view) == limit
        body = view.partition("\n")[2].partition("...[TRUNCATED]")[0]
        assert "\n".join(numbered[start:]).startswith(body)
        assert f"- chars_current={limit}\n" in section


async def test_window_of_a_shrunk_or_reread_file_explains_that(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "1\n2\n3\n")
    agent = await files.seeds.agent(folder)
    await opened(files, agent, WindowRequest("docs/a", 1, 1))
    async with files.database.transaction() as connection:
        await connection.driver.fetch("UPDATE core_memory.contents SET line_count = 1")
    assert "[This file has only 1 lines now: open it again]" in await shown(files, agent)
    async with files.database.transaction() as connection:
        await connection.driver.fetch("UPDATE core_memory.contents SET state = 'stored'")
    assert "[This file is still being read]" in await shown(files, agent)


async def test_empty_lines_and_empty_files_keep_their_numbers(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "blank", "\n\nx\n\n")
    await files.seeds.file(folder, "empty", "")
    agent = await files.seeds.agent(folder)
    await opened(files, agent, WindowRequest("docs/blank"), WindowRequest("docs/empty"))
    section = await shown(files, agent)
    assert "[Viewing file start (out of 4 lines)]\n1: \n2: \n3: x\n4: \n</value>" in section
    assert "[Viewing file start (out of 0 lines)]\n</value>" in section
    await opened(files, agent, WindowRequest("docs/blank", 1, 2))
    assert "[Viewing lines 2 to 3 (out of 4 lines)]\n2: \n3: x\n</value>" in await shown(
        files, agent
    )


async def test_folders_have_the_fingerprint_of_the_memory_they_belong_to(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a.txt", "one\ntwo\n")
    agent = await files.seeds.agent(folder)
    store = PostgresBlockStore(files.database)
    fingerprints = set()
    for label in ("human", "persona"):
        await insert(store, make(label), agent=agent)
        folders = await store.directories(agent, LIMITS)
        assert folders.fingerprint == (await store.agent_memory(agent, "")).fingerprint
        fingerprints.add(folders.fingerprint)
    await opened(files, agent, WindowRequest("docs/a.txt"))
    folders = await store.directories(agent, LIMITS)
    assert folders.fingerprint == (await store.agent_memory(agent, "")).fingerprint
    assert len(fingerprints | {folders.fingerprint}) == 3


async def test_rendering_costs_two_statements(files: Any) -> None:
    folders = [await files.seeds.folder(name) for name in ("a", "b", "c")]
    for folder in folders:
        await files.seeds.files(folder, [str(number) for number in range(60)], "text\n")
    agent = await files.seeds.agent(*folders)
    names = ("a/1", "a/2", "b/1", "b/2", "c/59")
    await opened(files, agent, *map(WindowRequest, names))
    before = files.database.statistics.statements
    await shown(files, agent)
    assert files.database.statistics.statements - before == 2
