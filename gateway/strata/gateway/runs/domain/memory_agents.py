"""Schedule of memory agents: when they run, and which messages they read. Pure.

An agent may have a memory agent, which reads the messages since it last read. Each conversation
has a mark: the last message that was read. A run of the memory agent reads a range after the mark
that is fixed when the run is queued; the mark moves when the run succeeds, in the same transaction.
There is one such run per conversation at a time, so no range is read twice and none is skipped.
The next run reads turns that end meanwhile.

The memory agent of a voice agent runs when the window is full, and reads its oldest messages, which
then leave the window. Archived messages are stored under a key of the range, so a range stays the
same until a run of it succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from strata.gateway.runs.domain.principals import Principal
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import Reason
from strata.shared.ids import default_conversation_id, new_id

MAX_RANGE = 500
"""Maximum number of messages that one run reads; the next run reads the rest."""

DOCUMENT_KEY = "document "
"""Prefix of the key of a file's mark, before the hash of its content. Conversation ids have no
spaces, so the keys never collide."""

MarkKey = tuple[str, str]
"""Agent and conversation of a mark: its place in a list."""
FIRST_MARK: MarkKey = ("", "")

_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """The oldest messages of a voice agent's window, which its memory agent can archive.

    Attributes:
        after_sequence: Sequence before the first message of the window when the turn began.
        until_sequence: Sequence of the last message that can leave; -1 if none can.
        until_message_id: Its id; empty if none can.
        full: Whether the window has more messages than allowed, or a compaction took some out.
    """

    after_sequence: int
    until_sequence: int
    until_message_id: str
    full: bool


@dataclass(frozen=True, slots=True)
class TendedTurn:
    """A turn of an agent that has a memory agent.

    Attributes:
        memory_agent_id: The memory agent.
        frequency: It runs after the first turn of a conversation and then after this number of
            turns; 0 if the buffer decides.
        message_id: The last message that the turn stored; empty if it stored none.
        sequence: Its sequence in the conversation; -1 if there is none.
        buffer: The buffer of a voice agent; None if the turn did not finish.
    """

    memory_agent_id: str
    frequency: int
    message_id: str = ""
    sequence: int = -1
    buffer: MessageBuffer | None = None

    @property
    def readable(self) -> tuple[int, str]:
        """Sequence and id of the last message that the memory agent can read; -1 for none."""
        if self.frequency:
            return self.sequence, self.message_id
        if self.buffer is None:
            return -1, ""
        return self.buffer.until_sequence, self.buffer.until_message_id

    @property
    def read_before(self) -> int:
        """The sequence after which a first run starts to read."""
        return -1 if self.buffer is None else self.buffer.after_sequence

    def is_due(self, mark: MemoryMark) -> bool:
        """Whether the memory agent runs after this turn, which the mark already counts."""
        if self.frequency:
            return mark.turns_counter % self.frequency == 0
        return self.buffer is not None and self.buffer.full


@dataclass(frozen=True, slots=True)
class TranscriptRead:
    """How far a run of a memory agent has read its range.

    Attributes:
        sequence: The last sequence that was read.
        message_id: Id of the message with that sequence, or of one before it.
    """

    sequence: int
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class MemoryMark:
    """Progress of a memory agent in a conversation.

    Attributes:
        agent_id: The agent of the conversation.
        conversation_id: The conversation.
        memory_agent_id: The memory agent.
        frequency: See `TendedTurn`.
        turns_counter: Finished turns since the agent has a memory agent, less one.
        newest_sequence: Last message of the finished turns; for a voice agent, the last message
            that can leave its window.
        newest_message_id: Id of that message.
        processed_sequence: Last message that was read; -1 for none.
        processed_message_id: Id of that message, or of one before it.
        due: Whether another run follows the open one.
        run_id: The last run; empty for none.
        run_count: Number of runs so far.
        until_sequence: End of the last run's range.
        until_message_id: Id of that message, or of one before it.
        failures: Number of consecutive failed runs.
        last_error: Error of the last of them.
        run_open: Whether the last run has not ended.
        run_at: Earliest start of the open run; None if none is open.
        file_id: The file that is read instead of a conversation; empty for a conversation. Its
            lines, from 0, replace the messages; `conversation_id` is the key of its content.
        file_name: Name of that file.
        block_label: The block of the agent that receives its content.
    """

    agent_id: str
    conversation_id: str
    memory_agent_id: str
    frequency: int
    turns_counter: int = -1
    newest_sequence: int = -1
    newest_message_id: str = ""
    processed_sequence: int = -1
    processed_message_id: str = ""
    due: bool = False
    run_id: str = ""
    run_count: int = 0
    until_sequence: int = -1
    until_message_id: str = ""
    failures: int = 0
    last_error: str = ""
    run_open: bool = False
    run_at: datetime | None = None
    file_id: str = ""
    file_name: str = ""
    block_label: str = ""

    @property
    def content_hash(self) -> str:
        """SHA-256 of the bytes of the file, in hex; empty for a conversation."""
        return self.conversation_id.removeprefix(DOCUMENT_KEY) if self.file_id else ""

    @property
    def pending(self) -> int:
        """Upper bound of the messages that no run has read."""
        return max(self.newest_sequence - self.processed_sequence, 0)

    @property
    def removes_messages(self) -> bool:
        """Whether messages leave the window after they are read, as for voice agents."""
        return self.frequency == 0

    def read_until(self, read: TranscriptRead | None) -> MemoryMark:
        """Returns the mark with its range limited to what the run reads.

        The next run reads the rest, which did not fit into the memory agent's context window.

        Args:
            read: How far; None for the whole range.
        """
        if read is None or not self.processed_sequence < read.sequence <= self.until_sequence:
            return self
        return replace(
            self,
            due=self.due or read.sequence < self.until_sequence,
            until_sequence=read.sequence,
            until_message_id=read.message_id or self.until_message_id,
        )

    def after_run(self, state: RunState, reason: str = "", message: str = "") -> MemoryMark:
        """Returns the mark after the end of its run.

        Args:
            state: Final state of the run.
            reason: Name of a `Reason` if it failed.
            message: Message of the failure.
        """
        match state:
            case RunState.FAILED if reason == Reason.AGENT_NOT_FOUND.value:
                # The memory agent was deleted; another one continues from here.
                return replace(self, due=False, run_open=False)
            case RunState.COMPLETED:
                return replace(
                    self,
                    processed_sequence=self.until_sequence,
                    processed_message_id=self.until_message_id,
                    due=self.due and self.newest_sequence > self.until_sequence,
                    failures=0,
                    last_error="",
                    run_open=False,
                )
            case RunState.FAILED:
                return replace(
                    self,
                    due=True,
                    failures=self.failures + 1,
                    last_error=f"{reason}: {message}",
                    run_open=False,
                )
            case _:
                # It was cancelled: the next due run reads the range.
                return replace(self, due=False, run_open=False)

    @property
    def pause_s(self) -> float:
        """Seconds until the next run may start; grows with consecutive failures."""
        if not self.failures:
            return 0.0
        return float(min(_FIRST_PAUSE_S * 2 ** min(self.failures - 1, 16), _LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """A run of a memory agent to queue.

    Attributes:
        id: Its id.
        agent_id: The memory agent.
        conversation_id: Its conversation.
        request_id: An id that is equal for the same range and try, and that no client can send.
        after: Sequence of the message, or number of the line, before the range to read.
        until: The last one of the range.
        pause_s: Seconds until it may start.
    """

    id: str
    agent_id: str
    conversation_id: str
    request_id: str
    after: int
    until: int
    pause_s: float


def next_run(mark: MemoryMark) -> tuple[MemoryMark, MemoryRun]:
    """Returns the mark with its next run, and that run, which reads the messages after the mark."""
    after = mark.processed_sequence
    until = mark.newest_sequence if mark.file_id else min(mark.newest_sequence, after + MAX_RANGE)
    # A repeated run must have the same range, so that messages are not archived twice.
    repeats = mark.removes_messages and mark.until_sequence > after and not mark.file_id
    if repeats:
        until = mark.until_sequence
    whole = until == mark.newest_sequence
    until_message_id = mark.newest_message_id if whole else mark.processed_message_id
    count = mark.run_count + 1
    run_id = new_id("run")
    run = MemoryRun(
        id=run_id,
        agent_id=mark.memory_agent_id,
        conversation_id=default_conversation_id(mark.memory_agent_id),
        # The mark, not this id, ensures that each range is read once. Deleting the memory agent
        # deletes the mark; the run id keeps later ids different from earlier ones.
        request_id=f"memory of {mark.conversation_id} {after} {until} {run_id}",
        after=after,
        until=until,
        pause_s=mark.pause_s,
    )
    marked = replace(
        mark,
        # The next run reads the messages that exceed the range.
        due=not whole and not repeats,
        run_id=run.id,
        run_count=count,
        until_sequence=until,
        until_message_id=mark.until_message_id if repeats else until_message_id,
        run_open=True,
    )
    return marked, run


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Maximum number of tokens per hour for runs of memory agents; 0 for no limit.

    Attributes:
        server: Limit of all projects together.
        project: Limit of each project.
    """

    server: int = 0
    project: int = 0


