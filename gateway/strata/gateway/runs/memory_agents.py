"""When memory agents run, and what they read. Pure.

An agent may have a memory agent, which reads what was said since it read last. Of each
conversation there is a mark: the last message that was read. A run of the memory agent reads a
range behind the mark that is fixed when the run is queued; the mark moves when the run ends well,
in the same transaction. There is one such run of a conversation at a time, so no range is read
twice and none is skipped. Turns that end meanwhile are read by the run after it.

The memory agent of a voice agent runs when the window is full, and reads the oldest messages of it,
which then leave the window. What it archives is stored under a key of the range: a range that was
given to a run stays as it is until a run of it has ended well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.gateway.runs.states import RunState
from strata.shared.errors import Reason
from strata.shared.ids import default_conversation_id, new_id

if TYPE_CHECKING:
    from strata.gateway.runs.domain import Principal

MAX_RANGE = 500
"""Messages that one run reads at most; what is left is read by the run after it."""

DOCUMENT_KEY = "document "
"""With the hash of its content, what a mark of a file has in place of a conversation. No id of a
conversation has a space."""

_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """The oldest messages of a voice agent's window, which its memory agent can archive.

    Attributes:
        after_sequence: Sequence below that of the first message of the window when the turn began.
        until_sequence: Sequence of the last message that can leave; -1 if none can.
        until_message_id: Its id; empty if none can.
        full: The window holds more messages than it may.
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
        frequency: It runs after the first turn of a conversation and then after every so many; 0
            if the buffer decides.
        message_id: The last message that the turn stored; empty if it stored none.
        sequence: Its sequence in the conversation; -1 if there is none.
        buffer: Of a voice agent; None if the turn did not come to its end.
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
        """Where a first run begins: behind this sequence."""
        return -1 if self.buffer is None else self.buffer.after_sequence

    def is_due(self, mark: MemoryMark) -> bool:
        """Says whether the memory agent runs after this turn, which the mark counts already."""
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
    """How far a memory agent has read a conversation.

    Attributes:
        agent_id: Whose conversation it is.
        conversation_id: The conversation.
        memory_agent_id: Who reads it.
        frequency: See `TendedTurn`.
        turns_counter: Turns that have ended since there is a memory agent, less one.
        newest_sequence: The last message of the turns that have ended; of a voice agent the last
            one that can leave its window.
        newest_message_id: Its id.
        processed_sequence: The last message that was read; -1 for none.
        processed_message_id: Its id, or of one before it.
        due: A run shall follow the one that is open.
        run_id: The last run; empty for none.
        run_count: How many runs there were.
        until_sequence: The end of the last run's range.
        until_message_id: Its id, or of one before it.
        failures: Runs that failed in a row.
        last_error: What the last of them failed with.
        run_open: The last run is not over.
        run_at: When the open run may begin; None if none is open.
        file_id: The file that is read in place of a conversation; empty for a conversation. Its
            lines, from 0, are what messages are of a conversation; `conversation_id` names its
            content.
        file_name: Its name.
        block_label: The block of the agent that is written.
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
        """Messages, at most, that no run has read."""
        return max(self.newest_sequence - self.processed_sequence, 0)

    @property
    def archives(self) -> bool:
        """Whether messages leave the window when they are read: the mark of a voice agent."""
        return self.frequency == 0

    def read_until(self, read: TranscriptRead | None) -> MemoryMark:
        """Returns the mark with the range of its run as far as the run reads it.

        The rest, which did not fit into the context window of the memory agent, is read by a run
        that follows at once.

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
            state: How it ended.
            reason: Name of a `Reason` if it failed.
            message: What went wrong then.
        """
        match state:
            case RunState.FAILED if reason == Reason.AGENT_NOT_FOUND.value:
                # The memory agent was taken away; another one goes on from here.
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
                # Somebody stopped it: the next turn that is due takes the range along.
                return replace(self, due=False, run_open=False)

    @property
    def pause_s(self) -> float:
        """Seconds until the next run may begin: it backs off while its runs fail."""
        if not self.failures:
            return 0.0
        return float(min(_FIRST_PAUSE_S * 2 ** min(self.failures - 1, 16), _LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """A run of a memory agent that is to be queued.

    Attributes:
        id: Its id.
        agent_id: The memory agent.
        conversation_id: Its conversation.
        request_id: The same for the same range and try. A client cannot send such an id.
        payload: What agent_loop needs.
        payload_hash: See `NewRun`.
        pause_s: Seconds until it may begin.
    """

    id: str
    agent_id: str
    conversation_id: str
    request_id: str
    payload: bytes
    payload_hash: bytes
    pause_s: float


def next_run(mark: MemoryMark) -> tuple[MemoryMark, MemoryRun]:
    """Returns the run that reads what is behind a mark, and the mark with it."""
    after = mark.processed_sequence
    until = mark.newest_sequence if mark.file_id else min(mark.newest_sequence, after + MAX_RANGE)
    # What an earlier run has archived of its range must not be archived again in another one.
    repeats = mark.archives and mark.until_sequence > after and not mark.file_id
    if repeats:
        until = mark.until_sequence
    whole = until == mark.newest_sequence
    until_message_id = mark.newest_message_id if whole else mark.processed_message_id
    conversation_id = default_conversation_id(mark.memory_agent_id)
    request = turn_pb.ExecuteRunRequest(
        agent_id=mark.memory_agent_id,
        conversation_id=conversation_id,
    )
    if mark.file_id:
        request.document.agent_id = mark.agent_id
        request.document.file_id = mark.file_id
        request.document.content_hash = mark.content_hash
        request.document.after_line, request.document.until_line = after, until
    else:
        request.transcript.agent_id = mark.agent_id
        request.transcript.conversation_id = mark.conversation_id
        request.transcript.after_sequence, request.transcript.until_sequence = after, until
    payload = request.SerializeToString(deterministic=True)
    count = mark.run_count + 1
    run_id = new_id("run")
    run = MemoryRun(
        id=run_id,
        agent_id=mark.memory_agent_id,
        conversation_id=conversation_id,
        # The mark, not this id, makes each range read once. Deleting the memory agent deletes the
        # mark: a count that starts again must not name a request that is known.
        request_id=f"memory of {mark.conversation_id} {after} {until} {run_id}",
        payload=payload,
        payload_hash=hashlib.sha256(payload).digest(),
        pause_s=mark.pause_s,
    )
    marked = replace(
        mark,
        # What does not fit into the range is read by the run after it.
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
    """Tokens that runs of memory agents may take in an hour; 0 for any number.

    Attributes:
        server: Of all projects together.
        project: Of one project.
    """

    server: int = 0
    project: int = 0


class MemoryRunStore(Protocol):
    """Marks of memory agents, and the queue of their runs."""

    async def memory_marks(self, project_id: str, agent_id: str) -> Sequence[MemoryMark]:
        """Returns the marks of the conversations of an agent, by conversation."""
        ...

    async def start_memory_run(
        self, project_id: str, agent_id: str, conversation_id: str
    ) -> MemoryMark | None:
        """Queues a run that reads what is behind the mark, or lets the open one begin now.

        Returns:
            The mark with the run; without an open run if there is nothing to read. None if no
            turn of the conversation has ended since the agent has a memory agent.
        """
        ...

    async def forget_memory_agent(self, project_id: str, agent_id: str) -> Sequence[str]:
        """Deletes the marks of a deleted agent, or of an agent whose memory agent was deleted.

        Returns:
            The open runs of memory agents that belong to them.
        """
        ...

    async def start_document(self, mark: MemoryMark, principal: Principal) -> MemoryMark | None:
        """Stores the mark of a file and queues the first run that reads it.

        Returns:
            The mark with the run; None if the agent has a mark of that content.
        """
        ...

    async def retire_document(self, project_id: str, agent_id: str, conversation_id: str) -> None:
        """Notes that the agent that has read a file is deleted; the mark stays."""
        ...

    async def claim_memory_runs(
        self, limit: int, *, held: Mapping[str, int], most: int, budget: MemoryBudget
    ) -> Sequence[tuple[str, str]]:
        """Takes queued runs of memory agents, the projects in turn, within the budget.

        Returns:
            Project and id of each.
        """
        ...
