"""Makes a recording of a finished run from stored data.

Data that the run's events do not hold is read from the current state of the services. The window
has only the current system message; earlier ones are reconstructed from the changes in the events.
Whether all this is what the run received is checked by a replay: a request with the stored digest
equals the request that was sent. Parts with another digest are left out, which a note states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from strata.agent_loop.domain.agent.agents import Agent, ModelConfig, merge_tools
from strata.agent_loop.domain.agent.response_formats import (
    TEXT_FORMAT,
    ResponseFormat,
    ResponseFormatType,
)
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, ToolReturn
from strata.agent_loop.domain.model.chat import DEFAULT_ENDPOINT_TYPE, ModelSettings
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.ports import ArchivalStats
from strata.agent_loop.domain.run.request_digest import RequestDigest, digest_of_text
from strata.agent_loop.domain.run.runs import TranscriptRange
from strata.agent_loop.loop.model_requests import (
    NOT_AS_ASKED,
    TOO_LONG,
    WITHOUT_IMAGES,
    WITHOUT_NEW_IMAGES,
)
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.prompts.system_message import read_system
from strata.agent_loop.replay.evidence import Evidence, ModelCallEvidence
from strata.agent_loop.replay.recording import (
    RecordedStep,
    Recording,
    RunCall,
    SentRequest,
    ShownMemory,
)
from strata.agent_loop.replay.replay import replay, with_requests
from strata.agent_loop.rules.refusals import NOT_RUN
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance, taint_of
from strata.shared.release import release
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import FILE_TOOLS, GROUP_TOOLS
from strata.shared.usage import Usage

_JSON_OBJECT = ResponseFormat(ResponseFormatType.JSON_OBJECT)
_PAGE = 500
_PAGES_BACK = 40
# A step stores at most a reply, its returns and a heartbeat.
_STEP_MESSAGES = 3


class Recorder:
    """Makes recordings.

    Args:
        ports: The services.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def record(self, evidence: Evidence) -> Recording:
        """Returns the recording of a run.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
            FailedPreconditionError: RUN_NOT_RECORDABLE.
            StrataError: A service cannot be reached.
        """
        turn = evidence.turn
        if evidence.end is None:
            raise not_recordable(turn.run_id, "it is not over, or its events are not stored")
        if not evidence.input_ids:
            raise not_recordable(turn.run_id, "it ended before its messages were stored")
        agent = await self._ports.agents.load(turn.agent_id, turn.conversation_id)
        own = await self._messages_of_run(evidence)
        inputs = [message for message in own if message.id in evidence.input_ids]
        if len(inputs) != len(evidence.input_ids):
            raise not_recordable(turn.run_id, "its messages are no longer stored")
        _check_tools(turn.run_id, own)
        steps = _steps_of(evidence, own)
        systems = await self._system_texts(evidence)
        steps = _with_memory(steps, systems, agent.system)
        first = next((step for step in steps if step.request is not None), None)
        opening = _first_digest(evidence, first)
        window = await self._window(evidence, first, opening, inputs)
        archival = ArchivalStats()
        if first is not None and first.request is not None:
            text = systems.get(first.request.digest.system)
            if text is not None:
                parts = read_system(text, agent.system)
                agent, archival = replace(agent, system=parts.base), parts.archival
            own_model = replace(agent.model, handle=_first_model(evidence, first))
            agent = replace(agent, model=own_model)
        tools = await self._ports.tools.resolve(
            merge_tools(agent.tools, FILE_TOOLS), skip_missing=True, run_id=turn.run_id
        )
        recording = Recording(
            turn=replace(
                turn,
                attempts=evidence.attempts,
                group_id=inputs[0].group_id,
                # Only such runs have no messages after the inputs.
                record_only=not evidence.steps
                and len(own) == len(inputs)
                and evidence.end.stop_reason is StopReason.END_TURN,
            ),
            agent=replace(agent, model_keys=(), metadata={}),
            models=await self._models(agent),
            tools=tools,
            window=window,
            inputs=tuple(inputs),
            system=_system_as_found(opening, systems),
            metadata_stale=opening is not None and opening.change is not None,
            message_count=inputs[0].sequence,
            archival=archival,
            steps=tuple(steps),
            end=evidence.end,
            build=release(),
            record_time=self._ports.clock.now(),
        )
        return await _verified(await _with_response_format(recording))

    async def _messages_of_run(self, evidence: Evidence) -> list[Message]:
        turn = evidence.turn
        last = evidence.last_sequence
        if not last:
            # Only its inputs were stored; they are somewhere before the newest message.
            last = (await self._ports.recall.get_window(turn.conversation_id)).message_count
        until = last + _STEP_MESSAGES
        messages: list[Message] = []
        before = last
        # Pages are read backwards, since the sequences of the inputs are not known.
        for _ in range(_PAGES_BACK):
            page = await self._range(turn.conversation_id, turn.agent_id, before - _PAGE, until)
            messages = [*page, *messages]
            ids = {message.id for message in messages}
            if ids.issuperset(evidence.input_ids) or before <= _PAGE:
                break
            until, before = before - _PAGE, before - _PAGE
        return [message for message in messages if message.run_id == turn.run_id]

    async def _range(
        self, conversation_id: str, agent_id: str, after: int, until: int
    ) -> Sequence[Message]:
        transcript_range = TranscriptRange(agent_id, conversation_id, max(after, -1), until)
        return await self._ports.recall.transcript(transcript_range)

    async def _system_texts(self, evidence: Evidence) -> dict[bytes, str]:
        """Returns the current and earlier system messages, by digest."""
        window = await self._ports.recall.get_window(evidence.turn.conversation_id)
        text = window.messages[0].text
        texts_by_digest = {digest_of_text(text): text}
        for after, change in evidence.all_changes:
            if (
                after in texts_by_digest
                and (before := change.undo(texts_by_digest[after])) is not None
            ):
                texts_by_digest.setdefault(change.before, before)
        return texts_by_digest

    async def _window(
        self,
        evidence: Evidence,
        first: RecordedStep | None,
        opening: RequestDigest | None,
        inputs: Sequence[Message],
    ) -> tuple[Message, ...]:
        """Returns the window at the start of the run."""
        if first is None or opening is None:
            return ()
        turn, start = evidence.turn, inputs[0].sequence
        made = first.summaries[0].sequence if first.summaries else None
        if made is not None and any(low <= made <= high for low, high in _pairs(opening)):
            return await self._window_before_summary(evidence, start)
        wanted = [
            sequence
            for low, high in _pairs(opening)
            for sequence in range(low, high + 1)
            if sequence < start
        ]
        if not wanted:
            return ()
        by_sequence: dict[int, Message] = {}
        for low, high in _pairs(opening):
            page = await self._range(turn.conversation_id, turn.agent_id, low - 1, high)
            by_sequence |= {message.sequence: message for message in page}
        if any(sequence not in by_sequence for sequence in wanted):
            raise not_recordable(turn.run_id, "messages in its window are no longer stored")
        return tuple(by_sequence[sequence] for sequence in wanted)

    async def _window_before_summary(self, evidence: Evidence, start: int) -> tuple[Message, ...]:
        """Returns the window of a run that was compacted before the first request.

        It held the previous summary, if any, all messages after those that this summary replaces,
        and pinned messages.
        """
        turn, until = evidence.turn, start - 1
        messages: list[Message] = []
        earlier: Message | None = None
        for _ in range(_PAGES_BACK):
            page = await self._range(turn.conversation_id, turn.agent_id, until - _PAGE, until)
            messages, until = [*page, *messages], until - _PAGE
            summaries = [m for m in messages if m.role is MessageRole.SUMMARY]
            earlier = summaries[-1] if summaries else None
            oldest = messages[0].sequence if messages else 0
            if until < 0 or (earlier is not None and oldest <= _last_summarised(earlier)):
                break
        last = -1 if earlier is None else _last_summarised(earlier)
        shown = [
            message
            for message in messages
            if message.role not in (MessageRole.SYSTEM, MessageRole.SUMMARY)
            and (message.sequence > last or message.pinned)
        ]
        return tuple(shown if earlier is None else [earlier, *shown])

    async def _models(self, agent: Agent) -> tuple[ModelSettings, ...]:
        handles = [agent.model.handle, *agent.model.fallback_models, agent.compaction.model]
        models = []
        # An empty handle means the server's default model, which gets its own handle.
        others = dict.fromkeys(handle for handle in handles[1:] if handle)
        for number, handle in enumerate(dict.fromkeys((handles[0], *others))):
            config = replace(agent.model, handle=handle, fallback_models=())
            if handle == agent.compaction.model and number:
                config = replace(agent.compaction.model_settings or ModelConfig(), handle=handle)
            try:
                bound = await self._ports.models.bind(config, agent.model_keys)
                settings = bound.settings
            except ModelError:
                # It is no longer configured; the loop needs only its context window.
                settings = ModelSettings(handle, DEFAULT_ENDPOINT_TYPE, handle.partition("/")[2])
                if config.context_window:
                    settings = replace(settings, context_window=config.context_window)
            models.append(replace(settings, handle=handle or settings.handle))
        return tuple(models)


