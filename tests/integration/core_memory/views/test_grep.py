"""Searching by pattern, on PostgreSQL."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from file_seeds import FileSeeds
from loop_watch import counted_turns
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.file_windows import OpenWindows, WindowRequest
from strata.core_memory.files.domain.grep import MAX_SECONDS, GrepQuery
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.store.texts import PostgresTextStore
from strata.protocol.errors import InvalidArgumentError
from strata.shared.clock import ManualClock
from strata.shared.context import RequestContext, current, use
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

NO_RECEIPT: Receipt[Any] = Receipt(RequestKey(), lambda _: b"")
RULE = "=" * 80


async def test_a_search_returns_matches_with_counts_and_lines(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "b.txt", "one\nTwo\nthree\ntwofold\n")
    await files.seeds.file(folder, "a.md", "two")
    await files.seeds.file(folder, "c.txt", "nothing")
    agent = await files.seeds.agent(folder)
    page = await files.grep.search(GrepQuery(agent, "two"))
    assert page.message == (
        "Found 3 total matches across 2 files (showing matches 1-3 of 3)\n"
        f"{RULE}\n"
        "Files with matches:\n"
        "  - docs/a.md: 1 match\n"
        "  - docs/b.txt: 2 matches\n"
        "\n"
        "=== docs/a.md:1 ===\n"
        "> 1: two\n"
        "\n"
        "=== docs/b.txt:2 ===\n"
        "  1: one\n"
        "> 2: Two\n"
        "  3: three\n"
        "\n"
        "=== docs/b.txt:4 ===\n"
        "  3: three\n"
        "> 4: twofold"
    )
    assert [(match.file_name, match.line) for match in page.matches] == [
        ("docs/a.md", 1),
        ("docs/b.txt", 2),
        ("docs/b.txt", 4),
    ]
    assert page.matches[1].lines == ("  1: one", "> 2: Two", "  3: three")
    assert (page.total, page.truncated) == (3, False)


async def test_matches_are_paged_and_an_offset_past_the_end_is_explained(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "hit\n" * 25)
    agent = await files.seeds.agent(folder)
    first = await files.grep.search(GrepQuery(agent, "hit", context_lines=0))
    assert first.message.startswith(
        "Found 25 total matches across 1 files (showing matches 1-20 of 25)\n"
    )
    assert first.message.endswith(
        "=== docs/a:20 ===\n> 20: hit\n\nTo see more matches, use offset=20"
    )
    second = await files.grep.search(GrepQuery(agent, "hit", context_lines=0, offset=20))
    assert [match.line for match in second.matches] == [21, 22, 23, 24, 25]
    assert "(showing matches 21-25 of 25)" in second.message
    past = await files.grep.search(GrepQuery(agent, "hit", offset=100))
    assert past.message == (
        "Found 25 total matches across 1 files, but offset 100 is past the last of them: "
        "use an offset from 0 to 24"
    )
    assert (past.matches, past.total) == ((), 25)


async def test_the_message_names_the_pattern_if_nothing_is_found(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a.txt", "text")
    agent = await files.seeds.agent(folder)
    none = await files.grep.search(GrepQuery(agent, "x+y"))
    assert none.message == "No matches found for pattern: 'x+y'"
    none = await files.grep.search(GrepQuery(agent, "x+y", include="*.txt"))
    assert none.message == "No matches found for pattern: 'x+y' in files matching '*.txt'"
    none = await files.grep.search(GrepQuery(agent, "text", include="*.py"))
    assert none.message == "No files match the filename pattern '*.py' (filtered 1 files)"
    none = await files.grep.search(GrepQuery(await files.seeds.agent(), "text"))
    assert none.message == "No files are currently attached to search"


async def test_invalid_pattern_is_explained(files: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Invalid regex pattern: lookahead"):
        await files.grep.search(GrepQuery(await files.seeds.agent(), "(?=a)"))


async def test_message_counts_files_without_text(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "text")
    await files.seeds.file(folder, "b", state="stored")
    await files.seeds.file(folder, "c", state="failed", error="broken")
    agent = await files.seeds.agent(folder)
    page = await files.grep.search(GrepQuery(agent, "text"))
    assert page.message.splitlines()[1] == (
        "Note: Skipped 2 file(s) whose text is not ready or cannot be read"
    )
    assert not page.truncated


async def test_open_files_with_matches_are_closed_later(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "hit")
    await files.seeds.files(folder, ["b", "c"], "other")
    agent = await files.seeds.agent(folder)
    requests = (WindowRequest("docs/a"), WindowRequest("docs/b"))
    await files.windows.open(OpenWindows(agent, requests, max_open=2), NO_RECEIPT)
    await files.grep.search(GrepQuery(agent, "hit"))
    files.clock.advance(1)
    opened = await files.windows.open(
        OpenWindows(agent, (WindowRequest("docs/c"),), max_open=2), NO_RECEIPT
    )
    assert [window.file_name for window in opened.windows] == ["docs/a", "docs/c"]


async def test_at_most_a_thousand_matches_are_counted(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.files(folder, [f"{number:03}" for number in range(300)], "hit\n" * 7)
    agent = await files.seeds.agent(folder)
    page = await files.grep.search(GrepQuery(agent, "hit", offset=990))
    assert page.message.startswith(
        "Found 1000+ total matches across 143 files (showing matches 991-1000 of 1000+)\n"
    )
    assert "\n  - docs/049: 7 matches\n  - and 93 more files\n" in page.message
    assert (page.total, page.truncated, len(page.matches)) == (1_000, True, 10)


async def test_a_match_in_a_long_line_is_shown_with_its_context(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "x" * 5_000 + "needle" + "y" * 2_000)
    agent = await files.seeds.agent(folder)
    [match] = (await files.grep.search(GrepQuery(agent, "needle"))).matches
    [line] = match.lines
    assert line.startswith("> 1: ...x")
    assert "xneedley" in line
    assert line.endswith("y... [of 7006 characters]")
    assert len(line) < 1_100


async def test_many_small_and_large_files_are_all_searched(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.files(folder, [f"{number:04}" for number in range(600)], "needle\n")
    big = "".join(f"{number} {'é' * 90}\n" for number in range(1, 30_001))
    await files.seeds.file(folder, "zz-big", big + "the needle\n")
    agent = await files.seeds.agent(folder)
    page = await files.grep.search(GrepQuery(agent, "needle", context_lines=2, offset=600))
    assert page.total == 601
    [match] = page.matches
    assert (match.file_name, match.line) == ("docs/zz-big", 30_001)
    assert [line[:9] for line in match.lines] == ["  29999: ", "  30000: ", "> 30001: "]


class Hasty(ManualClock):
    """A clock that advances with every reading."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def monotonic(self) -> float:
        self.advance(self._seconds)
        return super().monotonic()


