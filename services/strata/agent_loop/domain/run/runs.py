"""The gateway's request for a turn (`RunRequest`), and the end of its run (`RunOutcome`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.agent_loop.domain.agent.groups import GroupTool
from strata.agent_loop.domain.agent.response_formats import ResponseFormat
from strata.agent_loop.domain.conversation.approvals import ApprovalResponse
from strata.agent_loop.domain.conversation.messages import MessageInput
from strata.protocol.errors import Reason
from strata.shared.provenance import Taint
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

DEFAULT_MAX_STEPS = 50


@dataclass(frozen=True, slots=True)
class TranscriptRange:
    """A part of a conversation that a memory agent reads.

    Attributes:
        agent_id: The agent of the conversation.
        conversation_id: The conversation.
        after_sequence: Only messages with a sequence above this one; -1 for all.
        until_sequence: Only messages up to this sequence.
    """

    agent_id: str
    conversation_id: str
    after_sequence: int
    until_sequence: int


@dataclass(frozen=True, slots=True)
class DocumentRange:
    """Lines of a file that a document ingestion agent reads.

    Attributes:
        agent_id: The agent to which the folder of the file is attached.
        file_id: The file.
        after_line: Only lines after this one, numbered from 0; -1 for all.
        until_line: Only lines up to this one.
        content_hash: Hash of the file's bytes; a changed file is not read. Empty for any.
    """

    agent_id: str
    file_id: str
    after_line: int
    until_line: int
    content_hash: str = ""


@dataclass(frozen=True, slots=True)
class DocumentLines:
    """Lines of a file.

    Attributes:
        name: ``FOLDER/FILE``.
        lines: The lines.
        left_out_chars: Number of characters that are left out of the first line.
        line_count: Number of lines of the file.
    """

    name: str
    lines: tuple[str, ...]
    left_out_chars: int
    line_count: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One dispatch of a turn.

    Attributes:
        run_id: The run.
        attempt: Number of the dispatch, from 1.
        agent_id: The agent.
        conversation_id: The conversation.
        inputs: Input messages for the agent.
        sender_agent_id: The agent that sent them; empty if no agent did.
        senders: The agent that wrote each input, in their order; empty, or missing at the end,
            for inputs that no agent wrote.
        group_id: The group in which the messages are exchanged; empty for none.
        record_only: Store the inputs without a reply.
        response_format: Format of the reply; None for the agent's format.
        group_tool: The tool that the group offers the agent; None for none.
        approval: An approval response, instead of inputs.
        transcript: The range that a memory agent reads, instead of inputs.
        document: The lines that a document ingestion agent reads, instead of inputs.
        max_steps: Maximum number of model calls.
        stream_tokens: Emit the pieces of the reply while it is streamed.
        remaining_s: Seconds from the arrival of the request to the deadline of the run; None for
            no deadline.
        cancelled: The run is cancelled: only a step that an earlier attempt left is stored.
    """

    run_id: str
    attempt: int
    agent_id: str
    conversation_id: str
    inputs: Sequence[MessageInput] = ()
    approval: ApprovalResponse | None = None
    transcript: TranscriptRange | None = None
    max_steps: int = DEFAULT_MAX_STEPS
    stream_tokens: bool = False
    sender_agent_id: str = ""
    remaining_s: float | None = None
    cancelled: bool = False
    senders: Sequence[str] = ()
    group_id: str = ""
    record_only: bool = False
    response_format: ResponseFormat | None = None
    group_tool: GroupTool | None = None
    document: DocumentRange | None = None

    @property
    def reads(self) -> bool:
        """Whether it is a memory run, which reads in the background with an empty window."""
        return self.transcript is not None or self.document is not None


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The error of a run, for the operator of the agent."""

    reason: Reason
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        taint: Untrusted labels of the context at the end.
    """

    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    failure: RunFailure | None = None
    taint: Taint = ()
