"""Opening and closing files, on PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import ReplayedError
from strata.core_memory.files.domain.file_windows import OpenFilesResult, OpenWindows, WindowRequest
from strata.core_memory.files.store.views import DIRECTORIES_FINGERPRINT
from strata.protocol.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.context import current_project, use
from strata.shared.db import sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

FORTY = "".join(f"line {number}\n" for number in range(1, 41))


def receipt(request_id: str = "", digest: bytes = b"") -> Receipt[OpenFilesResult]:
    return Receipt(RequestKey(request_id, digest.hex()), lambda opened: opened.message.encode())


def opening(agent: str, *names: str, **options: Any) -> OpenWindows:
    return OpenWindows(agent, tuple(WindowRequest(name) for name in names), **options)


async def fingerprint(files: Any, agent: str) -> str:
    async with files.database.transaction(read_only=True) as connection:
        bound = {"project": current_project(), "agent": agent}
        value: str = (
            await connection.execute(sql(f"SELECT {DIRECTORIES_FINGERPRINT}"), bound)
        ).scalar_one()
        return value


async def open_names(files: Any, agent: str) -> set[str]:
    return {
        window.file_name for window in (await files.windows.close(agent, ["docs/none"])).windows
    }


@pytest.fixture
async def agent(files: Any) -> str:
    """An agent with docs/{a,b,c,d,none}, of 40 lines each."""
    folder = await files.seeds.folder("docs")
    await files.seeds.files(folder, ["a", "b", "c", "d", "none"], FORTY)
    return str(await files.seeds.agent(folder))


async def test_opening_returns_the_open_and_the_previous_windows(files: Any, agent: str) -> None:
    opened = await files.windows.open(opening(agent, "docs/a"), receipt())
    assert opened.message == "* Opened docs/a"
    [window] = opened.windows
    assert (window.file_name, window.start_line, window.end_line) == ("docs/a", 1, 40)

    command = OpenWindows(agent, (WindowRequest("docs/a", 5, 3),))
    opened = await files.windows.open(command, receipt())
    assert opened.message == "* Opened docs/a (lines 6-8) (previously full file)"
    [window] = opened.windows
    assert (window.start_line, window.end_line) == (6, 8)

    command = OpenWindows(agent, (WindowRequest("docs/a", 38, 10), WindowRequest("docs/b")))
    opened = await files.windows.open(command, receipt())
    assert opened.message == (
        "* Opened 2 files: docs/a (lines 39-40) (previously lines 6-8), docs/b"
    )


async def test_the_previous_lines_are_named_although_the_file_has_fewer_now(files: Any) -> None:
    folder = await files.seeds.folder("notes")
    agent = await files.seeds.agent(folder)
    await files.seeds.file(folder, "a", FORTY)
    await files.seeds.file(folder, "short", "one\ntwo\n")
    command = OpenWindows(agent, (WindowRequest("notes/a", 30, 5),))
    await files.windows.open(command, receipt())
    async with files.database.transaction() as connection:
        await connection.execute(
            sql(
                "UPDATE core_memory.files a SET content_hash = short.content_hash"
                " FROM core_memory.files short WHERE a.name = 'a' AND short.name = 'short'"
            )
        )
    opened = await files.windows.open(opening(agent, "notes/a"), receipt())
    assert opened.message == "* Opened notes/a (previously lines 31-35)"


async def test_the_least_recently_used_files_are_closed(files: Any, agent: str) -> None:
    for name in ("docs/a", "docs/b", "docs/a"):
        await files.windows.open(opening(agent, name, max_open=2), receipt())
        files.clock.advance(1)
    opened = await files.windows.open(opening(agent, "docs/c", max_open=2), receipt())
    assert opened.message == (
        "* Opened docs/c\nNote: Closed 1 least recently used file(s) due to open file limit: docs/b"
    )
    assert await open_names(files, agent) == {"docs/a", "docs/c"}


async def test_a_touched_file_stays_longer(files: Any, agent: str) -> None:
    await files.windows.open(opening(agent, "docs/a", "docs/b", max_open=2), receipt())
    [a, _] = (await files.windows.close(agent, ["docs/none"])).windows
    files.clock.advance(1)
    await files.window_store.touch(agent, [a.file_id], files.clock.now())
    files.clock.advance(1)
    await files.windows.open(opening(agent, "docs/c", max_open=2), receipt())
    assert await open_names(files, agent) == {"docs/a", "docs/c"}


async def test_setting_the_clock_back_does_not_make_new_windows_old(files: Any, agent: str) -> None:
    await files.windows.open(opening(agent, "docs/a", "docs/b", max_open=2), receipt())
    files.clock.step(-3600)
    await files.windows.open(opening(agent, "docs/c", max_open=2), receipt())
    assert await open_names(files, agent) == {"docs/b", "docs/c"}


async def test_all_other_files_are_closed_on_request(files: Any, agent: str) -> None:
    await files.windows.open(opening(agent, "docs/a", "docs/b"), receipt())
    opened = await files.windows.open(
        opening(agent, "docs/b", "docs/c", close_all_others=True), receipt()
    )
    assert opened.message == (
        "* Opened 2 files: docs/b, docs/c\n"
        "Note: Closed 1 file(s) due to close_all_others=True: docs/a"
    )


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        pytest.param("R&D <a>.txt", "R&amp;D &lt;a&gt;.txt", id="escaped as in the prompt"),
        pytest.param("re\u0301sume\u0301.txt", "r\u00e9sum\u00e9.txt", id="composed"),
        pytest.param("r\u00e9sum\u00e9.txt", "re\u0301sume\u0301.txt", id="decomposed"),
    ],
)
async def test_file_names_are_matched_in_any_unicode_normalization(
    files: Any, stored: str, written: str
) -> None:
    folder = await files.seeds.folder("papers")
    await files.seeds.files(folder, [stored, "another.txt"], FORTY)
    agent = str(await files.seeds.agent(folder))
    opened = await files.windows.open(opening(agent, f"papers/{written}"), receipt())
    assert opened.message == f"* Opened papers/{stored}"
    with pytest.raises(InvalidArgumentError, match="is requested twice"):
        await files.windows.open(opening(agent, f"papers/{stored}", f"papers/{written}"), receipt())
    assert (await files.windows.close(agent, [f"papers/{written}"])).windows == ()


async def test_an_ambiguous_name_opens_no_file(files: Any) -> None:
    folder = await files.seeds.folder("papers")
    await files.seeds.files(folder, ["A\u030a.txt", "\u00c5.txt"], FORTY)
    agent = str(await files.seeds.agent(folder))
    await files.windows.open(opening(agent, "papers/\u00c5.txt"), receipt())
    with pytest.raises(NotFoundError, match="not attached"):
        await files.windows.open(opening(agent, "papers/\u212b.txt"), receipt())


async def test_nothing_is_closed_when_a_name_is_wrong(files: Any, agent: str) -> None:
    await files.windows.open(opening(agent, "docs/a"), receipt())
    with pytest.raises(NotFoundError) as caught:
        await files.windows.open(
            opening(agent, "docs/b", "docs/zzz", close_all_others=True), receipt()
        )
    assert caught.value.reason is Reason.FILE_NOT_FOUND
    assert caught.value.message == (
        "docs/zzz not attached - did you get the filename correct? Currently you have the "
        "following files attached: [docs/a, docs/b, docs/c, docs/d, docs/none]"
    )
    assert await open_names(files, agent) == {"docs/a"}


async def test_error_lists_the_most_similar_of_many_names(files: Any) -> None:
    folder = await files.seeds.folder("big")
    await files.seeds.files(folder, [f"part-{n:04}.txt" for n in range(5000)] + ["invoice.md"])
    agent = await files.seeds.agent(folder)
    with pytest.raises(NotFoundError) as caught:
        await files.windows.open(opening(agent, "big/invoices.md"), receipt())
    assert "attached: [big/invoice.md, " in caught.value.message
    assert caught.value.message.endswith("] (the 20 most similar names of 5001)")


async def test_a_repeated_request_gets_the_first_answer(files: Any, agent: str) -> None:
    request = new_id("request")
    await files.windows.open(opening(agent, "docs/a"), receipt(request, b"one"))
    await files.windows.close(agent, [])
    with pytest.raises(ReplayedError) as replayed:
        await files.windows.open(opening(agent, "docs/a"), receipt(request, b"one"))
    assert replayed.value.response == b"* Opened docs/a"
    assert await open_names(files, agent) == set()
    with pytest.raises(AlreadyExistsError) as reused:
        await files.windows.open(opening(agent, "docs/b"), receipt(request, b"two"))
    assert reused.value.reason is Reason.REQUEST_ID_REUSED


async def test_named_files_or_all_files_can_be_closed(files: Any, agent: str) -> None:
    await files.windows.open(opening(agent, "docs/a", "docs/b", "docs/c"), receipt())
    closed = await files.windows.close(agent, ["docs/b", "docs/d"])
    assert [window.file_name for window in closed.windows] == ["docs/a", "docs/c"]
    with pytest.raises(NotFoundError, match="docs/x not attached"):
        await files.windows.close(agent, ["docs/a", "docs/x"])
    assert await open_names(files, agent) == {"docs/a", "docs/c"}
    assert (await files.windows.close(agent, [])).windows == ()


async def test_files_of_another_project_cannot_be_opened(files: Any, agent: str, keys: Any) -> None:
    with use(keys.context(new_id("project"))), pytest.raises(NotFoundError) as caught:
        await files.windows.open(opening(agent, "docs/a"), receipt())
    assert caught.value.reason is Reason.AGENT_NOT_FOUND


async def test_the_first_readable_files_of_a_folder_are_opened(files: Any) -> None:
    folder = await files.seeds.folder("mixed")
    await files.seeds.files(folder, ["1", "4", "5"], FORTY)
    await files.seeds.file(folder, "2", state="failed", error="it is encrypted")
    await files.seeds.file(folder, "3", state="stored")
    agent = await files.seeds.agent(folder)
    await files.windows.open_first(agent, folder, 2)
    names = [window.file_name for window in (await files.windows.close(agent, ["mixed/2"])).windows]
    assert names == ["mixed/1", "mixed/4"]


async def test_concurrent_openings_never_exceed_the_limit(files: Any, agent: str) -> None:
    names = ["docs/a", "docs/b", "docs/c", "docs/d"] * 4
    results = await asyncio.gather(
        *(files.windows.open(opening(agent, name, max_open=2), receipt()) for name in names)
    )
    assert max(len(opened.windows) for opened in results) == 2
    assert len(await open_names(files, agent)) == 2


async def test_concurrent_repetitions_of_a_request_open_once(files: Any, agent: str) -> None:
    command, once = opening(agent, "docs/a"), receipt(new_id("request"), b"one")
    results = await asyncio.gather(
        *(files.windows.open(command, once) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(result, OpenFilesResult) for result in results) == 1
    assert sum(isinstance(result, ReplayedError) for result in results) == 3


async def test_the_fingerprint_changes_with_windows_and_folders(files: Any, agent: str) -> None:
    assert await fingerprint(files, await files.seeds.agent()) == ""
    seen = [await fingerprint(files, agent)]
    await files.windows.open(opening(agent, "docs/a"), receipt())
    seen.append(await fingerprint(files, agent))
    await files.windows.open(OpenWindows(agent, (WindowRequest("docs/a", 1, 2),)), receipt())
    seen.append(await fingerprint(files, agent))
    await files.seeds.attach(agent, await files.seeds.folder("more"))
    seen.append(await fingerprint(files, agent))
    assert len(set(seen)) == 4
    assert all(seen)
    files.clock.advance(1)
    await files.windows.open(OpenWindows(agent, (WindowRequest("docs/a", 1, 2),)), receipt())
    assert await fingerprint(files, agent) == seen[-1], (
        "using a file again does not change the prompt"
    )


OPEN = st.tuples(
    st.just("open"),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=2, unique=True),
    st.sampled_from([False, False, False, True]),
    st.integers(2, 3),
)
CLOSE = st.tuples(st.just("close"), st.lists(st.sampled_from("abcde"), max_size=2, unique=True))
ACTIONS = st.lists(st.one_of(OPEN, OPEN, OPEN, CLOSE), min_size=8, max_size=12)


@settings(
    max_examples=15,
    deadline=None,
    # Shrinking a failing example takes minutes on a database.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
async def test_random_sequences_match_a_list_of_recent_files(files: Any, actions: Any) -> None:
    folder = await files.seeds.folder(new_id("name"))
    name = (await folder_name(files, folder)) + "/"
    await files.seeds.files(folder, list("abcde"), FORTY)
    agent = await files.seeds.agent(folder)
    recent: list[str] = []  # least recently used first
    for action in actions:
        if action[0] == "close":
            closing = action[1] or list("abcde")
            recent = [letter for letter in recent if letter not in closing]
            result = await files.windows.close(agent, [name + letter for letter in action[1]])
        else:
            _, wanted, close_others, most = action
            others = [letter for letter in recent if letter not in wanted]
            kept = [] if close_others else others[max(0, len(others) - (most - len(wanted))) :]
            recent = kept + wanted
            command = opening(
                agent,
                *(name + letter for letter in wanted),
                close_all_others=close_others,
                max_open=most,
            )
            result = await files.windows.open(command, receipt())
            assert len(result.windows) <= most
        assert [window.file_name for window in result.windows] == sorted(
            name + letter for letter in recent
        )


async def folder_name(files: Any, folder: str) -> str:
    async with files.database.transaction(read_only=True) as connection:
        value: str = (
            await connection.execute(
                sql("SELECT name FROM core_memory.folders WHERE id = :folder"),
                {"folder": folder},
            )
        ).scalar_one()
        return value