def not_recordable(run_id: str, why: str) -> FailedPreconditionError:
    """Returns the error for a run that cannot be recorded."""
    return FailedPreconditionError(
        f"The run cannot be recorded: {why}.",
        reason=Reason.RUN_NOT_RECORDABLE,
        metadata={"run_id": run_id},
    )


def _check_tools(run_id: str, own: Sequence[Message]) -> None:
    """Refuses a run that called the tool of its group: the members at that time are not stored."""
    for message in own:
        request = message.approval_request
        for call in (*message.tool_calls, *(() if request is None else request.calls)):
            if call.name in GROUP_TOOLS:
                raise not_recordable(
                    run_id, f"it called {call.name}, which agents have only in runs of their group"
                )


def _refusals(evidence: Evidence, message_id: str) -> tuple[ModelErrorKind, ...]:
    """Returns how requests of a step were refused before the last one was sent."""
    steps = [step for step in evidence.steps if step.message_id == message_id]
    if any(reason.startswith(NOT_AS_ASKED) for step in steps for reason in step.restarts):
        # The last request holds the refused reply, which is not stored.
        raise not_recordable(
            evidence.turn.run_id,
            f"in step {steps[0].number} the model was asked to correct its reply",
        )
    if any(r.startswith(WITHOUT_NEW_IMAGES) for step in steps for r in step.restarts):
        # Which images it had accepted before is not stored.
        raise not_recordable(
            evidence.turn.run_id,
            f"in step {steps[0].number} the model was asked again without some of its images",
        )
    kinds = [
        ModelErrorKind.CONTEXT_OVERFLOW if reason == TOO_LONG else ModelErrorKind.IMAGES_REFUSED
        for step in steps
        for reason in step.restarts
        if reason == TOO_LONG or reason.startswith(WITHOUT_IMAGES)
    ]
    if kinds and any(step.failed_over for step in steps):
        raise not_recordable(
            evidence.turn.run_id,
            f"in step {steps[0].number} requests were refused, and another model was asked",
        )
    return tuple(kinds)


