"""A recording: all data that a run received through its ports, sent and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import ModelRequest, ModelSettings
from strata.agent_loop.domain.model.errors import ModelErrorKind
from strata.agent_loop.domain.ports import ArchivalStats
from strata.agent_loop.domain.run.request_digest import (
    RequestDigest,
    digest_of_text,
    is_digest_of_messages,
    message_json,
    options_json,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.shared.memory_edits import MemoryEdit
from strata.shared.provenance import Taint
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

FORMAT = "strata-run-recording"
VERSION = 1
MAX_RECORDING_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a recording."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """The request of a run, without its inputs.

    Attributes:
        reads_transcript: It is a run of a memory agent.
        accept_time: When it was accepted.
        attempts: Number of its dispatches.
    """

    run_id: str
    agent_id: str
    conversation_id: str
    max_steps: int
    accept_time: datetime
    stream_tokens: bool = True
    group_id: str = ""
    record_only: bool = False
    reads_transcript: bool = False
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class RequestText:
    """A request in canonical JSON; unknown parts are None.

    Attributes:
        system: The text of the system message.
        options: Tools and all other options.
        messages: The messages after the system message.
    """

    system: str | None = None
    options: str | None = None
    messages: tuple[str, ...] | None = None

    @classmethod
    def of(cls, request: ModelRequest) -> RequestText:
        """Returns the canonical form of a request."""
        shown = tuple(message_json(message) for message in request.messages[1:])
        return cls(request.messages[0].text, options_json(request), shown)

    def matching(self, digest: RequestDigest) -> RequestText:
        """Returns the parts that match a digest; the others become None."""
        system, options, messages = self.system, self.options, self.messages
        if system is not None and digest_of_text(system) != digest.system:
            system = None
        if options is not None and digest_of_text(options) != digest.options:
            options = None
        if messages is not None and not is_digest_of_messages(digest.messages, messages):
            messages = None
        return RequestText(system, options, messages)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that was sent.

    Attributes:
        digest: Identifies its exact content.
        start_ms: When it was sent, in milliseconds from the acceptance of the run.
        text: The known parts of its text.
    """

    digest: RequestDigest
    start_ms: int = 0
    text: RequestText = field(default_factory=RequestText)


@dataclass(frozen=True, slots=True)
class ShownMemory:
    """Core memory as a request showed it; see `domain.ports.MemorySection`."""

    section: str = ""
    last_modified: datetime | None = None
    has_folders: bool = False
    taint: Taint = ()


@dataclass(frozen=True, slots=True)
class RunCall:
    """A call that was run."""

    tool_call_id: str
    name: str
    arguments: str
    memory_edits: tuple[MemoryEdit, ...] = ()
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step.

    Attributes:
        number: Number of the step in the run, from 1.
        model: Handle of the model that was asked; empty if none was.
        request: The last request, which was answered; None if no model was asked.
        memory: Core memory as the request showed it.
        summaries: Summaries that replaced older messages before the request.
        summary_usage: Tokens of the model calls that wrote them.
        messages: Stored messages; empty if the step failed.
        calls: The calls that were run.
        refusals: How the provider refused requests of the step before the last one.
    """

    number: int
    model: str = ""
    request: SentRequest | None = None
    memory: ShownMemory = field(default_factory=ShownMemory)
    summaries: tuple[Message, ...] = ()
    summary_usage: tuple[Usage, ...] = ()
    messages: tuple[Message, ...] = ()
    calls: tuple[RunCall, ...] = ()
    refusals: tuple[ModelErrorKind, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """How the run ended.

    Attributes:
        reason: Reason of the error; empty for none.
        message: Error text.
    """

    stop_reason: StopReason
    step_count: int
    usage: Usage = field(default_factory=Usage)
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording; see `RunRecording` in the protos.

    Attributes:
        models: The models that may be asked, the agent's own first, without keys and addresses.
        window: The window at the start of the run, without the system message and the inputs.
        system: The system message at the start of the run.
        message_count: Number of stored messages of the conversation when the run had begun.
        metadata_stale: The counts in the system message were outdated.
    """

    turn: RecordedTurn
    agent: Agent
    models: tuple[ModelSettings, ...]
    tools: ToolSet
    window: tuple[Message, ...]
    inputs: tuple[Message, ...]
    system: str
    message_count: int
    archival: ArchivalStats
    steps: tuple[RecordedStep, ...]
    end: RecordedEnd
    metadata_stale: bool = False
    build: str = ""
    record_time: datetime | None = None
    notes: Sequence[str] = ()
