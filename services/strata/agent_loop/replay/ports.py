"""Implements the ports of the loop over a recording: returns recorded answers and compares calls.

No model, tool, database or other service is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from strata.agent_loop.domain.agent.agents import Agent, ModelConfig
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, ToolReturn, Window
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ImagePart,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ReasoningPart,
    ReplyPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.ports import (
    ArchivalStats,
    BegunTurn,
    BoundModel,
    CommittedStep,
    MemorySection,
    MemoryView,
    StepCommit,
    WindowSwap,
)
from strata.agent_loop.domain.run.events import RunEvent, RunFinished
from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord, StepRecord
from strata.agent_loop.domain.run.runs import DocumentLines, DocumentRange, TranscriptRange
from strata.agent_loop.domain.tools import (
    CallFinished,
    CallStarted,
    ToolBatch,
    ToolEvent,
    ToolResult,
    ToolSet,
)
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.models.tokens import TokenEstimator, TokenKey
from strata.agent_loop.replay.differences import (
    compare_messages,
    compare_requests,
)
from strata.agent_loop.replay.recording import (
    RecordedStep,
    RequestText,
    RunCall,
)
from strata.agent_loop.replay.script import EndOfRecordingError, Script
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.messages import MessageRole
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.usage import Usage

_PLACEHOLDER = b"\0"


class RecordedAgents:
    """Implements `domain.ports.Agents`."""

    def __init__(self, script: Script) -> None:
        self._agent = script.recording.agent

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        """Returns the agent of the recording."""
        return self._agent


class RecordedMemory:
    """Implements `domain.ports.Memory`."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def compile(self, agent: Agent, view: MemoryView) -> MemorySection:
        """Returns the memory section of the next recorded request."""
        return self._script.section

    async def close_files(self, agent: Agent, view: MemoryView, max_bytes: int) -> MemorySection:
        """Returns the same section: the recorded request was made after the files were closed."""
        return self._script.section

    async def read_file(self, document_range: DocumentRange, max_bytes: int) -> DocumentLines:
        """Raises NotFoundError: the text that the run read is in its stored input."""
        raise NotFoundError("A recording holds no files.", reason=Reason.FILE_NOT_FOUND)


class RecordedArchival:
    """Implements `domain.ports.Archival`."""

    def __init__(self, script: Script) -> None:
        self._stats = script.recording.archival

    async def stats(self, agent_id: str) -> ArchivalStats:
        """Returns the recorded counts."""
        return self._stats


class RecordedRecall:
    """Implements `domain.ports.Recall`: compares new messages, and continues with recorded ones."""

    def __init__(self, script: Script) -> None:
        recording = script.recording
        self._script = script
        self._stale = recording.metadata_stale
        system = Message("message-system", MessageRole.SYSTEM, (TextPart(recording.system),))
        self._messages = [system, *recording.window]
        self._revision = 1
        self._count = recording.message_count

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        """Returns the recorded window, after comparing the inputs."""
        stored = self._script.recording.inputs
        if not self._script.recording.turn.reads_transcript:
            # Images are fetched before they are stored, which a replay does not do.
            messages_without_images = [without_images(message) for message in stored]
            self._script.check(compare_messages("inputs", messages_without_images, inputs))
        self._add(stored)
        return BegunTurn(self._window(key.conversation_id), stored)

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        """Returns the recorded messages of the step, if this build stores the same."""
        step = self._script.step
        if step is None or not step.messages:
            raise self._script.ended(f"stores step {commit.step}")
        path = self._script.path("messages")
        self._script.check(compare_messages(path, step.messages, commit.messages))
        self._script.done += 1
        self._add(step.messages)
        return CommittedStep(step.messages, self._revision, self._count)

    async def swap_window(self, swap: WindowSwap) -> Window:
        """Replaces the messages that this build evicts by the recorded summary."""
        script, step = self._script, self._script.step
        if step is None or script.summarised >= len(step.summaries):
            script.differs(
                "summaries", "This build compacts the window here; the recorded run did not."
            )
        assert step is not None
        summary = step.summaries[script.summarised]
        script.summarised += 1
        by_id = {message.id: message for message in self._messages}
        kept_messages = [by_id[kept_id] for kept_id in swap.kept_ids]
        self._messages = [self._messages[0], summary, *kept_messages]
        self._revision += 1
        self._count += 1
        return self._window(swap.conversation_id)

    async def get_window(self, conversation_id: str) -> Window:
        """Returns the window."""
        return self._window(conversation_id)

    async def evict(self, transcript_range: TranscriptRange) -> None:
        """Does nothing: a recording does not hold the window of the voice agent."""

    async def transcript(self, transcript_range: TranscriptRange) -> Sequence[Message]:
        """Returns nothing: the recording holds the input that was made from the transcript."""
        return ()

    async def image(self, image_id: str) -> bytes:
        """Returns placeholder bytes."""
        return _PLACEHOLDER

    def _add(self, messages: Sequence[Message]) -> None:
        self._messages.extend(messages)
        self._revision += 1
        self._count += len(messages)
        self._script.summarised = self._script.refused = 0

    def _window(self, conversation_id: str) -> Window:
        return Window(
            conversation_id,
            self._script.recording.agent.id,
            self._revision,
            tuple(self._messages),
            self._count,
            self._stale,
        )