def _steps_of(evidence: Evidence, own: Sequence[Message]) -> list[RecordedStep]:
    grouped: dict[str, list[Message]] = {}
    for message in own:
        if message.id not in evidence.input_ids and message.role is not MessageRole.SUMMARY:
            grouped.setdefault(message.step_id, []).append(message)
    summaries = dict(evidence.summaries)
    usages = iter(_summary_usages(evidence))
    steps = []
    for number, messages in enumerate(grouped.values(), start=1):
        reply = messages[0]
        call = _answered(evidence, reply.id)
        if reply.usage is not None and (call is None or call.digest is None):
            raise not_recordable(
                evidence.turn.run_id, "its release did not record the requests to models"
            )
        made = tuple(summaries.pop(number, ()))
        steps.append(
            RecordedStep(
                number,
                reply.model if reply.usage is not None else "",
                _sent(call) if reply.usage is not None else None,
                ShownMemory(taint=taint_of(reply.provenance)),
                made,
                tuple(usage for _, usage in zip(made, usages, strict=False)),
                tuple(messages),
                _run_calls(evidence, messages),
                _refusals(evidence, reply.id),
            )
        )
    failed = evidence.steps[-1] if evidence.steps else None
    if failed is not None and failed.number > len(steps):
        call = _answered(evidence, failed.message_id)
        if call is not None and call.digest is not None:
            number = len(steps) + 1
            made = tuple(summaries.pop(number, ()))
            refusals = _refusals(evidence, failed.message_id)
            steps.append(
                RecordedStep(number, call.model, _sent(call), summaries=made, refusals=refusals)
            )
    return steps


def _answered(evidence: Evidence, message_id: str) -> ModelCallEvidence | None:
    """Returns the answered request of a message, or else its last request."""
    calls = [call for call in evidence.calls if call.message_id == message_id and call.digest]
    answered = [call for call in calls if not call.lost] or calls
    return answered[-1] if answered else None


def _first_digest(evidence: Evidence, first: RecordedStep | None) -> RequestDigest | None:
    """Returns the digest of the first request of the run, answered or not."""
    if first is None:
        return None
    message_id = first.messages[0].id if first.messages else evidence.steps[-1].message_id
    calls = [call for call in evidence.calls if call.message_id == message_id]
    return next((call.digest for call in calls if call.digest is not None), None)


def _sent(call: ModelCallEvidence | None) -> SentRequest | None:
    if call is None or call.digest is None:
        return None
    return SentRequest(call.digest, call.start_ms)


def _summary_usages(evidence: Evidence) -> list[Usage]:
    replies = {step.message_id for step in evidence.steps}
    return [call.usage for call in evidence.calls if call.message_id not in replies]