class MemoryRunStore(Protocol):
    """Marks of memory agents, and the queue of their runs."""

    async def memory_marks(
        self, project_id: str, agent_ids: Sequence[str], *, after: MarkKey = FIRST_MARK, limit: int
    ) -> Sequence[MemoryMark]:
        """Returns the marks of the conversations of agents, by agent and conversation.

        Args:
            project_id: The project.
            agent_ids: Agents with a memory agent, or memory agents.
            after: Only marks after this agent and conversation.
            limit: Maximum number of marks.
        """
        ...

    async def document_marks(self, project_id: str, agent_id: str) -> Sequence[MemoryMark]:
        """Returns the marks of the files that an agent's memory has read or is reading."""
        ...

    async def start_memory_run(
        self, project_id: str, agent_id: str, conversation_id: str
    ) -> MemoryMark | None:
        """Queues a run that reads the messages after the mark, or starts the open one now.

        Returns:
            The mark with the run; without an open run if there is nothing to read. None if no turn
            of the conversation has finished since the agent has a memory agent.
        """
        ...

    async def forget_memory_agent(self, project_id: str, agent_id: str) -> Sequence[str]:
        """Deletes the marks of a deleted agent, or of an agent whose memory agent was deleted.

        Returns:
            The open runs of those memory agents.
        """
        ...

    async def start_document(self, mark: MemoryMark, principal: Principal) -> MemoryMark | None:
        """Stores the mark of a file and queues the first run that reads it.

        Returns:
            The mark with the run; None if the agent has a mark of that content.
        """
        ...

    async def retire_document(self, project_id: str, agent_id: str, conversation_id: str) -> None:
        """Records that the agent that read a file is deleted; the mark stays."""
        ...

    async def claim_memory_runs(
        self, limit: int, *, held: Mapping[str, int], most: int, budget: MemoryBudget
    ) -> Sequence[tuple[str, str]]:
        """Claims queued runs of memory agents, the projects in turn, within the budget.

        Returns:
            Pairs of project and run id.
        """
        ...
