"""Searches an agent's files by pattern."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Protocol

from strata.core_memory.files.domain.grep import (
    MAX_FILE_CHARS,
    MAX_MATCHES,
    MAX_SECONDS,
    MAX_TOTAL_CHARS,
    GrepFile,
    GrepPage,
    GrepQuery,
    SearchedPage,
    Survey,
    TextStore,
    check_query,
)
from strata.core_memory.files.domain.grep_report import (
    context_ranges,
    matches_text,
    report_of,
    shown_matches,
)
from strata.core_memory.files.domain.patterns import LinePattern, name_filter
from strata.shared import context
from strata.shared.clock import Clock
from strata.shared.fair_slots import FairSlots

_GROUP_CHARS = 512 * 1024
_GROUP_FILES = 200
_PAGES_AT_ONCE = 8
_FILES_AT_ONCE = 500
_AT_ONCE = 2
_REPLY_SECONDS = 2.0


class Touch(Protocol):
    """Records accesses to open files."""

    async def touch(self, agent_id: str, file_ids: Sequence[str], time: datetime) -> None:
        """Updates the last access time of open files, so that others are closed first."""
        ...


class Grep:
    """Searches by pattern, in threads, a few searches at once, with a bounded amount of text."""

    def __init__(self, store: TextStore, windows: Touch, clock: Clock) -> None:
        self._store = store
        self._windows = windows
        self._clock = clock
        self._slots = FairSlots(_AT_ONCE, "searches of files by pattern")

    async def search(self, query: GrepQuery) -> GrepPage:
        """Returns a page of the matches in the agent's files, in order of name and line.

        Open files with matches count as used, so that others are closed before them.

        Raises:
            InvalidArgumentError: The query is invalid; the message is written for the model.
        """
        check_query(query)
        pattern, is_included = LinePattern(query.pattern), name_filter(query.include)
        files, total_files = await self._files(query.agent_id, is_included)
        async with self._slots.slot():
            survey = await self._survey(files, pattern)
        report = report_of(query, files, survey, total_files)
        lines = await self._lines(query, files, report.hits)
        matches = tuple(shown_matches(query, pattern, files, report.hits, lines))
        await self._touch(query.agent_id, files, survey)
        return GrepPage(
            matches,
            len(survey.hits),
            f"{report.head}{matches_text(matches)}{report.tail}",
            truncated=bool(survey.stopped or survey.too_large or survey.is_full),
        )

    async def _lines(
        self, query: GrepQuery, files: Sequence[GrepFile], hits: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[str, int], str]:
        """Returns the lines that are needed to show matches, by content and number."""
        if not hits:
            return {}
        return await self._store.lines(context_ranges(query, files, hits))

    async def _files(
        self, agent_id: str, is_included: Callable[[str], bool]
    ) -> tuple[list[GrepFile], int]:
        """Returns the files to search, and the number of files of the agent."""
        files: list[GrepFile] = []
        total, after = 0, ""
        while True:
            some = await self._store.grep_files(agent_id, after, _FILES_AT_ONCE)
            files += [file for file in some if is_included(file.name)]
            total += len(some)
            if len(some) < _FILES_AT_ONCE:
                return files, total
            after = some[-1].name

    async def _survey(self, files: Sequence[GrepFile], pattern: LinePattern) -> Survey:
        survey, chars = Survey(), 0
        expired = self._timer()
        for group in _groups(files, survey):
            chars += sum(files[index].char_count for index in group)
            if chars > MAX_TOTAL_CHARS:
                survey.stopped = (
                    f"Stopped after {MAX_TOTAL_CHARS // (1024 * 1024)} MB of text; "
                    "use include to search fewer files"
                )
                break
            await self._search_group(files, group, pattern, survey, expired)
            if survey.is_full or survey.stopped:
                break
        return survey

    async def _search_group(
        self,
        files: Sequence[GrepFile],
        group: Sequence[int],
        pattern: LinePattern,
        survey: Survey,
        expired: Callable[[], bool],
    ) -> None:
        keys = [files[index].content_key for index in group]
        # A group of several small files fits into one batch of pages.
        count = _PAGES_AT_ONCE if len(group) == 1 else _GROUP_FILES + _PAGES_AT_ONCE
        after = (-1, -1)
        while True:
            pages = await self._store.grep_pages(keys, after, count)
            hits = await _in_thread(pattern, pages, MAX_MATCHES - len(survey.hits), expired)
            survey.hits += [(group[content_index], line) for content_index, line in hits]
            if expired():
                survey.stopped = (
                    "The search ran out of time before the last file; use include or a "
                    "simpler pattern"
                )
            if survey.is_full or survey.stopped or len(pages) < count:
                return
            after = (pages[-1].content_index, pages[-1].page)

    async def _touch(self, agent_id: str, files: Sequence[GrepFile], survey: Survey) -> None:
        open_file_ids = {files[index].id for index, _ in survey.hits if files[index].is_open}
        if open_file_ids:
            await self._windows.touch(agent_id, sorted(open_file_ids), self._clock.now())

    def _timer(self) -> Callable[[], bool]:
        """Returns a function that is True once the time is over, early enough to reply."""
        seconds, deadline = MAX_SECONDS, context.current().deadline
        if deadline is not None:
            remaining_s = deadline - asyncio.get_running_loop().time()
            seconds = min(seconds, max(remaining_s - _REPLY_SECONDS, remaining_s / 2))
        end = self._clock.monotonic() + seconds
        return lambda: self._clock.monotonic() >= end


async def _in_thread(
    pattern: LinePattern,
    pages: Sequence[SearchedPage],
    limit: int,
    expired: Callable[[], bool],
) -> list[tuple[int, int]]:
    cancelled = False

    def search() -> list[tuple[int, int]]:
        return list(islice(_hits(pattern, pages, limit, lambda: cancelled or expired()), limit))

    try:
        return await asyncio.to_thread(search)
    finally:
        # A thread cannot be cancelled, so it polls this.
        cancelled = True


def _hits(
    pattern: LinePattern,
    pages: Sequence[SearchedPage],
    limit: int,
    expired: Callable[[], bool],
) -> Iterator[tuple[int, int]]:
    for page in pages:
        for line in pattern.lines(page.text, limit=limit, expired=expired):
            yield page.content_index, page.first_line + line


def _groups(files: Sequence[GrepFile], survey: Survey) -> Iterator[list[int]]:
    """Groups files, by index, into batches of about equal length; counts skipped files."""
    group: list[int] = []
    chars = 0
    for index, file in enumerate(files):
        if not file.readable:
            survey.unread += 1
            continue
        if file.char_count > MAX_FILE_CHARS:
            survey.too_large += 1
            continue
        if group and (chars + file.char_count > _GROUP_CHARS or len(group) == _GROUP_FILES):
            yield group
            group, chars = [], 0
        group.append(index)
        chars += file.char_count
    if group:
        yield group
