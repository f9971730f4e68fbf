"""Renders the ``<directories>`` element of the prompt (docs/wire-format.md#directories)."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.files.domain.file_windows import FileWindow
from strata.core_memory.files.domain.files import ContentState
from strata.shared.one_line import one_line
from strata.shared.tag_escapes import escape

CLOSED_SHOWN = 50
"""Maximum of closed files that are listed for a folder."""
LEAST_LISTING_BYTES = 8_000
"""UTF-8 bytes that folders and closed files may take in any prompt."""
MOST_LISTING_BYTES = 40_000
"""UTF-8 bytes that folders and closed files may take in the prompt of the largest window."""
MOST_LISTED = 300
"""Closed files that are read for a prompt; more of them would not fit."""
_GAP_BYTES = len("\n\n")

TRUNCATED = (
    "...[TRUNCATED]\n# NOTE: This block is truncated, use functions to view the full content."
)


@dataclass(frozen=True, slots=True)
class FolderView:
    """A folder with the parts of it that are rendered.

    Attributes:
        name: Its name.
        description: Description of its content; may be empty.
        instructions: How to use it; may be empty.
        windows: The open files.
        closed: Names, ``FOLDER/FILE``, of closed files that are listed.
        more: Number of files that are not listed.
    """

    name: str
    description: str
    instructions: str
    windows: Sequence[FileWindow]
    closed: Sequence[str]
    more: int


def render_directories(
    folders: Sequence[FolderView],
    texts: Mapping[str, str],
    labels: Sequence[str],
    limits: FileLimits,
    closed: Sequence[str] = (),
) -> str:
    """Returns the ``<directories>`` element; empty without folders.

    Args:
        folders: The agent's folders in order of attachment.
        texts: By id of file, the text from the first line of its window on, at least as
            much as the limit allows to render.
        labels: Labels of the agent's blocks; text that looks like their tags is escaped.
        limits: How much of files is rendered.
        closed: Names of files that were closed because the prompt had no space for them.
    """
    if not folders:
        return ""
    open_count = sum(len(folder.windows) for folder in folders)
    listed = _listed(folders, labels, limits)
    elements = "\n\n".join(_directory(folder, texts, labels, limits) for folder in listed)
    return (
        "<directories>\n"
        "<file_limits>\n"
        f"- current_files_open={open_count}\n"
        f"- max_files_open={limits.max_open}\n"
        f"{_closed_note(closed, labels)}"
        "</file_limits>\n\n"
        f"{elements}\n"
        f"{_omitted_note(folders, listed)}"
        "</directories>"
    )


def window_view(window: FileWindow, text: str, limit: int) -> str:
    """Returns the text of a window: a line with its position, then numbered lines.

    Args:
        window: The window.
        text: The file's text from the window's first line on, at least `limit` characters of it.
        limit: Maximum of characters, including the mark of truncated text.
    """
    file = window.file
    if file.content is ContentState.STORED:
        return "[This file is still being read]"
    if file.content is ContentState.FAILED:
        return f"[This file could not be read: {file.error}]"
    if not window.is_whole and window.start > file.line_count:
        return f"[This file has only {file.line_count} lines now: open it again]"
    where = f"lines {window.start} to {window.last_line}"
    if window.is_whole:
        where = "file start"
    lines = [f"[Viewing {where} (out of {file.line_count} lines)]"]
    lines += [
        f"{number}: {line}"
        for number, line in enumerate(_lines(text[:limit], window), start=window.start)
    ]
    view = "\n".join(lines)
    return view if len(view) <= limit else view[: max(0, limit - len(TRUNCATED))] + TRUNCATED


def listing_bytes(limits: FileLimits) -> int:
    """Returns how many UTF-8 bytes folders and closed files may take: as many as one open file.

    The limits of open files follow the context window. Without this one, other people who add
    files to a shared folder could fill the prompt of every agent that sees it.
    """
    return min(max(limits.view_chars, LEAST_LISTING_BYTES), MOST_LISTING_BYTES)


def _listed(
    folders: Sequence[FolderView], labels: Sequence[str], limits: FileLimits
) -> list[FolderView]:
    """Returns the folders that are shown, each with the closed files that are shown.

    The first folder and those with open files are always shown, the others in order while there
    is space. What is left goes to the first closed file of each, then to the second of each.
    """
    remaining_bytes = listing_bytes(limits)
    listed: list[FolderView] = []
    for folder in folders:
        unlisted = replace(folder, windows=(), closed=(), more=folder.more + len(folder.closed))
        size = _bytes(_directory(unlisted, {}, labels, limits)) + _GAP_BYTES
        if size <= remaining_bytes or folder.windows or not listed:
            remaining_bytes -= size
            listed.append(folder)
    counts = [0] * len(listed)
    for names in zip_longest(*(folder.closed for folder in listed)):
        for number, name in enumerate(names):
            if name is None:
                continue
            remaining_bytes -= _bytes(_file(name, "", limits.view_chars, labels)) + _GAP_BYTES
            if remaining_bytes < 0:
                return _with_closed(listed, counts)
            counts[number] += 1
    return _with_closed(listed, counts)


def _with_closed(folders: Sequence[FolderView], counts: Sequence[int]) -> list[FolderView]:
    return [
        replace(
            folder,
            closed=folder.closed[:count],
            more=folder.more + len(folder.closed) - count,
        )
        for folder, count in zip(folders, counts, strict=True)
    ]


def _omitted_note(folders: Sequence[FolderView], listed: Sequence[FolderView]) -> str:
    if len(folders) == len(listed):
        return ""
    files = sum(len(folder.closed) + folder.more for folder in folders)
    files -= sum(len(folder.closed) + folder.more for folder in listed)
    return (
        f"\n{len(folders) - len(listed)} more directories with {files} files are attached: use "
        "grep_files or semantic_search_files to find them.\n"
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _closed_note(closed: Sequence[str], labels: Sequence[str]) -> str:
    if not closed:
        return ""
    names = escape(", ".join(map(one_line, closed)), labels)
    return (
        "- warning=these files were closed because the context window has no space for them: "
        f"{names}. Open fewer files at once, or fewer lines of them with offset and length.\n"
    )


def _lines(text: str, window: FileWindow) -> list[str]:
    count = window.last_line - window.start + 1
    return text.split("\n", count)[:count] if count > 0 else []


def _directory(
    folder: FolderView, texts: Mapping[str, str], labels: Sequence[str], limits: FileLimits
) -> str:
    parts = [f'<directory name="{attribute(folder.name)}">\n']
    for tag in ("description", "instructions"):
        text = getattr(folder, tag)
        if text:
            parts.append(f"<{tag}>{escape(text, labels)}</{tag}>\n")
    parts.append("\n")
    views = dict.fromkeys(folder.closed, "")
    views.update(
        (window.file.name, window_view(window, texts.get(window.file.id, ""), limits.view_chars))
        for window in folder.windows
    )
    parts += [
        _file(name, views[name], limits.view_chars, labels) + "\n\n" for name in sorted(views)
    ]
    if folder.more:
        parts.append(
            f"{folder.more} more files are in this directory: use grep_files or "
            "semantic_search_files to find them.\n"
        )
    parts.append("</directory>")
    return "".join(parts)


def _file(name: str, view: str, limit: int, labels: Sequence[str]) -> str:
    status = "open" if view else "closed"
    return (
        f'<file status="{status}" name="{attribute(name)}">\n'
        "<metadata>\n"
        "- read_only=true\n"
        f"- chars_current={len(view)}\n"
        f"- chars_limit={limit}\n"
        "</metadata>\n"
        "<value>\n"
        f"{escape(view, labels)}\n"
        "</value>\n"
        "</file>"
    )


def attribute(text: str) -> str:
    """Returns the form of a text in an attribute of the prompt, such as the name of a file."""
    return html.escape(one_line(text)).replace("&#x27;", "'")


@dataclass(frozen=True, slots=True)
class AgentFolders:
    """The folders of an agent, without the texts of files.

    Attributes:
        folders: In order of attachment.
        closed: Names of files that were closed because the prompt had no space for them.
        fingerprint: The fingerprint of the memory that the folders belong to; empty if the views
            do not read it.
    """

    folders: Sequence[FolderView]
    closed: Sequence[str] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class WindowTexts:
    """Texts of open files.

    Attributes:
        texts: From the first line of the window on, by id of file.
        fingerprint: The fingerprint of the memory that they belong to; empty if the views do not
            read it.
    """

    texts: Mapping[str, str]
    fingerprint: str = ""


class Views(Protocol):
    """Reads folders and texts. Every method is one statement."""

    async def folders(self, agent_id: str) -> AgentFolders:
        """Returns the agent's folders."""
        ...

    async def texts(self, agent_id: str, windows: Sequence[FileWindow], chars: int) -> WindowTexts:
        """Returns the texts from the windows' first lines on.

        Args:
            agent_id: The agent.
            windows: Windows into files that can be read.
            chars: Characters needed of each; the store may return more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Directories:
    """The folders of an agent, with the texts of its open files.

    Attributes:
        agent_folders: The folders.
        texts: By id of file, as `render_directories` takes them.
        limits: How much of files is rendered.
        fingerprint: The fingerprint of the memory that folders and texts belong to; empty if the
            views do not read it, or if the memory changed between their statements.
    """

    agent_folders: AgentFolders
    texts: Mapping[str, str]
    limits: FileLimits
    fingerprint: str = ""

    def render(self, labels: Sequence[str]) -> str:
        """Returns the ``<directories>`` element; empty if no folder is attached.

        Args:
            labels: Labels of the agent's blocks; text that looks like their tags is escaped.
        """
        folders, closed = self.agent_folders.folders, self.agent_folders.closed
        return render_directories(folders, self.texts, labels, self.limits, closed)

    def file_bytes(self, labels: Sequence[str]) -> Mapping[str, int]:
        """Returns the UTF-8 bytes that are rendered of each open file, by id of file."""
        return {
            window.file.id: _bytes(
                escape(
                    window_view(window, self.texts.get(window.file.id, ""), self.limits.view_chars),
                    labels,
                )
            )
            for folder in self.agent_folders.folders
            for window in folder.windows
        }


async def read_directories(views: Views, agent_id: str, limits: FileLimits) -> Directories:
    """Returns the folders of an agent and what is rendered of its open files.

    Args:
        views: Reads folders and texts.
        agent_id: The agent.
        limits: How much of files is rendered.
    """
    agent_folders = await views.folders(agent_id)
    windows = [
        window for folder in agent_folders.folders for window in folder.windows if window.has_text
    ]
    fingerprint = agent_folders.fingerprint
    if not windows:
        return Directories(agent_folders, {}, limits, fingerprint)
    window_texts = await views.texts(agent_id, windows, limits.view_chars)
    if window_texts.fingerprint != fingerprint:
        fingerprint = ""
    return Directories(agent_folders, window_texts.texts, limits, fingerprint)
