"""Renders an agent's folders and open files from stored texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.core_memory.domain.prompt.compilation import FileLimits
from strata.core_memory.files.domain.directories import (
    FolderView,
    render_directories,
    window_view,
)
from strata.core_memory.files.domain.file_windows import Window
from strata.shared.tag_escapes import escape


class Views(Protocol):
    """Reads folders and texts. Every method is one statement."""

    async def folders(self, agent_id: str) -> tuple[Sequence[FolderView], Sequence[str]]:
        """Returns the agent's folders in order of attachment, and names of closed files.

        The names are those of files that were closed because the prompt had no space for them.
        """
        ...

    async def texts(self, windows: Sequence[Window], chars: int) -> Mapping[str, str]:
        """Returns the texts from the windows' first lines on, by id of file.

        Args:
            windows: Windows into files that can be read.
            chars: Characters needed of each; the store may return more.
        """
        ...


@dataclass(frozen=True, slots=True)
class RenderedDirectories:
    """The rendered folders of an agent.

    Attributes:
        text: The ``<directories>`` element; empty if no folder is attached.
        file_bytes: UTF-8 bytes that are rendered of each open file, by id of file.
    """

    text: str
    file_bytes: Mapping[str, int]


async def show_directories(
    views: Views, agent_id: str, labels: Sequence[str], limits: FileLimits
) -> RenderedDirectories:
    """Renders the folders of an agent.

    Args:
        views: Reads folders and texts from one snapshot.
        agent_id: The agent.
        labels: Labels of its blocks; text that looks like their tags is escaped.
        limits: How much of files is rendered.
    """
    folders, closed = await views.folders(agent_id)
    seen = [window for folder in folders for window in folder.windows if window.has_text]
    texts = await views.texts(seen, limits.view_chars) if seen else {}
    shown = {
        window.file.id: len(
            escape(
                window_view(window, texts.get(window.file.id, ""), limits.view_chars), labels
            ).encode("utf-8", "replace")
        )
        for folder in folders
        for window in folder.windows
    }
    return RenderedDirectories(render_directories(folders, texts, labels, limits, closed), shown)
