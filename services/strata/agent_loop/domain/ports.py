"""Protocols of the services that a turn uses; `clients`, `store` and `models` implement them.

Every method may raise `strata.protocol.errors.StrataError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from strata.agent_loop.domain.agent.agents import Agent, ModelConfig
from strata.agent_loop.domain.agent.file_limits import FileLimits
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.model.chat import ChatModel, ModelSettings
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.run.events import RunEvent
from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord, StepRecord
from strata.agent_loop.domain.run.runs import DocumentLines, DocumentRange, TranscriptRange
from strata.agent_loop.domain.tools import ToolBatch, ToolEvent, ToolResult, ToolSet
from strata.shared.provenance import Taint
from strata.shared.tool_catalogue import ToolEffect


class Agents(Protocol):
    """The store of agents."""

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
        block_revisions: Revisions of the shown blocks, by label.
        has_folders: A folder is attached.
        taint: Untrusted labels of the shown blocks, by label of the block.
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
    """Limits of core memory in the prompt of an agent.

    Attributes:
        bytes: Maximum UTF-8 bytes of all blocks together.
        line_numbers: The model sees blocks with line numbers.
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
            max_bytes: Maximum UTF-8 bytes of the section; a larger section without open files is
                returned unchanged.
        """
        ...

    async def read_file(self, document_range: DocumentRange, max_bytes: int) -> DocumentLines:
        """Returns lines of a file in an agent's folder, after the start of a range.

        Raises:
            NotFoundError: FILE_NOT_FOUND.
        """
        ...


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """A turn that has begun.

    Attributes:
        window: The window with the inputs in it.
        inputs: The stored inputs.
        committed_steps: Number of steps that the run has committed.
        committed_messages: Messages of these steps.
    """

    window: Window
    inputs: Sequence[Message]
    committed_steps: int = 0
    committed_messages: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class StepCommit:
    """Everything that one step stores.

    Attributes:
        key: The run and its attempt.
        step: Number of the step, from 1.
        step_id: Id of the step.
        messages: In order; calls are followed by all their returns.
        system_text: The system message, if it was rebuilt for the step.
        metadata_stale: Whether the counts in the system message are outdated; None if unchanged.
    """

    key: JournalKey
    step: int
    step_id: str
    messages: Sequence[Message]
    system_text: str | None = None
    metadata_stale: bool | None = None


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A stored step.

    Attributes:
        messages: The messages.
        revision: Revision of the window after the step.
        message_count: Number of messages stored in the conversation.
    """

    messages: Sequence[Message]
    revision: int
    message_count: int


@dataclass(frozen=True, slots=True)
class WindowSwap:
    """Replaces a window by a smaller one with a summary.

    Attributes:
        conversation_id: The conversation of the window.
        key: The run that swaps it; None outside of a run.
        expected_revision: The revision of the window that the swap was planned on.
        summary: The summary to store.
        kept_ids: Ids of the messages that stay, in order, without the system message.
    """

    conversation_id: str
    key: JournalKey | None
    expected_revision: int
    summary: Message
    kept_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction.

    Attributes:
        window: The new window.
        summary: The stored summary in it.
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
            inputs: The input messages of the run.
            clear: First remove all messages but the system message and pinned ones from the
                window, once for a run.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        """Stores a step atomically; repeating it is harmless.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def swap_window(self, swap: WindowSwap) -> Window:
        """Stores a summary and the window that holds it, both or neither.

        Raises:
            AbortedError: STALE_ATTEMPT, REVISION_MISMATCH.
        """
        ...

    async def get_window(self, conversation_id: str) -> Window:
        """Returns the stored window."""
        ...

    async def evict(self, transcript_range: TranscriptRange) -> None:
        """Removes the messages of a range, and those before it, from the window.

        Raises:
            NotFoundError: WINDOW_NOT_FOUND.
        """
        ...

    async def transcript(self, transcript_range: TranscriptRange) -> Sequence[Message]:
        """Returns the stored messages of a range of a conversation, in order.

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
        """Returns the content at an https URL, truncated after the accepted size.

        Raises:
            InvalidArgumentError: The URL or its redirect target is not allowed.
            UnavailableError: The server cannot be reached, or its response is not usable.
        """
        ...


