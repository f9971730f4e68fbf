"""What a turn needs from outside, as protocols. `clients`, `store` and `models` implement them.

Every method may raise `strata.shared.errors.StrataError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from strata.agent_loop.domain.agents import Agent, ModelConfig
from strata.agent_loop.domain.events import RunEvent
from strata.agent_loop.domain.file_limits import FileLimits
from strata.agent_loop.domain.journal import JournalKey, NestedRecord, StepRecord
from strata.agent_loop.domain.keys import SealedKey
from strata.agent_loop.domain.messages import Message, Window
from strata.agent_loop.domain.runs import DocumentLines, DocumentRange, TranscriptRange
from strata.agent_loop.domain.taint import Taint
from strata.agent_loop.domain.tools import ToolBatch, ToolEvent, ToolResult, ToolSet
from strata.agent_loop.loop.priority import TurnWork
from strata.agent_loop.models.domain import ChatModel, ModelSettings
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.system_message import ArchivalStats
from strata.shared.clock import Clock
from strata.shared.fair_slots import slots_of_short_work
from strata.shared.tool_catalogue import ToolEffect

DEFAULT_APPROVAL_S = 24 * 3600
_PARTS_AT_ONCE = 64


class Agents(Protocol):
    """Where agents are kept."""

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        """Returns the agent that the conversation belongs to.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemorySection:
    """Core memory as the model sees it.

    Attributes:
        text: From ``<memory_blocks>`` to ``</directories>``; may be empty.
        last_modified: When a block was last changed; None without blocks.
        block_revisions: Revisions of the blocks that it shows, by label.
        has_folders: A folder is attached.
        taint: Untrusted labels of the blocks that it shows, by label of the block.
    """

    text: str
    last_modified: datetime | None
    block_revisions: Mapping[str, int] = field(default_factory=dict)
    has_folders: bool = False
    taint: Mapping[str, Taint] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """UTF-8 bytes of the text."""
        return len(self.text.encode("utf-8", "replace"))

    @property
    def has_open_files(self) -> bool:
        """True if the text shows an open file; core memory escapes this tag in all contents."""
        return '\n<file status="open" ' in self.text


@dataclass(frozen=True, slots=True)
class MemoryView:
    """How core memory is shown to a model.

    Attributes:
        line_numbers: Values of blocks are shown with line numbers.
        files: Limits of open files.
    """

    line_numbers: bool
    files: FileLimits


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """How large core memory may become in the prompt of an agent.

    Attributes:
        bytes: UTF-8 bytes of all its blocks.
        line_numbers: The model sees them with line numbers.
        files_bytes: UTF-8 bytes of blocks and folders together above which no file is opened.
        max_files_open: Files that may be open at once.
        file_view_chars: Characters of one file that are shown.
    """

    bytes: int
    line_numbers: bool = False
    files_bytes: int = 0
    max_files_open: int = 0
    file_view_chars: int = 0


class Memory(Protocol):
    """Core memory."""

    async def compile(self, agent: Agent, view: MemoryView) -> MemorySection:
        """Renders the agent's memory."""
        ...

    async def close_files(self, agent: Agent, view: MemoryView, max_bytes: int) -> MemorySection:
        """Closes open files, least recently used first, until the section fits.

        Args:
            agent: The agent.
            view: How its memory is shown.
            max_bytes: UTF-8 bytes that the section may have; a section that is larger without
                any open file is returned as it is.
        """
        ...

    async def read_file(self, read: DocumentRange, max_bytes: int) -> DocumentLines:
        """Returns lines of a file in a folder of an agent, behind the start of a range.

        Raises:
            NotFoundError: FILE_NOT_FOUND.
        """
        ...


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """A turn that has begun.

    Attributes:
        window: The window with the inputs in it.
        inputs: The inputs as stored.
        committed_steps: Steps of the run that are committed already.
        committed_messages: What those steps stored.
    """

    window: Window
    inputs: Sequence[Message]
    committed_steps: int = 0
    committed_messages: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class StepCommit:
    """All that one step stores.

    Attributes:
        key: The run and the dispatch of it.
        step: Number of the step, from 1.
        step_id: Id of the step.
        messages: In order; calls are followed by the returns of all of them.
        system_text: The system message, if it was rebuilt for the step.
        metadata_stale: Whether its counts are old now; None if that did not change.
    """

    key: JournalKey
    step: int
    step_id: str
    messages: Sequence[Message]
    system_text: str | None = None
    metadata_stale: bool | None = None


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A step as it was stored.

    Attributes:
        messages: The messages.
        revision: Of the window, after the step.
        message_count: All messages stored in the conversation.
    """

    messages: Sequence[Message]
    revision: int
    message_count: int


@dataclass(frozen=True, slots=True)
class WindowSwap:
    """A smaller window in the place of another.

    Attributes:
        conversation_id: Whose window.
        key: The dispatch that swaps it; None if no run does.
        expected_revision: The revision that it was planned on.
        summary: The summary to store.
        kept_ids: What stays, in order, without the system message.
    """

    conversation_id: str
    key: JournalKey | None
    expected_revision: int
    summary: Message
    kept_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """A compaction that was made.

    Attributes:
        window: The window now.
        summary: The summary in it, as stored.
    """

    window: Window
    summary: Message


class Recall(Protocol):
    """Recall memory: the window and the log."""

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        """Stores the inputs and takes the fence.

        Args:
            key: The run and its attempt.
            inputs: What the run was sent.
            clear: Take everything but the system message and what is pinned out of the window
                before, once for a run.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        """Stores a step, whole or not at all; repeating it is harmless.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def swap_window(self, swap: WindowSwap) -> Window:
        """Stores a summary and the window that names it, both or neither.

        Raises:
            AbortedError: STALE_ATTEMPT, REVISION_MISMATCH.
        """
        ...

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window as it is stored now."""
        ...

    async def evict(self, read: TranscriptRange) -> None:
        """Takes the messages of a range, and those before it, out of the window.

        Raises:
            NotFoundError: WINDOW_NOT_FOUND.
        """
        ...

    async def transcript(self, read: TranscriptRange) -> Sequence[Message]:
        """Returns what is left of a range of a conversation, in order.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND.
        """
        ...

    async def image(self, image_id: str) -> bytes:
        """Returns the bytes of an image of a stored message.

        Raises:
            NotFoundError: IMAGE_NOT_FOUND.
        """
        ...


