"""Windows of agents into files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeAlias

from strata.core_memory.domain.compilation import DEFAULT_LIMITS, FileLimits
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.prompt_limits import PromptLimit
from strata.core_memory.files.domain.files import WHOLE_FILE, ContentState, OpenFile

DEFAULT_MAX_OPEN = DEFAULT_LIMITS.max_open
"""Files that an agent may have open at once when nobody says how many."""


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """One file to open.

    Attributes:
        file_name: ``FOLDER/FILE``.
        offset: First line, from 0; None for the beginning.
        length: Number of lines; None for all that follow.
    """

    file_name: str
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class OpenWindows:
    """Opens files for an agent.

    Attributes:
        agent_id: The agent.
        requests: What to open.
        close_all_others: Close every other window.
        max_open: Windows that may be open at once; 0 for what is known of the agent's window.
        view_chars: Characters of one file that are shown; 0 likewise.
        max_bytes: UTF-8 bytes that blocks and folders may take together in the agent's prompt;
            0 likewise.
    """

    agent_id: str
    requests: tuple[WindowRequest, ...]
    close_all_others: bool = False
    max_open: int = DEFAULT_MAX_OPEN
    view_chars: int = DEFAULT_LIMITS.view_chars
    max_bytes: int = 0

    @property
    def limits(self) -> FileLimits:
        """How much of files is shown."""
        return FileLimits(self.max_open, self.view_chars)

    @property
    def complete(self) -> bool:
        """Whether it has every limit, as the call of an agent's tool has."""
        return bool(self.max_open and self.view_chars and self.max_bytes)

    def within(self, known: PromptLimit) -> OpenWindows:
        """Returns it with what is known of the agent's window in place of limits that are 0."""
        return replace(
            self,
            max_open=self.max_open or known.max_open or DEFAULT_MAX_OPEN,
            view_chars=self.view_chars or known.view_chars or DEFAULT_LIMITS.view_chars,
            max_bytes=self.max_bytes or known.files_bytes,
        )


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file of an attached folder, as far as opening it is concerned.

    Attributes:
        id: The file.
        name: ``FOLDER/FILE``.
        content: How far its bytes are read.
        error: Why they could not be.
        line_count: Lines of its text.
    """

    id: str
    name: str
    content: ContentState
    error: str
    line_count: int


@dataclass(frozen=True, slots=True)
class Window:
    """An open window as it is stored.

    Attributes:
        file: The file.
        start: First line, from 1.
        end: Last line; 0 for the end of the file, wherever that may come to be.
        last_access_time: When it was last used, UTC.
    """

    file: AttachedFile
    start: int
    end: int
    last_access_time: datetime

    @property
    def is_whole(self) -> bool:
        """True if it shows the whole file."""
        return (self.start, self.end) == WHOLE_FILE

    @property
    def last_line(self) -> int:
        """The last line that it shows, of the file as it is now."""
        return min(self.end or self.file.line_count, self.file.line_count)

    @property
    def has_text(self) -> bool:
        """True if there is a line to be seen through it."""
        return self.file.content is ContentState.TEXT and self.start <= self.last_line

    def as_open_file(self) -> OpenFile:
        """Returns the window as callers of the API see it."""
        return OpenFile(
            self.file.id, self.file.name, self.start, self.last_line, self.last_access_time
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """What becomes of an agent's windows.

    Attributes:
        windows: All windows open afterwards, by name of file.
        opened: Those of them that were asked for.
        closed: Files whose windows are closed.
        message: What the model is told.
    """

    windows: tuple[Window, ...]
    opened: tuple[Window, ...]
    closed: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The windows open after a command, by name of file, and what the model is told."""

    windows: tuple[OpenFile, ...]
    message: str = ""


Decide: TypeAlias = Callable[[Mapping[str, AttachedFile], Sequence[Window]], Opening]
"""Says what becomes of the windows, given the attached files of some names and what is open."""


@dataclass(frozen=True, slots=True)
class PromptUse:
    """What memory takes of an agent's prompt, in UTF-8 bytes.

    Attributes:
        blocks: All blocks.
        directories: The ``<directories>`` element, open files included.
        files: What is shown of each open file, by id of file.
        limit: What blocks alone may take; None if that is not known.
    """

    blocks: int
    directories: int
    files: Mapping[str, int]
    limit: int | None


CheckUse: TypeAlias = Callable[[PromptUse, Opening], None]
"""Refuses windows for which a prompt has no space, by raising."""

ChooseWindows: TypeAlias = Callable[[Sequence[Window], Mapping[str, int]], Sequence[Window]]
"""Chooses windows to close, given those that are open and their bytes by id of file."""


class WindowStore(Protocol):
    """The windows of agents of the calling project."""

    async def prompt_limit(self, agent_id: str) -> PromptLimit:
        """Returns what the prompt of an agent has space for, as far as it is known."""
        ...

    async def change(
        self,
        agent_id: str,
        names: Sequence[str],
        receipt: Receipt[Opened],
        decide: Decide,
        check: tuple[FileLimits, CheckUse] | None = None,
    ) -> Opened:
        """Changes an agent's windows in one transaction, one agent's changes after another.

        Args:
            agent_id: The agent.
            names: Files that are looked up for `decide`.
            receipt: Makes a repetition get the first answer.
            decide: What becomes of the windows; what it raises ends the transaction.
            check: Looks at the prompt that results, rendered with these limits; likewise.

        Raises:
            ReplayedError: The request was done before.
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        ...

    async def close_to_fit(
        self, agent_id: str, limits: FileLimits, choose: ChooseWindows, *, preview: bool
    ) -> Sequence[Window]:
        """Closes chosen windows of an agent; its prompt names them until the next change.

        Returns:
            What was closed; for a preview, what would be.
        """
        ...

    async def names(self, agent_id: str) -> list[str]:
        """Returns the names of all files of the agent's folders."""
        ...

    async def first_names(self, agent_id: str, folder_id: str, count: int) -> list[str]:
        """Returns the first names of files of an attached folder that can be read."""
        ...


class UnknownFileError(Exception):
    """No file of that name is attached to the agent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
