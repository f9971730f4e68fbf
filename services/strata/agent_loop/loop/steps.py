"""Runs the steps of a turn: ask the model, run its calls, commit; repeat until the turn ends.

Invariants 2 to 4 of docs/architecture.md are kept here: a step commits atomically, after a crash it
resumes from the journal, and a call is never stored without its return.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.summarizer import Summarizer
from strata.agent_loop.context.packaging import (
    CANCELLED,
    TIMED_OUT,
)
from strata.agent_loop.context.requests import Offer
from strata.agent_loop.context.token_budget import FILES_SHARE, LEAST_SEARCH_BYTES, SEARCH_SHARE
from strata.agent_loop.context.tool_space import fitting_tools, tool_space
from strata.agent_loop.context.working_window import WorkingWindow
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint import sources_of, taint_of_messages
from strata.agent_loop.domain.model.chat import FinishReason, ToolCall
from strata.agent_loop.domain.ports import (
    ArchivalStats,
    BegunTurn,
    BoundModel,
    CommittedStep,
    EventSink,
    MemorySection,
    StepCommit,
)
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.events import (
    ApprovalRequested,
    MessageStored,
    StepStarted,
    ToolFinished,
)
from strata.agent_loop.domain.run.journal import StepRecord, key_of
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import (
    CallingGroup,
    OlderLines,
    PromptSnapshot,
    ToolResult,
    ToolSet,
)
from strata.agent_loop.loop.approvals import (
    OpenRequest,
    coming_taint,
    decided,
    open_requests,
    request_for,
    settled_steps,
)
from strata.agent_loop.loop.calls import tidy
from strata.agent_loop.loop.control import TurnControl
from strata.agent_loop.loop.failures import nothing_to_answer
from strata.agent_loop.loop.fallbacks import ModelChain
from strata.agent_loop.loop.images import load_images
from strata.agent_loop.loop.memory_in_prompt import MemoryInPrompt, has_unknown_outcome
from strata.agent_loop.loop.model_requests import ModelRequester, StepName
from strata.agent_loop.loop.priority import Work
from strata.agent_loop.loop.shield import CLEANUP_S, shielded
from strata.agent_loop.loop.step_calls import StepCalls, effects
from strata.agent_loop.loop.step_messages import StepMessages
from strata.agent_loop.loop.tool_context import ToolContext
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.loop.turn_rules import StepRules, TurnRules
from strata.agent_loop.memory_inputs.voice_transcripts import older_lines
from strata.agent_loop.models.tokens import tools_bytes
from strata.agent_loop.prompts.parts import parts_of
from strata.protocol.errors import StrataError, is_transient
from strata.shared.agent_types import AgentType
from strata.shared.ids import new_id
from strata.shared.logs import get_logger
from strata.shared.messages import MessageRole
from strata.shared.provenance import Taint, taint_of
from strata.shared.record_fields import replace
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The data that a turn has read before its first step.

    Attributes:
        agent: The agent.
        bound: Its model.
        begun: The window and the inputs, as recall returned them.
        tools: All tools of the agent.
        rules: The tool rules.
        stats: The agent's archival counts, if they were read.
    """

    agent: Agent
    bound: BoundModel
    begun: BegunTurn
    tools: ToolSet
    rules: TurnRules
    stats: ArchivalStats | None = None