class Tools(Protocol):
    """The tools of a project and their executor."""

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        """Returns the definitions of tools.

        Args:
            names: The tools; a name such as "files__*" means all tools of an MCP server.
            skip_missing: Leave out tools that were deleted; the agent continues without them.
            run_id: The run that is offered the tools: all its attempts are offered the same tools
                of MCP servers. Empty for the current tools.
            max_bytes: Maximum bytes of all definitions; tools of whole MCP servers that do not fit
                are left out. 0 for no limit.

        Raises:
            NotFoundError: TOOL_NOT_FOUND.
        """
        ...

    def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Runs calls; each yields one `CallFinished`. Closing the generator kills running calls."""
        ...


@dataclass(frozen=True, slots=True)
class ArchivalStats:
    """Counts of archival memory.

    Attributes:
        passage_count: Number of passages in all archives of the agent.
        tags: The most used tags, most used first.
        more_tags: Number of other tags; `prompts.system_message.MOST_TAGS_COUNTED` means at least
            this number.
        taint: Untrusted labels of tags, by tag.
    """

    passage_count: int = 0
    tags: Sequence[str] = ()
    more_tags: int = 0
    taint: Mapping[str, Taint] = field(default_factory=dict)


class Archival(Protocol):
    """Archival memory."""

    async def stats(self, agent_id: str) -> ArchivalStats:
        """Returns the counts for the metadata of the system message."""
        ...


class Journal(Protocol):
    """The step journal, with the results of tool calls."""

    async def resume(self, key: JournalKey, step: int | None) -> StepRecord | None:
        """Takes the fence for a repeated dispatch; returns the step if it is journalled.

        Args:
            key: The dispatch.
            step: Number of the step; None for the last one that was journalled.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def mark_finishing(self, key: JournalKey, seconds: float) -> None:
        """Marks that a dispatch without a caller is still finishing its step.

        Args:
            key: The dispatch.
            seconds: After this time the mark expires; 0 removes it.

        Raises:
            AbortedError: STALE_ATTEMPT; the next attempt did not wait.
        """
        ...

    async def is_finishing(self, key: JournalKey) -> bool:
        """Returns whether an earlier dispatch of the run is still finishing its step."""
        ...

    async def close(self, key: JournalKey) -> StepRecord | None:
        """Fences off a finished run, so that none of its dispatches can write again.

        Args:
            key: The run; its attempt is ignored.

        Returns:
            The last step that the run journalled; None if there is none.
        """
        ...

    async def open_step(self, key: JournalKey, record: StepRecord) -> None:
        """Journals a reply and its calls, before any of them runs.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def nest(
        self, key: JournalKey, step: int, record: NestedRecord, position: int, effect: ToolEffect
    ) -> None:
        """Journals a nested call of code, before it runs.

        Args:
            key: The dispatch.
            step: The step whose reply runs the code.
            record: The call.
            position: Number of the call within the code, from 1.
            effect: Replay effect of its tool.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...

    async def record(self, key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        """Journals results of calls.

        Raises:
            AbortedError: STALE_ATTEMPT.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A model that is ready to be called, with its effective settings."""

    chat: ChatModel
    settings: ModelSettings


class Models(Protocol):
    """The configured chat models."""

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        """Chooses an agent's model and its API key: the agent's, the project's or the server's.

        Raises:
            ModelError: NOT_CONFIGURED, or AUTHENTICATION if a stored key cannot be decrypted;
                the message describes what to do.
        """
        ...


class EventSink(Protocol):
    """Receives the events of a run."""

    async def emit(self, event: RunEvent) -> None:
        """Emits an event; waits while the reader is behind."""
        ...