class RecordedTools:
    """Implements `domain.ports.Tools`: no tool is run."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        """Returns the tools of the recording."""
        return self._script.recording.tools

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Returns the recorded results, if the calls equal the recorded ones."""
        for call in batch.calls:
            result = self._result(call)
            yield CallStarted(call.id, call.name, call.arguments)
            yield CallFinished(result)

    def _result(self, call: ToolCall) -> ToolResult:
        script, step = self._script, self._script.step
        calls = step.calls if step is not None else ()
        run = next((call_run for call_run in calls if call_run.tool_call_id == call.id), None)
        returned = _returns(step).get(call.id)
        if run is None or returned is None:
            script.differs(
                "calls",
                f"This build runs {call.name}; the recorded run did not run this call.",
                returned.content if returned is not None else "",
                f"{call.name}({call.arguments})",
            )
        assert run is not None and returned is not None  # noqa: PT018
        self._check_arguments(calls.index(run), run, call)
        return ToolResult(
            returned,
            run.duration_ms,
            run.memory_edits,
            # Makes the loop read memory again if the next recorded request shows other memory.
            files_changed=not run.memory_edits and self._memory_changes(),
        )

    def _check_arguments(self, index: int, run: RunCall, call: ToolCall) -> None:
        if run.name != call.name:
            self._script.differs(f"calls[{index}].name", "The tool differs.", run.name, call.name)
        if run.arguments != call.arguments:
            self._script.differs(
                f"calls[{index}].arguments",
                f"The arguments of {call.name} differ.",
                run.arguments,
                call.arguments,
            )

    def _memory_changes(self) -> bool:
        steps = self._script.recording.steps[self._script.done :]
        sections = [step.memory for step in steps if step.request is not None]
        return len(sections) > 1 and sections[0] != sections[1]


class RecordedJournal:
    """Implements `domain.ports.Journal`: a replay is a single dispatch and needs no journal."""

    async def resume(self, key: JournalKey, step: int | None) -> StepRecord | None:
        """Returns nothing."""
        return None

    async def mark_finishing(self, key: JournalKey, seconds: float) -> None:
        """Notes nothing."""

    async def is_finishing(self, key: JournalKey) -> bool:
        """Returns False: no other dispatch is running."""
        return False

    async def close(self, key: JournalKey) -> StepRecord | None:
        """Returns nothing."""
        return None

    async def open_step(self, key: JournalKey, record: StepRecord) -> None:
        """Notes nothing."""

    async def nest(
        self, key: JournalKey, step: int, record: NestedRecord, position: int, effect: ToolEffect
    ) -> None:
        """Notes nothing."""

    async def record(self, key: JournalKey, step: int, results: Sequence[ToolResult]) -> None:
        """Notes nothing."""


