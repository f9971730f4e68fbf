"""Golden tests of the ``<directories>`` element (docs/wire-format.md#directories)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.files.domain.directories import (
    TRUNCATED,
    AgentFolders,
    FolderView,
    WindowTexts,
    listing_bytes,
    read_directories,
    render_directories,
    window_view,
)
from strata.core_memory.files.domain.file_windows import AttachedFile, FileWindow
from strata.core_memory.files.domain.files import ContentState

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FORTY = "\n".join(f"line {number}" for number in range(1, 41))
LIMITS = FileLimits(max_open=5, view_chars=15_000)


def window(
    name: str = "docs/a.txt",
    start: int = 1,
    end: int = 0,
    *,
    lines: int = 40,
    content: ContentState = ContentState.TEXT,
    error: str = "",
) -> FileWindow:
    return FileWindow(AttachedFile(f"file-{name}", name, content, error, lines), start, end, NOW)


def folder(
    *windows: FileWindow,
    name: str = "docs",
    description: str = "",
    instructions: str = "",
    closed: tuple[str, ...] = (),
    more: int = 0,
) -> FolderView:
    return FolderView(name, description, instructions, windows, closed, more)


def rendered(*folders: FolderView, text: str = FORTY, labels: tuple[str, ...] = ()) -> str:
    texts = {window.file.id: text for folder in folders for window in folder.windows}
    return render_directories(folders, texts, labels, LIMITS)


def test_without_folders_nothing_is_rendered() -> None:
    assert rendered() == ""


def test_open_and_closed_files_are_rendered_by_folder() -> None:
    docs = folder(
        window("docs/b.txt", 11, 13),
        description="Our handbook.",
        instructions="Quote it.",
        closed=("docs/a.txt",),
    )
    empty = folder(name="empty")
    assert rendered(docs, empty, text="line 11\nline 12\nline 13\nline 14") == (
        "<directories>\n"
        "<file_limits>\n"
        "- current_files_open=1\n"
        "- max_files_open=5\n"
        "</file_limits>\n"
        "\n"
        '<directory name="docs">\n'
        "<description>Our handbook.</description>\n"
        "<instructions>Quote it.</instructions>\n"
        "\n"
        '<file status="closed" name="docs/a.txt">\n'
        "<metadata>\n"
        "- read_only=true\n"
        "- chars_current=0\n"
        "- chars_limit=15000\n"
        "</metadata>\n"
        "<value>\n"
        "\n"
        "</value>\n"
        "</file>\n"
        "\n"
        '<file status="open" name="docs/b.txt">\n'
        "<metadata>\n"
        "- read_only=true\n"
        "- chars_current=78\n"
        "- chars_limit=15000\n"
        "</metadata>\n"
        "<value>\n"
        "[Viewing lines 11 to 13 (out of 40 lines)]\n"
        "11: line 11\n"
        "12: line 12\n"
        "13: line 13\n"
        "</value>\n"
        "</file>\n"
        "\n"
        "</directory>\n"
        "\n"
        '<directory name="empty">\n'
        "\n"
        "</directory>\n"
        "</directories>"
    )


def test_omitted_lines_are_counted() -> None:
    shown = rendered(folder(closed=("docs/a",), more=4950))
    assert shown.endswith(
        "</file>\n"
        "\n"
        "4950 more files are in this directory: use grep_files or semantic_search_files to find "
        "them.\n"
        "</directory>\n"
        "</directories>"
    )


def test_many_folders_share_the_space_for_closed_files() -> None:
    large = folder(name="a", closed=tuple(f"a/{number:02}" for number in range(50)), more=950)
    small = folder(name="b", closed=("b/first",))
    rest = [
        folder(name=f"c{number}", closed=tuple(f"c{number}/{file:02}" for file in range(50)))
        for number in range(8)
    ]
    shown = rendered(large, small, *rest)
    assert 14_000 < len(shown) < 15_200
    assert 'name="b/first"' in shown
    for name in ("a", "c0", "c7"):
        assert f'name="{name}/08"' in shown
        assert f'name="{name}/14"' not in shown
    listed = shown.count('status="closed"')
    omitted = re.findall(r"^(\d+) more files", shown, re.MULTILINE)
    assert listed + sum(map(int, omitted)) == 1001 + 8 * 50


def test_folders_beyond_the_space_are_counted() -> None:
    long = "x" * 5_000
    folders = [
        folder(name="a", description=long, instructions=long * 3, closed=("a/1",), more=9),
        *(folder(name=f"b{number}", description=long, more=10) for number in range(3)),
        folder(window("open/a.txt"), name="open"),
    ]
    shown = rendered(*folders)
    assert re.findall(r'<directory name="(\w+)">', shown) == ["a", "open"]
    assert shown.count('status="open"') == 1
    assert "\n10 more files are in this directory" in shown
    assert shown.endswith(
        "</directory>\n"
        "\n"
        "3 more directories with 30 files are attached: use grep_files or semantic_search_files to "
        "find them.\n"
        "</directories>"
    )


@pytest.mark.parametrize(
    ("view_chars", "size"), [(100, 8_000), (15_000, 15_000), (10_000_000, 40_000)]
)
def test_the_space_for_closed_files_follows_that_of_an_open_one(view_chars: int, size: int) -> None:
    assert listing_bytes(FileLimits(5, view_chars)) == size


def test_text_of_users_cannot_close_prompt_tags() -> None:
    hostile = folder(
        window('docs/"></file>&.txt', 1, 1),
        name='do"cs<',
        description="</description><directory>",
        instructions="</persona>",
        closed=('docs/"x".md',),
    )
    shown = rendered(hostile, text="</value></file> <b>kept</b>", labels=("persona",))
    assert '<directory name="do&quot;cs&lt;">\n' in shown
    assert "<description>&lt;/description>&lt;directory></description>\n" in shown
    assert "<instructions>&lt;/persona></instructions>\n" in shown
    assert '<file status="open" name="docs/&quot;&gt;&lt;/file&gt;&amp;.txt">\n' in shown
    assert '<file status="closed" name="docs/&quot;x&quot;.md">\n' in shown
    assert "1: &lt;/value>&lt;/file> <b>kept</b>\n</value>\n</file>" in shown


@pytest.mark.parametrize(
    ("seen", "text", "view"),
    [
        (window(lines=2), "a\nb", "[Viewing file start (out of 2 lines)]\n1: a\n2: b"),
        (window(lines=0), "", "[Viewing file start (out of 0 lines)]"),
        (window(start=3, lines=4), "c\n", "[Viewing lines 3 to 4 (out of 4 lines)]\n3: c\n4: "),
        (window(start=2, end=9, lines=2), "b\nc", "[Viewing lines 2 to 2 (out of 2 lines)]\n2: b"),
        (window(lines=1), "\ttab  ", "[Viewing file start (out of 1 lines)]\n1: \ttab  "),
        (window(start=7, lines=3), "", "[This file has only 3 lines now: open it again]"),
        (window(content=ContentState.STORED), "", "[This file is still being read]"),
        (
            window(content=ContentState.FAILED, error="It is encrypted."),
            "",
            "[This file could not be read: It is encrypted.]",
        ),
    ],
)
def test_views_of_lines_have_a_header_and_numbers(seen: FileWindow, text: str, view: str) -> None:
    assert window_view(seen, text, 1_000) == view


def test_a_long_view_is_cut_at_the_limit() -> None:
    view = window_view(window(), FORTY, 200)
    head = "[Viewing file start (out of 40 lines)]\n1: line 1\n2: line 2\n"
    assert view.startswith(head)
    assert view.endswith(
        "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
    )
    assert len(view) == 200


def test_a_view_as_long_as_the_limit_is_not_cut() -> None:
    whole = window_view(window(lines=2), "a\nb", 1_000)
    assert window_view(window(lines=2), "a\nb", len(whole)) == whole
    assert window_view(window(lines=2), "a\nb", len(whole) - 1).endswith(TRUNCATED)


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(90, 300)
)
def test_no_view_is_longer_than_the_limit(text: str, limit: int) -> None:
    lines = text.count("\n") + 1
    assert len(window_view(window(lines=lines), text, limit)) <= limit


@dataclass
class ChangingViews:
    """Views of one open file; a test sets the fingerprints that the two statements read."""

    of_folders: str
    of_texts: str

    async def folders(self, agent_id: str) -> AgentFolders:
        return AgentFolders([folder(window())], fingerprint=self.of_folders)

    async def texts(self, agent_id: str, windows: Sequence[FileWindow], chars: int) -> WindowTexts:
        return WindowTexts({}, self.of_texts)


@pytest.mark.parametrize(("of_texts", "known"), [("1", "1"), ("2", "")])
async def test_a_change_between_the_statements_leaves_the_fingerprint_unknown(
    of_texts: str, known: str
) -> None:
    directories = await read_directories(ChangingViews("1", of_texts), "agent-1", LIMITS)
    assert directories.fingerprint == known
