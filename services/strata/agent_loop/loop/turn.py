"""Runs one turn: begin, steps, end (docs/architecture.md#the-life-of-one-message).

The agent's loop (`loop.strategy`) decides which step ends the turn. Each step is stored as a whole
or not at all; a call is stored with its return or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeAlias

from strata.agent_loop.context.archival_counts import read_counts
from strata.agent_loop.context.memory_view import memory_view
from strata.agent_loop.context.tool_space import has_whole_servers, tool_space
from strata.agent_loop.domain.agent.agents import Agent, merge_tools
from strata.agent_loop.domain.conversation.messages import Message, MessageInput
from strata.agent_loop.domain.conversation.taint import taint_of_messages
from strata.agent_loop.domain.model.chat import ImagePart, JsonReply
from strata.agent_loop.domain.model.errors import ModelError
from strata.agent_loop.domain.ports import (
    ArchivalStats,
    BegunTurn,
    BoundModel,
    EventSink,
    MemorySection,
)
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.events import (
    ApprovalRequested,
    MessageStored,
    RunFinished,
    RunStarted,
    TendedTurn,
)
from strata.agent_loop.domain.run.journal import key_of
from strata.agent_loop.domain.run.runs import (
    DocumentRange,
    RunFailure,
    RunOutcome,
    RunRequest,
    TranscriptRange,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.approvals import continued_run, settled_steps
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.failures import (
    StepFailedError,
    ends_run,
    from_model_error,
    from_service_error,
    no_tool_call,
    nothing_archived,
    out_of_time,
)
from strata.agent_loop.loop.group_tools import in_run, with_members
from strata.agent_loop.loop.images import fetch_images
from strata.agent_loop.loop.shield import CLEANUP_S, shielded
from strata.agent_loop.loop.steps import StepInputs, Steps
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.loop.turn_rules import TurnRules
from strata.agent_loop.memory_inputs.documents import document_input
from strata.agent_loop.memory_inputs.message_buffer import buffer_of
from strata.agent_loop.memory_inputs.transcripts import read_of, read_transcript, reading_budget
from strata.agent_loop.memory_inputs.voice_transcripts import voice_transcript_input
from strata.protocol.errors import InvalidArgumentError, NotFoundError, StrataError, is_transient
from strata.shared.agent_types import AgentType
from strata.shared.ids import new_id
from strata.shared.json_schemas import UnusableSchemaError
from strata.shared.logs import get_logger
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance, Taint
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import FILE_TOOLS, MEMORIES_STORED, STORE_MEMORIES
from strata.shared.unstored_steps import step_not_stored
from strata.shared.usage import Usage

_SETTLE_S = 9.0
_LOOK_S = 0.1

_log = get_logger(__name__)

_Begun: TypeAlias = tuple[
    BegunTurn,
    MemorySection | StrataError,
    ToolSet | StrataError,
    ArchivalStats | StrataError | None,
]


class Turn:
    """One dispatch of a run.

    Args:
        ports: The services, stores and models that the turn uses.
        request: The run.
        sink: Receives the events.
        control: Cancellation, deadline and loss of the caller.
    """

    def __init__(
        self,
        ports: Ports,
        request: RunRequest,
        sink: EventSink,
        control: TurnControl | None = None,
    ) -> None:
        self._ports = ports
        self._work = ports.work.of(background=request.reads)
        self._request = request
        self._sink = sink
        self._control = control or control_of(request)
        self._key = key_of(request)
        self._arrived = ports.clock.monotonic()
        self._earlier_usage = Usage()
        self._begun: BegunTurn | None = None
        self._has_reported_begin = False
        self._steps: Steps | None = None
        self._agent: Agent | None = None
        self._rules: TurnRules | None = None

    async def run(self) -> None:
        """Runs the turn up to its `RunFinished` event.

        If the control is marked cancelled, cancelling the task stops the model and the tools and
        ends the run: a step with calls is stored, and interrupted calls are stored as UNKNOWN. Any
        other cancellation leaves the turn to the next attempt, with known results in the journal.

        Raises:
            CallerLostError: The caller disconnected, and the current step is stored.
            StrataError: The turn did not end: the agent is unknown, a newer attempt has taken
                over, or a service cannot be reached, so that another dispatch may continue.
        """
        try:
            if not self._control.cancelled:
                await self._run()
                return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._control.cancelled or task is None:
                raise
            while task.cancelling():
                task.uncancel()
        if self._steps is None and self._key.attempt > 1:
            await self._settle_if_possible()
        elif self._begun is not None and not self._has_reported_begin:
            await self._emit_begun(self._begun)
        if self._steps is not None and self._steps.unstored:
            raise step_not_stored()
        if self._control.late:
            await self._end(out_of_time().stop_reason, out_of_time().failure)
        else:
            await self._end(StopReason.CANCELLED, None)

    async def _run(self) -> None:
        if self._key.attempt > 1:
            await self._wait_for_earlier_attempt()
        async with self._work.slot():
            agent = await self._load()
            bound = await self._bind(agent)
            parts = await self._begin(agent, bound)
        if self._request.record_only:
            await self._end(StopReason.END_TURN, None)
            return
        try:
            async with asyncio.timeout(self._remaining()) as limit:
                self._control.limit = limit
                stop, failure = await self._drive(agent, bound, parts), None
                if stop is StopReason.NO_TOOL_CALL:
                    failure = no_tool_call().failure
                elif self._archives is not None:
                    await self._evict(self._archives)
        except StepFailedError as failed:
            stop, failure = failed.stop_reason, failed.failure
        except StrataError as error:
            if not ends_run(error):
                raise
            _log.warning("a service refused the turn", run_id=self._key.run_id, error=repr(error))
            stop, failure = StopReason.ERROR, from_service_error(error).failure
            if isinstance(error, NotFoundError) and await self._agent_is_gone():
                stop, failure = StopReason.CANCELLED, None
        except TimeoutError:
            if not limit.expired():
                raise
            stop, failure = out_of_time().stop_reason, out_of_time().failure
        await self._end(stop, failure)

    @property
    def _archives(self) -> TranscriptRange | None:
        """The range that a voice memory run archives and evicts; None for other runs."""
        if self._agent is None or self._agent.type is not AgentType.VOICE_SLEEPTIME:
            return None
        return self._request.transcript

    async def _evict(self, transcript_range: TranscriptRange) -> None:
        """Takes the archived messages out of the window of the voice agent.

        This happens before the run ends, which moves the memory agent's position. If the run is
        repeated in between, evicting again changes nothing.

        Raises:
            StepFailedError: The run has archived nothing.
            StrataError: Recall refused, or cannot be reached.
        """
        if self._rules is None or not self._rules.has_returned(STORE_MEMORIES, MEMORIES_STORED):
            raise nothing_archived()
        with contextlib.suppress(NotFoundError):
            # The conversation may have been deleted.
            await until_available(lambda: self._ports.recall.evict(transcript_range))

    async def _wait_for_earlier_attempt(self) -> None:
        """Waits while the dispatch before this one finishes its step without a caller.

        That dispatch marks the journal as finishing for a bounded time; the mark expires if its
        process dies. This attempt then fences off what is not stored yet.
        """
        try:
            async with asyncio.timeout(self._remaining()):
                while await self._earlier_attempt_finishes():  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            return

    async def _earlier_attempt_finishes(self) -> bool:
        return await until_available(lambda: self._ports.journal.is_finishing(self._key))

    async def _settle_if_possible(self) -> None:
        """Commits the step that an earlier attempt has journalled.

        Raises:
            UnavailableError: A step may be left, and recall is away; see `step_not_stored`.
        """
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self._settle()
        except (StrataError, TimeoutError) as error:
            if self._control.late or (isinstance(error, StrataError) and not is_transient(error)):
                raise
            if await self._ports.journal.resume(self._key, None) is not None:
                raise step_not_stored() from error

    async def _settle(self) -> None:
        """Commits the step that an earlier attempt of the cancelled run has journalled."""
        agent = await self._load()
        bound = await self._bind(agent)
        begun, _, toolset, _ = await self._begin(agent, bound)
        if isinstance(bound, ModelError) or not isinstance(toolset, ToolSet):
            _log.warning("a cancelled step cannot be stored", run_id=self._key.run_id)
            return
        rules = self._rules_of(agent, begun)
        start = StepInputs(agent, bound, begun, toolset, rules)
        self._steps = Steps(self._ports, self._request, self._sink, self._control, start)
        await self._steps.settle()

    async def _end(self, stop: StopReason, failure: RunFailure | None) -> None:
        usage, count = self._earlier_usage, 0
        taint: Taint = ()
        if self._begun is not None:
            begun = self._begun
            count = begun.committed_steps - settled_steps(begun.committed_messages)
            taint = taint_of_messages(begun.window.messages)
        if self._steps is not None:
            usage = usage + self._steps.usage
            count = max(count, self._steps.step - self._steps.settled)
            taint = self._steps.taint
        await self._note_buffer()
        await self._sink.emit(RunFinished(RunOutcome(stop, usage, count, failure, taint)))

    async def _note_buffer(self) -> None:
        """Emits the range of the window that a voice agent's memory agent can archive."""
        agent, begun = self._agent, self._begun
        if agent is None or begun is None or agent.buffer is None or not agent.memory_agent_id:
            return
        window = begun.window.messages if self._steps is None else self._steps.window
        buffer = buffer_of(window, agent.buffer, begun.window.messages)
        await self._sink.emit(TendedTurn(agent.memory_agent_id, agent.sleeptime_frequency, buffer))

    async def _agent_is_gone(self) -> bool:
        """Returns whether the agent, or its conversation, was deleted during the turn."""
        try:
            await self._ports.agents.load(self._key.agent_id, self._key.conversation_id)
        except NotFoundError:
            return True
        return False

    async def _load(self) -> Agent:
        stored = await self._ports.agents.load(self._key.agent_id, self._key.conversation_id)
        agent = in_run(stored, self._request.group_tool)
        self._agent = agent
        if agent.memory_agent_id:
            tended = TendedTurn(agent.memory_agent_id, agent.sleeptime_frequency)
            await self._sink.emit(tended)
        return agent

    async def _bind(self, agent: Agent) -> BoundModel | ModelError:
        try:
            return await self._ports.models.bind(agent.model, agent.model_keys)
        except ModelError as error:
            # Reported after the user's message is stored.
            return error

    async def _begin(self, agent: Agent, bound: BoundModel | ModelError) -> _Begun:
        inputs = self._inputs()
        if any(isinstance(part, ImagePart) for message in inputs for part in message.parts):
            inputs = await fetch_images(inputs, self._ports.images)
        # An approval response continues an earlier run, and a turn in a group continues the
        # conversation of the members: neither clears the window.
        continues = self._request.approval is not None or bool(self._request.group_id)
        clear = agent.message_buffer_autoclear and not continues
        # Each transcript is read in an empty window; after a failure it replaces the earlier one.
        clear = clear or self._request.reads
        model = bound if isinstance(bound, BoundModel) else None
        compiling = asyncio.ensure_future(
            self._ports.memory.compile(agent, memory_view(agent, model))
        )
        prompt_parts = (
            compiling,
            self._resolve_tools(agent, model, compiling),
            read_counts(self._ports.archival, agent.id),
        )
        if not self._request.reads:
            begin = self._begin_turn(inputs, clear=clear)
            begun, section, toolset, stats = await asyncio.gather(
                begin, *prompt_parts, return_exceptions=True
            )
        else:
            section, toolset, stats = await asyncio.gather(*prompt_parts, return_exceptions=True)
            # How much is read depends on the space that the prompt leaves.
            budget = reading_budget(
                agent,
                model,
                self._ports.tokens,
                section if isinstance(section, MemorySection) else None,
                toolset if isinstance(toolset, ToolSet) else None,
            )
            inputs = self._messages([await self._reading(budget)])
            begun = await self._begin_turn(inputs, clear=clear)
        for outcome in (begun, section, toolset, stats):
            if isinstance(outcome, BaseException) and not isinstance(outcome, StrataError):
                raise outcome
        if isinstance(begun, BaseException):
            raise begun
        if isinstance(toolset, ToolSet):
            toolset = with_members(toolset, self._request.group_tool)
        await self._emit_begun(begun)
        return begun, section, toolset, stats  # type: ignore[return-value]

    async def _resolve_tools(
        self, agent: Agent, model: BoundModel | None, compiling: asyncio.Future[MemorySection]
    ) -> ToolSet:
        """Returns the tools of the turn: those of whole servers as far as memory leaves space."""
        space = 0
        if has_whole_servers(agent):
            section = await asyncio.shield(compiling)
            space = tool_space(agent, model, self._ports.tokens, self._ports.clock, section)
        return await self._ports.tools.resolve(
            # The file tools are offered only if a folder is attached.
            merge_tools(agent.tools, FILE_TOOLS),
            skip_missing=True,
            run_id=self._key.run_id,
            max_bytes=space,
        )

    async def _begin_turn(self, inputs: Sequence[Message], *, clear: bool) -> BegunTurn:
        """Begins the turn in recall.

        A run that is cancelled meanwhile repeats the call: recall may have stored the inputs, and
        the events of the run must name them. Later attempts do so when they settle the run.
        """
        try:
            self._begun = await self._ports.recall.begin_turn(self._key, inputs, clear=clear)
        except asyncio.CancelledError:
            if self._control.over and self._key.attempt == 1:
                with contextlib.suppress(StrataError, TimeoutError):
                    await shielded(self._repeat_begin(inputs, clear=clear), seconds=CLEANUP_S)
            raise
        return self._begun

    async def _repeat_begin(self, inputs: Sequence[Message], *, clear: bool) -> None:
        self._begun = await self._ports.recall.begin_turn(self._key, inputs, clear=clear)

    async def _emit_begun(self, begun: BegunTurn) -> None:
        self._has_reported_begin = True
        ids = tuple(message.id for message in begun.inputs)
        if self._request.reads and (transcript_read := read_of(begun.inputs)) is not None:
            await self._sink.emit(transcript_read)
        await self._sink.emit(
            RunStarted(self._key.agent_id, self._key.conversation_id, self._key.attempt, ids)
        )
        for message in begun.committed_messages:
            if not message.hidden:
                await self._sink.emit(MessageStored(message))
            if message.usage is not None:
                self._earlier_usage += message.usage

    async def _drive(
        self,
        agent: Agent,
        bound: BoundModel | ModelError,
        parts: _Begun,
    ) -> StopReason:
        begun, section, toolset, stats = parts
        for part in (section, toolset, stats):
            if isinstance(part, StrataError):
                raise part
        assert isinstance(section, MemorySection)
        assert isinstance(toolset, ToolSet)
        assert not isinstance(stats, StrataError)
        rules = self._rules = self._rules_of(agent, begun)
        offered = toolset.offered(agent.tools, folders=section.has_folders)
        finished = None
        # A run that has only settled requests of earlier runs has not replied yet.
        if self._request.approval is not None or _has_reply(begun.committed_messages):
            finished = rules.finished(begun.committed_messages, offered)
        if finished is StopReason.REQUIRES_APPROVAL:
            approval_request = begun.committed_messages[-1].approval_request
            assert approval_request is not None
            await self._sink.emit(ApprovalRequested(approval_request))
        if finished is not None:
            return finished
        if isinstance(bound, ModelError):
            raise from_model_error(bound)
        start = StepInputs(agent, bound, begun, toolset, rules, stats)
        self._steps = Steps(self._ports, self._request, self._sink, self._control, start)
        return await self._steps.run(section)

    def _rules_of(self, agent: Agent, begun: BegunTurn) -> TurnRules:
        earlier = continued_run(begun.window.messages, self._request.approval)
        before = [m for m in begun.window.messages if earlier and m.run_id == earlier]
        return TurnRules(agent, (*before, *begun.committed_messages), self._json_reply(agent))

    def _json_reply(self, agent: Agent) -> JsonReply | None:
        response_format = self._request.response_format or agent.response_format
        try:
            return response_format.json_reply
        except UnusableSchemaError as error:
            # A release that checked schemas less strictly accepted it.
            raise InvalidArgumentError(
                f"The schema of the response format cannot be used: it {error}."
            ) from error

    def _remaining(self) -> float | None:
        if self._request.remaining_s is None:
            return None
        return self._request.remaining_s - (self._ports.clock.monotonic() - self._arrived)

    async def _reading(self, budget: int) -> MessageInput:
        """Returns the input message of a memory run: a transcript or a document."""
        if self._request.document is not None:
            return await self._document(self._request.document, budget)
        assert self._request.transcript is not None
        transcript_range, recall = self._request.transcript, self._ports.recall
        try:
            messages = await recall.transcript(transcript_range)
            if self._archives is None:
                return read_transcript(messages, transcript_range, budget).message
            window = await recall.get_window(transcript_range.conversation_id)
            return voice_transcript_input(messages, window.messages, transcript_range, budget)
        except NotFoundError:
            # The conversation was deleted after the run was queued.
            if self._archives is None:
                return read_transcript((), transcript_range, budget).message
            return voice_transcript_input((), (), transcript_range, budget)

    async def _document(self, document_range: DocumentRange, budget: int) -> MessageInput:
        try:
            document = await self._ports.memory.read_file(document_range, budget)
        except NotFoundError:
            # The file was deleted or its folder detached after the run was queued.
            document = None
        return document_input(document, document_range)

    def _inputs(self) -> list[Message]:
        answer = [
            Message(
                id=new_id("message"),
                role=MessageRole.APPROVAL,
                parts=(answer,),
                conversation_id=self._key.conversation_id,
                agent_id=self._key.agent_id,
                run_id=self._key.run_id,
                provenance=(Provenance.SYSTEM if answer.by_default else Provenance.USER,),
            )
            for answer in (self._request.approval,)
            if answer is not None
        ]
        return answer + self._messages(self._request.inputs)

    def _messages(self, inputs: Sequence[MessageInput]) -> list[Message]:
        return [
            Message(
                id=new_id("message"),
                role=message_input.role,
                parts=message_input.parts,
                conversation_id=self._key.conversation_id,
                agent_id=self._key.agent_id,
                name=message_input.name,
                run_id=self._key.run_id,
                group_id=self._request.group_id,
                provenance=(self._speaker(message_input.role, sender), *message_input.taint),
                client_message_id=message_input.client_message_id,
            )
            for message_input, sender in zip_longest(inputs, self._request.senders[: len(inputs)])
        ]

    def _speaker(self, role: MessageRole, sender_agent_id: str | None) -> Provenance:
        if self._request.sender_agent_id or sender_agent_id:
            return Provenance.MODEL
        return _SPEAKERS.get(role, Provenance.USER)


def _has_reply(committed: Sequence[Message]) -> bool:
    """Returns whether a stored message of the run is a model's reply."""
    return any(message.usage is not None for message in committed)


def control_of(request: RunRequest) -> TurnControl:
    """Returns the initial control of a turn."""
    late = request.cancelled and request.remaining_s is not None and request.remaining_s <= 0
    return TurnControl(cancelled=request.cancelled, late=late)


_SPEAKERS = {MessageRole.SYSTEM: Provenance.SYSTEM, MessageRole.ASSISTANT: Provenance.MODEL}
