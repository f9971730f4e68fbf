"""Shows an agent's folders and what it has open of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from strata.core_memory.domain.compilation import FileLimits
from strata.core_memory.files.domain.directories import FolderView, render_directories
from strata.core_memory.files.domain.windows import Window


class Views(Protocol):
    """Where folders and texts are read. Every method is one statement."""

    async def folders(self, agent_id: str) -> Sequence[FolderView]:
        """Returns the agent's folders in order of attachment."""
        ...

    async def texts(self, windows: Sequence[Window], chars: int) -> Mapping[str, str]:
        """Returns the texts from the windows' first lines on, by id of file.

        Args:
            windows: Windows into files that can be read.
            chars: How much of each is of use.
        """
        ...


async def show_directories(
    views: Views, agent_id: str, labels: Sequence[str], limits: FileLimits
) -> str:
    """Returns the ``<directories>`` element; empty if no folder is attached.

    Args:
        views: Reads folders and texts of one moment.
        agent_id: The agent.
        labels: Labels of its blocks, which are tags of the prompt too.
        limits: How much is shown.
    """
    folders = await views.folders(agent_id)
    seen = [window for folder in folders for window in folder.windows if window.has_text]
    texts = await views.texts(seen, limits.view_chars) if seen else {}
    return render_directories(folders, texts, labels, limits)