class Steps:
    """The steps of a turn that has begun.

    Args:
        ports: The services, stores and models that the turn uses.
        request: The run.
        sink: Receives the events.
        control: Cancellation, deadline and loss of the caller.
        start: The data that the turn has read before its first step.

    Attributes:
        step: Number of the current or last step; 0 before the first.
        settled: Steps of the run that settled approval requests without asking the model.
        unstored: Whether the last step of the cancelled run is journalled for a later attempt,
            since recall could not store it.
    """

    def __init__(
        self,
        ports: Ports,
        request: RunRequest,
        sink: EventSink,
        control: TurnControl,
        start: StepInputs,
    ) -> None:
        agent, begun = start.agent, start.begun
        self.step = 0
        self.unstored = False
        self.settled = settled_steps(begun.committed_messages)
        self._settling = False
        self._control = control
        self._journalled: StepRecord | None = None
        self._open_requests = open_requests(begun.window.messages)
        self._ports = ports
        self._work = ports.work.of(background=request.reads)
        self._request = request
        self._key = key_of(request)
        self._sink = sink
        self._start = start
        self._rules = start.rules
        self._step_messages = StepMessages(request, ports.clock, agent.timezone)
        self._window = WorkingWindow(agent, begun.window, start.stats, ports.clock)
        self._memory = MemoryInPrompt(ports.memory, agent, start.bound, start.tools, self._window)
        self._chain = ModelChain(ports.models, agent, start.bound)
        self._tools_fit = self._chain.handle
        summarizer = Summarizer(
            ports.models, ports.tokens, agent, lambda: self._chain.current, self._count_summary
        )
        compactor = Compactor(agent, summarizer, ports.recall, ports.clock, ports.telemetry)
        self._model_requester = ModelRequester(
            self._chain,
            ports.tokens,
            agent,
            sink,
            compact=functools.partial(compactor.compact, key=self._key),
            close_files=self._memory.close_files,
            load=functools.partial(load_images, recall=ports.recall),
            image_verdicts=ports.image_verdicts,
            stream_tokens=request.stream_tokens,
            json_replies=start.rules.json_replies,
        )

    @property
    def usage(self) -> Usage:
        """Tokens of the model calls of this dispatch, and of a resumed reply."""
        return self._model_requester.usage

    @property
    def taint(self) -> Taint:
        """Untrusted labels of the current context."""
        window = self._window
        return taint_of(
            taint_of_messages(window.messages),
            *self._memory.tainted_blocks.values(),
            *window.tainted_tags.values(),
        )

    @property
    def window(self) -> Sequence[Message]:
        """The window after the last step, the system message first."""
        return self._window.messages

    async def _count_summary(self, usage: Usage, handle: str) -> None:
        await self._model_requester.count(usage, new_id("message"), handle)

    async def run(self, section: MemorySection) -> StopReason:
        """Runs steps until the turn ends or the maximum of steps is reached.

        Raises:
            StepFailedError: A step failed.
            CallerLostError: The caller disconnected; no further step is started.
            StrataError: A service cannot be reached, or refused a call.
        """
        self._expect_answered()
        self.step = self._start.begun.committed_steps
        resumed = self._key.attempt == 1
        try:
            if not resumed:
                self._journalled = await self._ports.journal.resume(self._key, self.step + 1)
                resumed = True
            await self._model_requester.use(
                self._journalled.model if self._journalled else self._last_model()
            )
            return await self._make_steps(section)
        except asyncio.CancelledError:
            if self._control.over:
                if not resumed:
                    await self.settle()
                elif self._journalled is not None:
                    await self._settle_journalled(self._journalled)
            raise

    def _last_model(self) -> str:
        """Returns the model that answered last in this run; empty if none did.

        An attempt that takes over the run continues with it.
        """
        for message in reversed(self._start.begun.committed_messages):
            if message.role is MessageRole.ASSISTANT:
                return message.model
        return ""

    async def settle(self) -> None:
        """Commits the step that an earlier attempt has journalled, without starting calls."""
        self.step = self._start.begun.committed_steps
        journalled = await self._ports.journal.resume(self._key, self.step + 1)
        if journalled is not None:
            await self._settle_journalled(journalled)

    async def _settle_journalled(self, record: StepRecord) -> None:
        self._journalled = None
        self.step = record.step
        known_results, grants = None, None
        if self._open_requests:
            now, zone = self._ports.clock.now(), self._start.agent.timezone
            open_request = self._open_requests[0].up_to(self._key.run_id)
            known_results = open_request.known_results(
                self._key.run_id, now, zone, self._start.tools
            )
            grants = open_request.granted(self._key.run_id)
            self._settling = True
            self.settled += 1
        rules = self._rules.of(record, grants)
        calls = StepCalls(
            self._tool_context(record, rules), record, resumed=True, known_results=known_results
        )
        await self._commit_interrupted(record, calls)
        self._settling = False

    async def _make_steps(self, section: MemorySection) -> StopReason:
        resumed = self._journalled
        self._memory.show(section)
        for open_request in self._open_requests:
            self._control.check_attached()
            self.step += 1
            self.settled += 1
            stop = await self._settle(open_request, resumed)
            if stop is not None and not self._concerns_earlier_run(open_request, stop):
                return stop
            resumed = None
        while self.step < self._last_step:
            self._control.check_attached()
            self.step += 1
            stop = await self._step(self.step, resumed)
            if stop is not None:
                return stop
            resumed = None
        return StopReason.MAX_STEPS

    def _concerns_earlier_run(self, open_request: OpenRequest, stop: StopReason) -> bool:
        """Returns whether the stop concerns an earlier run only; this run must still reply."""
        ends = stop in (StopReason.END_TURN, StopReason.TOOL_RULE)
        return ends and open_request.answered_by != self._key.run_id

    @property
    def _last_step(self) -> int:
        return self._request.max_steps + self.settled

    def _expect_answered(self) -> None:
        """Checks that the run's approval response answers an open request."""
        answer = self._request.approval
        if answer is None or self.settled:
            return
        if all(
            open_request.request.approval_id != answer.approval_id
            for open_request in self._open_requests
        ):
            raise nothing_to_answer(answer.approval_id)

    async def _settle(
        self, open_request: OpenRequest, resumed: StepRecord | None
    ) -> StopReason | None:
        """Settles an approval request: runs the approved calls and stores all results."""
        now, zone = self._ports.clock.now(), self._start.agent.timezone
        if resumed is not None:
            # This run has journalled the calls, so its response counts.
            open_request = open_request.up_to(self._key.run_id)
        else:
            open_request = await decided(open_request, self._ports.journal, self._key, now)
        record = resumed or StepRecord(
            self.step,
            open_request.message.step_id or new_id("step"),
            new_id("message"),
            open_request.message.model,
            open_request.reply,
            effects(open_request.reply, self._memory.toolset),
            {},
            # The taint is the same as for the reply: nothing was added to its context since.
            replace(self._prompt_limits(), taint=taint_of(open_request.message.labels)),
            self._rules.rules,
        )
        rules = self._rules.of(record, open_request.granted(self._key.run_id))
        known_results = open_request.known_results(self._key.run_id, now, zone, self._start.tools)
        for result in known_results.values():
            await self._sink.emit(ToolFinished(result))
        self._settling = True
        stop = await self._run_calls(
            record, rules, resumed=resumed is not None, known_results=known_results
        )
        self._settling = False
        return stop

    async def _step(self, step: int, resumed: StepRecord | None) -> StopReason | None:
        record = resumed or await self._ask(step)
        if resumed is not None:
            taint = resumed.snapshot.taint
            await self._emit_started(
                step, resumed.step_id, resumed.message_id, taint, resumed.model
            )
            self._model_requester.usage += resumed.reply.usage
        is_cut_off = record.reply.finish_reason is FinishReason.LENGTH
        rules = self._rules.of(record)
        if not record.reply.tool_calls:
            messages = self._messages(record)
            stop, note = rules.ending(messages, self._memory.toolset.names)
            if is_cut_off:
                stop, note = StopReason.MAX_TOKENS_EXCEEDED, None
            if note:
                messages = self._messages(record, reminder=note)
            await self._commit_reply(record, messages)
            return stop
        if resumed is None:
            gated = rules.asks(record.reply, self._memory.toolset)
            if gated:
                return await self._ask_person(record, gated)
        stop = await self._run_calls(record, rules, resumed=resumed is not None)
        return StopReason.MAX_TOKENS_EXCEEDED if stop is None and is_cut_off else stop

    def _prompt_limits(self) -> PromptSnapshot:
        """Returns the limits for calls that open files or search."""
        section, files = self._memory.section, self._memory.view.files
        rules_bytes = len(parts_of(section.text)["tool rules"].text.encode("utf-8", "replace"))
        system_bytes = self._window.system_bytes - section.size + rules_bytes
        fixed = system_bytes + tools_bytes(self._rules.shown(self._memory.toolset).schemas)
        budget = self._model_requester.token_budget
        return PromptSnapshot(
            max_files_open=files.max_open,
            file_view_chars=files.view_chars,
            max_memory_bytes=max(
                1,
                int(budget.bytes_beside_messages(FILES_SHARE)) - fixed,
            ),
            max_search_bytes=max(LEAST_SEARCH_BYTES, int(budget.max_bytes * SEARCH_SHARE)),
        )

    async def _ask(self, step: int) -> StepRecord:
        await self._work.give_way()
        name = StepName(step, new_id("step"), new_id("message"))
        taint = self.taint
        await self._emit_started(step, name.step_id, name.message_id, taint, self._chain.handle)
        reply = await self._model_requester.ask(name, self._window, self._offer)
        reply = self._rules.taken(tidy(reply, self._window.call_ids), self._memory.toolset)
        tool_effects = effects(reply, self._memory.toolset)
        # The request may have closed files and read memory again.
        snapshot = replace(
            self._prompt_limits(), block_revisions=self._memory.section.block_revisions
        )
        return StepRecord(
            step,
            name.step_id,
            name.message_id,
            self._chain.handle,
            reply,
            tool_effects,
            {},
            replace(snapshot, taint=taint),
            self._rules.rules,
        )

    def _offer(self) -> Offer:
        """Returns what the current model is offered.

        The tools of whole servers were chosen for the agent's own model. A fallback model may have
        less space; its tools are chosen once, so that they stay the same in the following steps.
        """
        if self._chain.handle != self._tools_fit:
            self._tools_fit = self._chain.handle
            self._memory.limit_tools(self._tools_of(self._chain.current))
        return self._rules.offer(self._memory.toolset)

    def _tools_of(self, bound: BoundModel) -> ToolSet:
        agent, tools, ports = self._start.agent, self._start.tools, self._ports
        space = tool_space(agent, bound, ports.tokens, ports.clock, self._memory.section)
        used = {call.name for message in self._window.messages for call in message.tool_calls}
        fitting = fitting_tools(agent, tools, space, used)
        if left_out := len(tools.tools) - len(fitting.tools):
            _log.warning(
                "a fallback model has no space for all tools of MCP servers",
                run_id=self._key.run_id,
                model=bound.settings.handle,
                left_out=left_out,
            )
        return fitting

    async def _emit_started(
        self, step: int, step_id: str, message_id: str, taint: Taint, model: str
    ) -> None:
        await self._sink.emit(StepStarted(step_id, step, model, taint, message_id))

    async def _ask_person(self, record: StepRecord, gated: Sequence[ToolCall]) -> StopReason:
        """Stores the reply as an approval request; no call of it runs before the response."""
        calls = record.reply.tool_calls
        taint = (
            *coming_taint(calls, gated, self._memory.toolset),
            *sources_of(
                self._window.messages, self._memory.tainted_blocks, self._window.tainted_tags
            ),
        )
        names = {call.name for call in gated}
        request = request_for(
            calls,
            gated,
            self._memory.toolset,
            self._rules.timeouts(names, tainted=bool(taint)),
            self._ports.clock.now(),
            self._ports.approval_s,
            taint,
            default_approve=self._rules.approves_by_default(names, tainted=bool(taint)),
        )
        message = replace(
            self._assistant(record, {}),
            role=MessageRole.APPROVAL,
            parts=(*record.reply.content, request),
        )
        await self._commit_reply(record, [message])
        await self._sink.emit(ApprovalRequested(request))
        return StopReason.REQUIRES_APPROVAL

    async def _run_calls(
        self,
        record: StepRecord,
        rules: StepRules,
        *,
        resumed: bool,
        known_results: Mapping[str, ToolResult] | None = None,
    ) -> StopReason | None:
        """Runs the calls of a reply, commits the step, and reads memory that may have changed."""
        calls = StepCalls(
            self._tool_context(record, rules), record, resumed=resumed, known_results=known_results
        )
        self._journalled = None
        compiling: asyncio.Task[MemorySection] | None = None
        try:
            try:
                await self._work.give_way()
                await calls.journal_reply()
                await calls.run()
                messages, stop = self._ending(record, rules, calls)
                is_cut_off = record.reply.finish_reason is FinishReason.LENGTH
                outdated = any(map(self._memory.may_be_outdated_by, calls.results))
                if outdated and stop is None and not is_cut_off:
                    # The effects of the calls are stored; the commit changes nothing in memory.
                    compiling = asyncio.create_task(self._memory.compile())
                await self._commit(record, messages, calls.results, delayed=calls.journal_results)
            except asyncio.CancelledError:
                await self._keep_interrupted(record, calls)
                raise
            if compiling is not None:
                self._memory.show(await compiling)
        finally:
            if compiling is not None:
                compiling.cancel()
                await asyncio.gather(compiling, return_exceptions=True)
        return stop

    def _ending(
        self, record: StepRecord, rules: StepRules, calls: StepCalls
    ) -> tuple[list[Message], StopReason | None]:
        """Returns the messages that a step with calls stores, and how it ends the turn, if so."""
        messages = self._messages(record, calls)
        stop, note = rules.ending(messages, self._memory.toolset.names)
        return (self._messages(record, calls, reminder=note) if note else messages), stop

    def _tool_context(self, record: StepRecord, rules: StepRules) -> ToolContext:
        # Tools that were offered when the reply was made stay callable in a later dispatch.
        called = {call.name for call in record.reply.tool_calls if call.id in record.effects}
        toolset = self._start.tools.only({*self._memory.toolset.names, *called})
        ports, group_tool = self._ports, self._request.group_tool
        return ToolContext(
            ports.tools,
            ports.journal,
            self._sink,
            ports.clock,
            self._start.agent,
            self._key,
            toolset,
            rules,
            self._older_lines,
            CallingGroup(self._request.group_id, group_tool.members) if group_tool else None,
        )

    @functools.cached_property
    def _older_lines(self) -> OlderLines | None:
        """The older lines of the transcript, which a voice memory agent archives."""
        transcript = self._request.transcript
        if self._start.agent.type is not AgentType.VOICE_SLEEPTIME or transcript is None:
            return None
        return older_lines(transcript, self._start.begun.inputs)

    async def _keep_interrupted(self, record: StepRecord, calls: StepCalls) -> None:
        """Keeps the known results of an interrupted step."""
        if self._control.over:
            await self._commit_interrupted(record, calls)
        else:
            # Another attempt follows and finds the results of finished calls in the journal.
            await self._shielded(calls.journal_results())

    async def _commit_interrupted(self, record: StepRecord, calls: StepCalls) -> None:
        for result in calls.add_missing_results(
            TIMED_OUT if self._control.timed_out else CANCELLED
        ):
            await self._sink.emit(ToolFinished(result))
        messages = self._messages(record, calls)
        if not await self._commit_at_end(record, messages, calls.results):
            await self._keep_for_later(record, calls)

    async def _commit_reply(self, record: StepRecord, messages: list[Message]) -> None:
        """Commits a step none of whose calls runs.

        A run that ends during the commit repeats it: recall may have stored the reply, and the
        events of the run must hold each stored message.
        """
        try:
            await self._commit(record, messages)
        except asyncio.CancelledError:
            # A request for approval is not journalled: no later attempt may run its calls.
            if (
                self._control.over
                and not await self._commit_at_end(record, messages)
                and not record.reply.tool_calls
            ):
                await self._keep_for_later(record)
            raise

    async def _commit_at_end(
        self, record: StepRecord, messages: list[Message], results: Sequence[ToolResult] = ()
    ) -> bool:
        """Commits the last step of a run that is being ended; returns whether it is stored.

        A step that recall refuses counts as stored: no attempt can store it.
        """
        # Cleanup time is short: this commit does not yield to other turns.
        work = self._ports.work.of(background=False)
        error = await self._shielded(self._commit(record, messages, results, work))
        return error is None or (isinstance(error, StrataError) and not is_transient(error))

    async def _keep_for_later(self, record: StepRecord, calls: StepCalls | None = None) -> None:
        """Journals the last step of a cancelled run, so that a later attempt stores it."""
        if self._control.timed_out:
            return

        async def write() -> None:
            if calls is None or not calls.is_journalled:
                await self._ports.journal.open_step(self._key, record)
            if calls is not None:
                await calls.journal_results()

        self.unstored = await self._shielded(write()) is None

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> StrataError | TimeoutError | None:
        """Runs `work` although the turn is cancelled; returns the error that it failed with."""
        try:
            await shielded(work, seconds=CLEANUP_S)
        except (StrataError, TimeoutError) as error:
            # A newer attempt finds the step in the journal, if it was journalled.
            run_id = self._key.run_id
            _log.warning("an interrupted step was not stored", run_id=run_id, error=repr(error))
            return error
        return None

    async def _commit(
        self,
        record: StepRecord,
        messages: list[Message],
        results: Sequence[ToolResult] = (),
        work: Work | None = None,
        *,
        delayed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Commits a step and reports its messages.

        Args:
            record: The reply.
            messages: The messages of the step.
            results: The results of its calls.
            work: Makes the commit yield to other turns; by default the run's own.
            delayed: Called before the commit is repeated, since recall is unavailable.
        """
        stale = any(result.archival_changed or has_unknown_outcome(result) for result in results)
        commit = StepCommit(
            self._key,
            record.step,
            record.step_id,
            messages,
            self._window.unsaved_text,
            self._window.metadata_stale(changed=stale),
        )

        async def commit_step() -> CommittedStep:
            try:
                return await self._ports.recall.commit_step(commit)
            except StrataError as error:
                if delayed is not None and is_transient(error):
                    await delayed()
                raise

        # The provider charged for the reply: repeat the commit until recall takes or refuses it.
        async with (work or self._work).slot():
            committed = await until_available(commit_step)
        self._window.committed(committed)
        self._rules.take(committed.messages)
        for message in committed.messages:
            if not message.hidden:
                await self._sink.emit(MessageStored(message))

    def _messages(
        self, record: StepRecord, calls: StepCalls | None = None, *, reminder: str | None = None
    ) -> list[Message]:
        """Returns the messages that a step stores: the reply, its returns, and a heartbeat."""
        messages = [self._assistant(record, calls.overridden if calls is not None else {})]
        if calls is not None and record.reply.tool_calls:
            messages.append(self._step_messages.returns(record, calls.results))
        # After the last step the model would not see it.
        if reminder is not None and record.step < self._last_step:
            messages.append(self._step_messages.heartbeat(record, reminder))
        return messages

    def _assistant(self, record: StepRecord, overridden: Mapping[str, str]) -> Message:
        # Tokens of a settled reply were counted with its approval request.
        return self._step_messages.assistant(record, overridden, with_usage=not self._settling)