class RecordedModel:
    """A chat model that returns the recorded replies.

    Args:
        script: The replay.
        handle: Handle of the model.
    """

    def __init__(self, script: Script, handle: str) -> None:
        self._script = script
        self._handle = handle

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Compares a request with the recorded one, and returns the recorded reply."""
        if self._asks_for_summary(request):
            yield self._summary()
            return
        script, step = self._script, self._script.step
        if step is None or step.request is None:
            raise script.ended("asks the model once more")
        if (
            step.model != self._handle
            and step.model in script.recording.agent.model.fallback_models
        ):
            # The recorded model failed too, since a fallback model answered.
            raise ModelError(ModelErrorKind.UNAVAILABLE, f"{self._handle} did not answer.")
        if step.model != self._handle:
            script.differs("model", "Another model is asked.", step.model, self._handle)
        if script.refused < len(step.refusals):
            script.refused += 1
            raise ModelError(step.refusals[script.refused - 1], "The provider refused the request.")
        if script.summarised < len(step.summaries):
            script.differs(
                "summaries",
                "The recorded run compacted the window here; this build does not.",
                step.summaries[script.summarised].text,
            )
        text = script.shared(RequestText.of(request))
        # Yields to other tasks of the server, since a replay never waits.
        await asyncio.sleep(0)
        if len(script.captured) <= script.done:
            script.captured += [RequestText()] * (script.done + 1 - len(script.captured))
        script.captured[script.done] = text
        if script.compares:
            path = script.path("request")
            script.check(compare_requests(path, step.request.text, text))
        if not step.messages:
            # The recorded step failed for an external reason, which is not compared.
            raise EndOfRecordingError
        yield self._reply(step)

    def _asks_for_summary(self, request: ModelRequest) -> bool:
        script, step = self._script, self._script.step
        if step is None or script.summarised >= len(step.summaries) or request.tools:
            return False
        system = script.recording.agent.system
        return not (system and request.messages[0].text.startswith(system[:200]))

    def _summary(self) -> ModelReply:
        step, index = self._script.step, self._script.summarised
        assert step is not None
        text = "".join(p.text for p in step.summaries[index].parts if isinstance(p, SummaryPart))
        usage = step.summary_usage[index] if index < len(step.summary_usage) else Usage()
        return ModelReply((TextPart(text),), (), FinishReason.STOP, usage, self._handle)

    def _reply(self, step: RecordedStep) -> ModelReply:
        message, end = step.messages[0], self._script.recording.end.stop_reason
        content: list[ReplyPart] = [
            part for part in message.parts if isinstance(part, TextPart | ReasoningPart)
        ]
        request = message.approval_request
        tool_calls = message.tool_calls if request is None else request.calls
        calls = tuple(map(_as_written, tool_calls))
        last = self._script.done == len(self._script.recording.steps) - 1
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        if last and end is StopReason.MAX_TOKENS_EXCEEDED:
            finish = FinishReason.LENGTH
        return ModelReply(tuple(content), calls, finish, message.usage or Usage(), self._handle)


class RecordedModels:
    """Implements `domain.ports.Models`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._settings: Mapping[str, ModelSettings] = {
            settings.handle: settings for settings in script.recording.models
        }

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        """Returns a model of the recording.

        Raises:
            ModelError: NOT_CONFIGURED: the model is not in the recording.
        """
        handle = config.handle or self._script.recording.models[0].handle
        settings = self._settings.get(handle)
        if settings is None:
            raise ModelError(ModelErrorKind.NOT_CONFIGURED, f"{handle} is not in the recording.")
        return BoundModel(RecordedModel(self._script, handle), settings)


class RecordedTokens(TokenEstimator):
    """Estimates tokens with the ratio of bytes to tokens that was recorded for each request."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def ratio(self, key: TokenKey) -> float:
        """See `TokenEstimator.ratio`."""
        return self.learnt(key) or super().ratio(key)

    def learnt(self, key: TokenKey) -> float | None:
        """See `TokenEstimator.learnt`."""
        request = self._script.request
        return None if request is None else request.digest.bytes_per_token or None


class RecordedClock:
    """Implements `strata.shared.clock.Clock`: returns the time of the next recorded request."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def now(self) -> datetime:
        """Returns when the next recorded request was sent."""
        return self._script.now

    def monotonic(self) -> float:
        """Returns a constant."""
        return 0.0


class OutcomeSink:
    """Implements `domain.ports.EventSink`: keeps how the run ended."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def emit(self, event: RunEvent) -> None:
        """Stores the outcome of a `RunFinished` event."""
        if isinstance(event, RunFinished):
            self._script.outcome = event.outcome


def ports_of(script: Script) -> Ports:
    """Returns the ports of a replay."""
    return Ports(
        agents=RecordedAgents(script),
        memory=RecordedMemory(script),
        recall=RecordedRecall(script),
        tools=RecordedTools(script),
        archival=RecordedArchival(script),
        journal=RecordedJournal(),
        models=RecordedModels(script),
        tokens=RecordedTokens(script),
        clock=RecordedClock(script),
    )


def without_images(message: Message) -> Message:
    """Returns an input without its images."""
    parts = tuple(part for part in message.parts if not isinstance(part, ImagePart))
    return replace(message, parts=parts)


def _returns(step: RecordedStep | None) -> dict[str, ToolReturn]:
    messages = step.messages if step is not None else ()
    return {
        tool_return.tool_call_id: tool_return
        for message in messages
        for tool_return in message.tool_returns
    }


def _as_written(call: ToolCall) -> ToolCall:
    """Returns a call with the heartbeat that the model wrote into its arguments."""
    if not call.request_heartbeat:
        return call
    text = call.arguments.strip()
    inner = text[1:-1].strip() if text.startswith("{") and text.endswith("}") else ""
    arguments = f'{{{inner}{", " if inner else ""}"request_heartbeat": true}}'
    return replace(call, arguments=arguments, request_heartbeat=None)
