"""Windows of agents into files: types, and the interface of their store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol, TypeAlias

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.prompt.compilation import DEFAULT_LIMITS, FileLimits
from strata.core_memory.domain.prompt.limits import PromptLimit
from strata.core_memory.files.domain.files import WHOLE_FILE, ContentState, OpenFile

DEFAULT_MAX_OPEN = DEFAULT_LIMITS.max_open
"""Default of the files that an agent may have open at once."""


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
        requests: The windows to open.
        close_all_others: Close every other window.
        max_open: Windows that may be open at once; 0 for the agent's stored limit.
        view_chars: Characters of one file that are rendered; 0 for the agent's stored limit.
        max_bytes: UTF-8 bytes that blocks and folders may take together in the agent's prompt;
            0 for the agent's stored limit.
    """

    agent_id: str
    requests: tuple[WindowRequest, ...]
    close_all_others: bool = False
    max_open: int = DEFAULT_MAX_OPEN
    view_chars: int = DEFAULT_LIMITS.view_chars
    max_bytes: int = 0

    @property
    def limits(self) -> FileLimits:
        """How much of files is rendered."""
        return FileLimits(self.max_open, self.view_chars)

    @property
    def complete(self) -> bool:
        """Whether every limit is set; calls of an agent's tools set all of them."""
        return bool(self.max_open and self.view_chars and self.max_bytes)

    def within(self, prompt_limit: PromptLimit) -> OpenWindows:
        """Returns the command with the agent's stored limits instead of limits that are 0."""
        return replace(
            self,
            max_open=self.max_open or prompt_limit.max_open or DEFAULT_MAX_OPEN,
            view_chars=self.view_chars or prompt_limit.view_chars or DEFAULT_LIMITS.view_chars,
            max_bytes=self.max_bytes or prompt_limit.files_bytes,
        )


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file of an attached folder, with the fields that opening needs.

    Attributes:
        id: The file.
        name: ``FOLDER/FILE``.
        content: State of its content.
        error: Why its content could not be read; empty otherwise.
        line_count: Lines of its text.
    """

    id: str
    name: str
    content: ContentState
    error: str
    line_count: int


@dataclass(frozen=True, slots=True)
class FileWindow:
    """An open window in its stored form.

    Attributes:
        file: The file.
        start: First line, from 1.
        end: Last line; 0 for the end of the file, also after the file has changed.
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
        """The last line that it shows of the current file."""
        return min(self.end or self.file.line_count, self.file.line_count)

    @property
    def has_text(self) -> bool:
        """True if it shows at least one line."""
        return self.file.content is ContentState.TEXT and self.start <= self.last_line

    def as_open_file(self) -> OpenFile:
        """Returns the window in the form of the API."""
        return OpenFile(
            self.file.id, self.file.name, self.start, self.last_line, self.last_access_time
        )


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The windows of an agent to open, keep and close.

    Attributes:
        windows: All windows open afterwards, by name of file.
        opened: The windows that the request opens.
        closed: Files whose windows are closed.
        message: The message to the model.
    """

    windows: tuple[FileWindow, ...]
    opened: tuple[FileWindow, ...]
    closed: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class OpenFilesResult:
    """The windows open after a command, by name of file, and the message to the model."""

    windows: tuple[OpenFile, ...]
    message: str = ""


PlanWindows: TypeAlias = Callable[[Mapping[str, AttachedFile], Sequence[FileWindow]], WindowPlan]
"""Plans windows, from the attached files by name and the windows that are open."""


@dataclass(frozen=True, slots=True)
class PromptUse:
    """The space that memory takes in an agent's prompt, in UTF-8 bytes.

    Attributes:
        blocks: All blocks.
        directories: The ``<directories>`` element, open files included.
        files: The rendered part of each open file, by id of file.
        limit: Maximum size of the blocks alone; None if unknown.
    """

    blocks: int
    directories: int
    files: Mapping[str, int]
    limit: int | None


CheckUse: TypeAlias = Callable[[PromptUse, WindowPlan], None]
"""Raises if a prompt has no space for the planned windows."""

ChooseWindows: TypeAlias = Callable[[Sequence[FileWindow], Mapping[str, int]], Sequence[FileWindow]]
"""Chooses windows to close, from the open windows and their bytes by id of file."""


class FileWindowStore(Protocol):
    """The windows of agents of the calling project."""

    async def prompt_limit(self, agent_id: str) -> PromptLimit:
        """Returns the stored limits of an agent's prompt; `NO_LIMIT` if there are none."""
        ...

    async def change(
        self,
        agent_id: str,
        names: Sequence[str],
        receipt: Receipt[OpenFilesResult],
        decide: PlanWindows,
        check: tuple[FileLimits, CheckUse] | None = None,
    ) -> OpenFilesResult:
        """Changes an agent's windows in one transaction; changes of one agent are serialised.

        Args:
            agent_id: The agent.
            names: Files to look up for `decide`.
            receipt: Makes repetitions of the request return the first response.
            decide: Plans the windows; an error that it raises rolls the transaction back.
            check: Checks the resulting prompt, rendered with these limits; may raise likewise.

        Raises:
            NotFoundError: There is no such agent (``AGENT_NOT_FOUND``).
            ReplayedError: The request was done before.
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        ...

    async def close_to_fit(
        self, agent_id: str, limits: FileLimits, choose: ChooseWindows, *, preview: bool
    ) -> Sequence[FileWindow]:
        """Closes the chosen windows; the prompt names the closed files until the next change.

        Returns:
            The closed windows; with `preview`, those that would be closed.
        """
        ...

    async def names(self, agent_id: str) -> list[str]:
        """Returns the names of all files of the agent's folders."""
        ...

    async def first_names(self, agent_id: str, folder_id: str, count: int) -> list[str]:
        """Returns the first names, in order, of readable files of an attached folder."""
        ...


class UnknownFileError(Exception):
    """No file of that name is attached to the agent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