def _run_calls(evidence: Evidence, messages: Sequence[Message]) -> tuple[RunCall, ...]:
    calls = []
    for tool_return in (
        tool_return for message in messages for tool_return in message.tool_returns
    ):
        if not _was_run(tool_return):
            continue
        name, arguments = evidence.started.get(tool_return.tool_call_id, (tool_return.name, None))
        if arguments is None:
            tool_calls = (call for message in messages for call in message.tool_calls)
            arguments = next(
                (c.arguments for c in tool_calls if c.id == tool_return.tool_call_id), ""
            )
        edits, duration = evidence.finished.get(tool_return.tool_call_id, ((), 0))
        calls.append(RunCall(tool_return.tool_call_id, name, arguments, edits, duration))
    return tuple(calls)


def _was_run(tool_return: ToolReturn) -> bool:
    """Returns whether a call reached the tools; returns of the loop itself are labelled SYSTEM."""
    if tool_return.provenance is not Provenance.SYSTEM or tool_return.status is ToolStatus.UNKNOWN:
        return not tool_return.returned_by
    return NOT_RUN in tool_return.content


def _with_memory(
    steps: Sequence[RecordedStep], systems: dict[bytes, str], base: str
) -> list[RecordedStep]:
    """Adds the memory section of each request to its step."""
    filled = []
    for step in steps:
        text = None if step.request is None else systems.get(step.request.digest.system)
        if text is None:
            filled.append(step)
            continue
        parts = read_system(text, base)
        shown = replace(
            step.memory,
            section=parts.section,
            last_modified=parts.last_modified,
            has_folders="\n<directories>\n" in f"\n{parts.section}",
        )
        filled.append(replace(step, memory=shown))
    return filled


def _system_as_found(digest: RequestDigest | None, systems: dict[bytes, str]) -> str:
    if digest is None:
        return next(iter(systems.values()))
    before = digest.system if digest.change is None else digest.change.before
    # Otherwise the nearest known text; the replay of the first request reveals the difference.
    return systems.get(before) or systems.get(digest.system) or next(iter(systems.values()))


def _first_model(evidence: Evidence, first: RecordedStep) -> str:
    started = [step.model for step in evidence.steps if step.model]
    return started[0] if started else first.model


def _last_summarised(summary: Message) -> int:
    parts = (part for part in summary.parts if isinstance(part, SummaryPart))
    return max((part.last_sequence for part in parts), default=0)


def _pairs(digest: RequestDigest) -> list[tuple[int, int]]:
    return list(zip(digest.window[::2], digest.window[1::2], strict=True))


async def _with_response_format(recording: Recording) -> Recording:
    """Returns a recording whose agent has the response format of the run.

    The format of the run is not stored: a message can ask for another format than its agent's, and
    the agent may have changed since. The digest of the first request's options shows whether it
    was the agent's format or one without a schema. If none matches, the agent keeps its own.
    """
    number = next((n for n, step in enumerate(recording.steps, 1) if step.request is not None), 0)
    if not number:
        return recording
    formats = (recording.agent.response_format, TEXT_FORMAT, _JSON_OBJECT)
    for response_format in dict.fromkeys(formats):
        agent = replace(recording.agent, response_format=response_format)
        candidate = replace(recording, agent=agent)
        opening = replace(candidate, steps=recording.steps[:number])
        replayed = await replay(opening, compares=False)
        request = with_requests(opening, replayed.requests).steps[-1].request
        if request is not None and request.text.options is not None:
            return candidate
    return recording


async def _verified(recording: Recording) -> Recording:
    """Returns a recording with the requests that a replay could reproduce."""
    replayed = await replay(recording, compares=False)
    # In a thread, since it hashes all messages of every request.
    recording = await asyncio.to_thread(with_requests, recording, replayed.requests)
    notes = []
    if replayed.difference is not None:
        where = replayed.difference.path
        notes.append(
            "The server that made this recording could not replay all of it:"
            f" {replayed.difference.summary} ({where})"
        )
    for name, (words, reason) in _PARTS.items():
        unknown = [
            str(step.number)
            for step in recording.steps
            if step.request is not None and getattr(step.request.text, name) is None
        ]
        if unknown:
            notes.append(
                f"{words} of the request of step {', '.join(unknown)} is not known: {reason}."
            )
    return replace(recording, notes=tuple(notes))


_CHANGED = "it has changed since, or the server was another build then"
_PARTS = {
    "system": ("The system message", _CHANGED),
    "options": (
        "What was offered (tools and options)",
        f"{_CHANGED}, or some of it came with the message or from the group of the run",
    ),
    "messages": ("What was shown of the conversation", _CHANGED),
}