class ImageFetcher(Protocol):
    """Fetches images that a client names by URL."""

    async def fetch(self, url: str) -> bytes:
        """Returns what is at an https URL, cut behind the size that is accepted.

        Raises:
            InvalidArgumentError: The URL, or where it redirects to, must not be reached.
            UnavailableError: The server cannot be reached, or its answer is not usable.
        """
        ...


class Tools(Protocol):
    """The tools of a project and their executor."""

    async def resolve(
        self, names: Sequence[str], *, skip_missing: bool = False, run_id: str = ""
    ) -> ToolSet:
        """Returns the definitions of tools.

        Args:
            names: The tools; a name such as "files__*" stands for all tools of an MCP server.
            skip_missing: Leave out those that were deleted since the agent got them: it shall
                go on without.
            run_id: The run that is offered them: each of its attempts is offered the same tools
                of MCP servers. Empty for those of this moment.

        Raises:
            NotFoundError: TOOL_NOT_FOUND.
        """
        ...

    def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Runs calls; each gives one `CallFinished`. Closing the generator kills what runs."""
        ...


class Archival(Protocol):
    """Archival memory."""

    async def stats(self, agent_id: str) -> ArchivalStats:
        """Returns what the metadata says of it."""
        ...


class Journal(Protocol):
    """The step journal and the tool ledger."""

    async def resume(self, key: JournalKey, step: int) -> StepRecord | None:
        """Takes the fence for a repeated dispatch; returns the step if it is journalled.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def mark_finishing(self, key: JournalKey, seconds: float) -> None:
        """Notes that a dispatch without a caller is still finishing its step.

        Args:
            key: The dispatch.
            seconds: For how long the next attempt may count on that; 0 when it is done.

        Raises:
            AbortedError: STALE_ATTEMPT; the next attempt did not wait.
        """
        ...

    async def is_finishing(self, key: JournalKey) -> bool:
        """Says whether an earlier dispatch of the run is still finishing its step."""
        ...

    async def close(self, key: JournalKey) -> StepRecord | None:
        """Takes the fence of a run that is over, so that none of its dispatches writes any more.

        Args:
            key: The run; its attempt does not matter.

        Returns:
            The last step that the run has journalled; None if it never came to that.
        """
        ...

    async def open_step(self, key: JournalKey, record: StepRecord) -> None:
        """Writes a reply and its calls down, before any of them runs.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def nest(
        self, key: JournalKey, step: int, record: NestedRecord, position: int, effect: ToolEffect
    ) -> None:
        """Writes a call of code down, before it runs.

        Args:
            key: The dispatch.
            step: Whose reply is journalled.
            record: The call.
            position: Which one of the code it is, from 1.
            effect: What its tool does.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def record(self, key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        """Writes results into the ledger.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A model that is ready to be called, with the settings that apply."""

    chat: ChatModel
    settings: ModelSettings


class Models(Protocol):
    """The configured chat models."""

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        """Chooses the model of an agent, and the key: its own, its project's or the settings'.

        Raises:
            ModelError: NOT_CONFIGURED, or AUTHENTICATION if a stored key cannot be opened;
                the message says what to do.
        """
        ...


class EventSink(Protocol):
    """Where events go."""

    async def emit(self, event: RunEvent) -> None:
        """Hands an event on; waits while the reader is behind."""
        ...


def _turn_work() -> TurnWork:
    return TurnWork(slots_of_short_work(_PARTS_AT_ONCE, "parts of turns"))


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that a turn is wired to.

    Attributes:
        approval_s: Seconds until a request for approval counts as denied, by default.
        images: Fetches images that clients name by URL; None if this server must not.
        work: Slots of the parts of a turn that this machine works for, in turn by project, those
            of memory agents last. They are not held while the turn waits for its model or its
            tools.
    """

    agents: Agents
    memory: Memory
    recall: Recall
    tools: Tools
    archival: Archival
    journal: Journal
    models: Models
    tokens: TokenEstimator
    clock: Clock
    approval_s: int = DEFAULT_APPROVAL_S
    images: ImageFetcher | None = None
    work: TurnWork = field(default_factory=_turn_work)
