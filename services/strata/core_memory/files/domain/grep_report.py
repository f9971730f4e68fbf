"""Writes the text of a search by pattern for models (docs/wire-format.md#file-tools)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strata.core_memory.files.domain.grep import (
    MATCHES_A_PAGE,
    MAX_FILE_CHARS,
    GrepFile,
    GrepMatch,
    GrepQuery,
    LineRange,
    Survey,
)
from strata.core_memory.files.domain.patterns import LinePattern

_SHOWN_LINE_CHARS = 1_000
_SHOWN_FILES = 50
_RULE = "=" * 80


@dataclass(frozen=True, slots=True)
class GrepReport:
    """The matches to show, and the text around them.

    Attributes:
        hits: Index of the file and number of the line of each match to show.
        head: Text before the matches.
        tail: Text after the matches.
    """

    hits: Sequence[tuple[int, int]]
    head: str
    tail: str = ""


def report_of(
    query: GrepQuery, files: Sequence[GrepFile], survey: Survey, total_files: int
) -> GrepReport:
    """Returns the matches of the page, and the summary of all.

    Args:
        query: The query.
        files: The files that were searched.
        survey: The results of the search.
        total_files: Number of files of the agent, searched or not.
    """
    notes = _notes(survey)
    if not total_files:
        return GrepReport([], "No files are currently attached to search")
    if not files:
        return GrepReport(
            [],
            f"No files match the filename pattern '{query.include}' (filtered {total_files} files)",
        )
    if not survey.hits:
        where = f" in files matching '{query.include}'" if query.include else ""
        return GrepReport([], f"No matches found for pattern: '{query.pattern}'{where}{notes}")
    return _matches_report(query, files, survey, notes)


def _matches_report(
    query: GrepQuery, files: Sequence[GrepFile], survey: Survey, notes: str
) -> GrepReport:
    total = len(survey.hits)
    page = survey.hits[query.offset : query.offset + MATCHES_A_PAGE]
    per_file = Counter(index for index, _ in survey.hits)
    plus = "+" if survey.is_full else ""
    head = f"Found {total}{plus} total matches across {len(per_file)} files"
    if not page:
        past = (
            f"offset {query.offset} is past the last of them: use an offset from 0 to {total - 1}"
        )
        return GrepReport([], f"{head}, but {past}{notes}")
    last = query.offset + len(page)
    lines = [
        f"{head} (showing matches {query.offset + 1}-{last} of {total}{plus}){notes}",
        _RULE,
        "Files with matches:",
        *_counts(files, per_file),
    ]
    tail = f"\n\nTo see more matches, use offset={last}" if last < total else ""
    return GrepReport(page, "\n".join(lines), tail)


def context_ranges(
    query: GrepQuery, files: Sequence[GrepFile], hits: Sequence[tuple[int, int]]
) -> list[LineRange]:
    """Returns the ranges of lines that are needed to show matches."""
    around = query.context_lines
    return [
        LineRange(files[index].content_key, max(1, line - around), line + around)
        for index, line in hits
    ]


def shown_matches(
    query: GrepQuery,
    pattern: LinePattern,
    files: Sequence[GrepFile],
    hits: Sequence[tuple[int, int]],
    lines: Mapping[tuple[str, int], str],
) -> Iterator[GrepMatch]:
    """Yields matches with the lines around them; skips those whose text was deleted meanwhile."""
    for (index, line), needed in zip(hits, context_ranges(query, files, hits), strict=True):
        file = files[index]
        if (file.content_key, line) not in lines:
            continue
        numbered = []
        for number in range(needed.first, needed.last + 1):
            text = lines.get((file.content_key, number))
            if text is None:
                continue
            mark = ">" if number == line else " "
            span = pattern.span(text) if number == line else (0, 0)
            numbered.append(f"{mark} {number}: {_shortened(text, span)}")
        yield GrepMatch(file.name, line, tuple(numbered))


def matches_text(matches: Sequence[GrepMatch]) -> str:
    """Returns matches as text for the model."""
    return "".join(
        f"\n\n=== {match.file_name}:{match.line} ===\n" + "\n".join(match.lines)
        for match in matches
    )


def _counts(files: Sequence[GrepFile], per_file: Mapping[int, int]) -> Iterator[str]:
    for index in sorted(per_file)[:_SHOWN_FILES]:
        count = per_file[index]
        yield f"  - {files[index].name}: {count} {'match' if count == 1 else 'matches'}"
    if len(per_file) > _SHOWN_FILES:
        yield f"  - and {len(per_file) - _SHOWN_FILES} more files"


def _notes(survey: Survey) -> str:
    notes = []
    if survey.stopped:
        notes.append(f"\nNote: {survey.stopped}")
    if survey.too_large:
        megabytes = MAX_FILE_CHARS // (1024 * 1024)
        notes.append(f"\nNote: Skipped {survey.too_large} file(s) of more than {megabytes} MB")
    if survey.unread:
        notes.append(
            f"\nNote: Skipped {survey.unread} file(s) whose text is not ready or cannot be read"
        )
    return "".join(notes)


def _shortened(line: str, span: tuple[int, int]) -> str:
    if len(line) <= _SHOWN_LINE_CHARS:
        return line
    middle = (span[0] + min(span[1], span[0] + _SHOWN_LINE_CHARS)) // 2
    start = max(0, min(middle - _SHOWN_LINE_CHARS // 2, len(line) - _SHOWN_LINE_CHARS))
    end = start + _SHOWN_LINE_CHARS
    before, after = "..." if start else "", "..." if end < len(line) else ""
    return f"{before}{line[start:end]}{after} [of {len(line)} characters]"