async def search_in_haste(files: Any, seconds: float, *, within: float | None) -> Any:
    """Searches about twenty pieces of text that each take some seconds; a deadline is optional."""
    folder = await files.seeds.folder(new_id("name"))
    await files.seeds.file(folder, "a", "a\n" * 160_000)
    agent = await files.seeds.agent(folder)
    grep = Grep(PostgresTextStore(files.database), files.window_store, Hasty(seconds))
    deadline = None if within is None else asyncio.get_running_loop().time() + within
    with use(RequestContext(caller=current().caller, deadline=deadline)):
        return await grep.search(GrepQuery(agent, "(a?){1000}b"))


async def test_a_search_ends_at_its_time_limit(files: Any) -> None:
    page = await search_in_haste(files, MAX_SECONDS / 3, within=None)
    assert page.truncated
    assert page.message == (
        "No matches found for pattern: '(a?){1000}b'\n"
        "Note: The search ran out of time before the last file; use include or a simpler pattern"
    )


async def test_search_replies_before_the_deadline_of_the_caller(files: Any) -> None:
    seconds = MAX_SECONDS / 60
    assert not (await search_in_haste(files, seconds, within=None)).truncated
    assert (await search_in_haste(files, seconds, within=MAX_SECONDS / 5)).truncated


async def test_slow_pattern_does_not_block_the_event_loop(files: Any) -> None:
    folder = await files.seeds.folder("docs")
    await files.seeds.file(folder, "a", "a" * 1_000_000 + "!")
    agent = await files.seeds.agent(folder)
    async with counted_turns(pause=0) as turns:
        page = await files.grep.search(GrepQuery(agent, "(a+)+$", context_lines=0))
        assert turns() > 10
    # Broken into lines of 8,000 characters; all but the last end in "a".
    assert page.total == 125


LINES = st.lists(st.text(alphabet="ab1 ", max_size=6), max_size=30)
PATTERNS = st.sampled_from(["a", "ab", "^a", "b$", "a+b", "[^a]b", "^$", r"\d", "a|1", "(ab)+", ""])


@settings(
    max_examples=25,
    deadline=None,
    # Shrinking a failing example takes minutes on a database.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    texts=st.lists(LINES, min_size=1, max_size=4),
    pattern=PATTERNS.filter(bool),
    context_lines=st.integers(0, 20),
    offset=st.integers(0, 40),
    page_chars=st.integers(1, 60),
)
@example(texts=[["a", "b", "a", "b"]], pattern="b", context_lines=20, offset=0, page_chars=1)
async def test_results_equal_those_of_a_slow_search(
    files: Any,
    texts: list[list[str]],
    pattern: str,
    context_lines: int,
    offset: int,
    page_chars: int,
) -> None:
    seeds = FileSeeds(files.database, page_chars)
    name = new_id("name")
    folder = await seeds.folder(name)
    for number, lines in enumerate(texts):
        value = "".join(f"{line}\n" for line in lines)
        # Equal texts share one content, which is cut into pages once; this text is unique.
        await seeds.file(folder, f"{number}", value + f"{name}{number}\n")
    agent = await seeds.agent(folder)
    expected = []
    for number, lines in enumerate(texts):
        every = [*lines, f"{name}{number}"]
        for at, line in enumerate(every, start=1):
            if re.search(pattern, line, re.IGNORECASE):
                around = range(max(1, at - context_lines), min(len(every), at + context_lines) + 1)
                shown = tuple(
                    f"{'>' if near == at else ' '} {near}: {every[near - 1]}" for near in around
                )
                expected.append((f"{name}/{number}", at, shown))
    page = await files.grep.search(
        GrepQuery(agent, pattern, context_lines=context_lines, offset=offset)
    )
    assert page.total == len(expected)
    assert [(match.file_name, match.line, match.lines) for match in page.matches] == expected[
        offset : offset + 20
    ]
