"""Runs the steps of a turn: ask the model, run its calls, commit; repeat until the turn ends.

Invariants 2 to 4 of docs/architecture.md are kept here: a step commits atomically, after a crash it
resumes from the journal, and a call is never stored without its return.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.summarizer import Summarizer
from strata.agent_loop.context.memory_view import memory_view
from strata.agent_loop.context.packaging import (
    CANCELLED,
    TIMED_OUT,
    bounded_returns,
    limit_images,
    pack_heartbeat,
)
from strata.agent_loop.context.token_budget import FILES_SHARE, LEAST_SEARCH_BYTES, SEARCH_SHARE
from strata.agent_loop.context.working_window import WorkingWindow
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint import sources_of, taint_of_messages
from strata.agent_loop.domain.model.chat import FinishReason, TextPart, ToolCall
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
from strata.agent_loop.domain.tools import CallingGroup, PromptSnapshot, ToolResult, ToolSet
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
from strata.agent_loop.loop.model_requests import ModelRequester, StepName
from strata.agent_loop.loop.priority import Work
from strata.agent_loop.loop.shield import CLEANUP_S, shielded
from strata.agent_loop.loop.step_calls import StepCalls, effects
from strata.agent_loop.loop.tool_context import ToolContext
from strata.agent_loop.loop.turn_ports import Ports
from strata.agent_loop.loop.turn_rules import StepRules, TurnRules
from strata.agent_loop.memory_inputs.voice_transcripts import older_lines
from strata.agent_loop.models.tokens import tools_bytes
from strata.agent_loop.prompts.parts import parts_of
from strata.protocol.errors import StrataError, is_transient
from strata.protocol.images import MAX_IMAGES_BYTES
from strata.shared.agent_types import AgentType
from strata.shared.ids import new_id
from strata.shared.logs import get_logger
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance, Taint, taint_of
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

_log = get_logger(__name__)


class Steps:
    """The steps of a turn that has begun.

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
        agent: Agent,
        bound: BoundModel,
        begun: BegunTurn,
        toolset: ToolSet,
        rules: TurnRules,
        control: TurnControl,
        stats: ArchivalStats | None,
    ) -> None:
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
        self._agent = agent
        self._committed_steps = begun.committed_steps
        self._older_lines = None
        if agent.type is AgentType.VOICE_SLEEPTIME and request.transcript is not None:
            self._older_lines = older_lines(request.transcript, begun.inputs)
        self._known = toolset
        self._toolset = toolset
        self._rules = rules
        self._tainted_blocks: Mapping[str, Taint] = {}
        self._memory_view = memory_view(agent, bound)
        self._section = MemorySection("", None)
        self._chain = ModelChain(ports.models, agent, bound)
        # An attempt that takes over the run continues with the model that answered last.
        written = [m.model for m in begun.committed_messages if m.role is MessageRole.ASSISTANT]
        self._answered_by = written[-1] if written else ""
        self._window = WorkingWindow(agent, begun.window, stats, ports.clock)
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
            close_files=self._close_files,
            load=functools.partial(load_images, recall=ports.recall),
            stream_tokens=request.stream_tokens,
            json_replies=rules.json_replies,
        )

    @property
    def usage(self) -> Usage:
        """Tokens of the model calls of this dispatch, and of a resumed reply."""
        return self._model_requester.usage

    @property
    def taint(self) -> Taint:
        """Untrusted labels of the current context."""
        shown = taint_of_messages(self._window.messages)
        return taint_of(shown, *self._tainted_blocks.values())

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
        self.step = self._committed_steps
        resumed = self._key.attempt == 1
        try:
            if not resumed:
                self._journalled = await self._ports.journal.resume(self._key, self.step + 1)
                resumed = True
            await self._model_requester.use(
                self._journalled.model if self._journalled else self._answered_by
            )
            return await self._make_steps(section)
        except asyncio.CancelledError:
            if self._control.over:
                if not resumed:
                    await self.settle()
                elif self._journalled is not None:
                    await self._settle_journalled(self._journalled)
            raise

    async def settle(self) -> None:
        """Commits the step that an earlier attempt has journalled, without starting calls."""
        self.step = self._committed_steps
        journalled = await self._ports.journal.resume(self._key, self.step + 1)
        if journalled is not None:
            await self._settle_journalled(journalled)

    async def _settle_journalled(self, record: StepRecord) -> None:
        self._journalled = None
        self.step = record.step
        known_results, grants = None, None
        if self._open_requests:
            now, zone = self._ports.clock.now(), self._agent.timezone
            asked = self._open_requests[0].up_to(self._key.run_id)
            known_results = asked.known_results(self._key.run_id, now, zone, self._known)
            grants = asked.granted(self._key.run_id)
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
        self._show_memory(section)
        for asked in self._open_requests:
            self._control.check_attached()
            self.step += 1
            self.settled += 1
            stop = await self._settle(asked, resumed)
            if stop is not None and not self._concerns_earlier_run(asked, stop):
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

    def _concerns_earlier_run(self, asked: OpenRequest, stop: StopReason) -> bool:
        """Returns whether the stop concerns an earlier run only; this run must still reply."""
        ends = stop in (StopReason.END_TURN, StopReason.TOOL_RULE)
        return ends and asked.answered_by != self._key.run_id

    @property
    def _last_step(self) -> int:
        return self._request.max_steps + self.settled

    def _expect_answered(self) -> None:
        """Checks that the run's approval response answers an open request."""
        answer = self._request.approval
        if answer is None or self.settled:
            return
        if all(asked.request.approval_id != answer.approval_id for asked in self._open_requests):
            raise nothing_to_answer(answer.approval_id)

    async def _settle(self, asked: OpenRequest, resumed: StepRecord | None) -> StopReason | None:
        """Settles an approval request: runs the approved calls and stores all results."""
        now, zone = self._ports.clock.now(), self._agent.timezone
        if resumed is not None:
            # This run has journalled the calls, so its response counts.
            asked = asked.up_to(self._key.run_id)
        else:
            asked = await decided(asked, self._ports.journal, self._key, now)
        record = resumed or StepRecord(
            self.step,
            asked.message.step_id or new_id("step"),
            new_id("message"),
            asked.message.model,
            asked.reply,
            effects(asked.reply, self._toolset),
            {},
            # The taint is the same as for the reply: nothing was added to its context since.
            replace(self._prompt_limits(), taint=taint_of(asked.message.labels)),
            self._rules.rules,
        )
        rules = self._rules.of(record, asked.granted(self._key.run_id))
        known_results = asked.known_results(self._key.run_id, now, zone, self._known)
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
        cut = record.reply.finish_reason is FinishReason.LENGTH
        rules = self._rules.of(record)
        if not record.reply.tool_calls:
            stop, note = rules.ending(self._messages(record), self._toolset.names)
            if cut:
                stop, note = StopReason.MAX_TOKENS_EXCEEDED, None
            await self._commit_reply(record, self._messages(record, reminder=note))
            return stop
        if resumed is None:
            gated = rules.asks(record.reply, self._toolset)
            if gated:
                return await self._ask_person(record, gated)
        stop = await self._run_calls(record, rules, resumed=resumed is not None)
        return StopReason.MAX_TOKENS_EXCEEDED if stop is None and cut else stop

    def _show_memory(self, section: MemorySection) -> None:
        """Sets the memory section that the model sees from now on, and the tools it brings."""
        self._toolset = self._known.offered(self._agent.tools, folders=section.has_folders)
        self._section = section
        self._tainted_blocks = section.taint
        self._window.refresh(section)

    async def _close_files(self, excess: int) -> bool:
        """Closes open files to save `excess` bytes; returns False if no file is open."""
        section = self._section
        if not section.has_open_files:
            return False
        most = max(0, section.size - excess)
        closed = await self._ports.memory.close_files(self._agent, self._memory_view, most)
        self._show_memory(closed)
        return closed.size < section.size

    def _prompt_limits(self) -> PromptSnapshot:
        """Returns the limits for calls that open files or search."""
        rules = len(parts_of(self._section.text)["tool rules"].text.encode("utf-8", "replace"))
        rest = self._window.system_bytes - self._section.size + rules
        fixed = rest + tools_bytes(self._rules.shown(self._toolset).schemas)
        budget = self._model_requester.token_budget
        return PromptSnapshot(
            max_files_open=self._memory_view.files.max_open,
            file_view_chars=self._memory_view.files.view_chars,
            max_memory_bytes=max(
                1,
                int(budget.bytes_beside_messages(FILES_SHARE)) - fixed,
            ),
            max_search_bytes=max(LEAST_SEARCH_BYTES, int(budget.max_bytes * SEARCH_SHARE)),
        )

    def _may_outdate_memory(self, result: ToolResult) -> bool:
        """Returns whether memory may differ now from what the model was shown.

        A failed built-in tool of a memory tier counts too: an edit fails if the text was changed
        by others, and the next edit must see the current text. A call with an unknown outcome may
        have changed anything.
        """
        if result.memory_edits or result.files_changed or _has_unknown_outcome(result):
            return True
        tools = (self._known.find(name) for name, how in _ended(result) if how is ToolStatus.FAILED)
        return any(tool is not None and tool.keyed for tool in tools)

    async def _ask(self, step: int) -> StepRecord:
        await self._work.give_way()
        name = StepName(step, new_id("step"), new_id("message"))
        taint = self.taint
        await self._emit_started(step, name.step_id, name.message_id, taint, self._chain.handle)
        reply = await self._model_requester.ask(
            name, self._window, self._rules.offer(self._toolset)
        )
        reply = self._rules.taken(tidy(reply, self._window.call_ids), self._toolset)
        tool_effects = effects(reply, self._toolset)
        # The request may have closed files and read memory again.
        snapshot = replace(self._prompt_limits(), block_revisions=self._section.block_revisions)
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

    async def _emit_started(
        self, step: int, step_id: str, message_id: str, taint: Taint, model: str
    ) -> None:
        await self._sink.emit(StepStarted(step_id, step, model, taint, message_id))

    async def _ask_person(self, record: StepRecord, gated: Sequence[ToolCall]) -> StopReason:
        """Stores the reply as an approval request; no call of it runs before the response."""
        calls = record.reply.tool_calls
        taint = (
            *coming_taint(calls, gated, self._toolset),
            *sources_of(self._window.messages, self._tainted_blocks),
        )
        names = {call.name for call in gated}
        request = request_for(
            calls,
            gated,
            self._toolset,
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
                cut = record.reply.finish_reason is FinishReason.LENGTH
                outdated = any(map(self._may_outdate_memory, calls.results))
                if outdated and stop is None and not cut:
                    # The effects of the calls are stored; the commit changes nothing in memory.
                    compiling = asyncio.create_task(
                        self._ports.memory.compile(self._agent, self._memory_view)
                    )
                await self._commit(record, messages, calls.results, delayed=calls.journal_results)
            except asyncio.CancelledError:
                await self._keep_interrupted(record, calls)
                raise
            if compiling is not None:
                self._show_memory(await compiling)
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
        stop, note = rules.ending(messages, self._toolset.names)
        return (self._messages(record, calls, reminder=note) if note else messages), stop

    def _tool_context(self, record: StepRecord, rules: StepRules) -> ToolContext:
        # Tools that were offered when the reply was made stay callable in a later dispatch.
        called = {call.name for call in record.reply.tool_calls if call.id in record.effects}
        toolset = self._known.only({*self._toolset.names, *called})
        ports, tool = self._ports, self._request.group_tool
        return ToolContext(
            ports.tools,
            ports.journal,
            self._sink,
            ports.clock,
            self._agent,
            self._key,
            toolset,
            rules,
            self._older_lines,
            CallingGroup(self._request.group_id, tool.members) if tool is not None else None,
        )

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
        stale = any(result.archival_changed or _has_unknown_outcome(result) for result in results)
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
            messages.append(self._returns(record, calls.results))
        # After the last step the model would not see it.
        if reminder is not None and record.step < self._last_step:
            messages.append(self._heartbeat(record, reminder))
        return messages

    def _assistant(self, record: StepRecord, overridden: Mapping[str, str]) -> Message:
        calls = (
            replace(call, arguments=overridden.get(call.id, call.arguments))
            for call in record.reply.tool_calls
        )
        return replace(
            self._blank(MessageRole.ASSISTANT, record),
            id=record.message_id,
            parts=(*record.reply.content, *calls),
            model=record.model,
            # Tokens of a settled reply were counted with its approval request.
            usage=None if self._settling else record.reply.usage,
            provenance=(Provenance.MODEL, *record.snapshot.taint),
        )

    def _returns(self, record: StepRecord, results: list[ToolResult]) -> Message:
        bounded = bounded_returns([result.tool_return for result in results])
        tool_returns = limit_images(bounded, MAX_IMAGES_BYTES)
        labels = dict.fromkeys(
            part.provenance for part in tool_returns if part.provenance is not None
        )
        labels |= dict.fromkeys(label for part in tool_returns for label in part.taint)
        return replace(
            self._blank(MessageRole.TOOL, record), parts=tool_returns, provenance=tuple(labels)
        )

    def _heartbeat(self, record: StepRecord, reason: str) -> Message:
        text = pack_heartbeat(reason, self._ports.clock.now(), self._agent.timezone)
        return replace(
            self._blank(MessageRole.USER, record),
            parts=(TextPart(text),),
            provenance=(Provenance.SYSTEM,),
        )

    def _blank(self, role: MessageRole, record: StepRecord) -> Message:
        key = self._key
        return Message(
            id=new_id("message"),
            role=role,
            parts=(),
            conversation_id=key.conversation_id,
            agent_id=key.agent_id,
            run_id=key.run_id,
            step_id=record.step_id,
            group_id=self._request.group_id,
        )


def _ended(result: ToolResult) -> list[tuple[str, ToolStatus]]:
    """Returns tool and status of a call, and of the calls that its code made."""
    tool_return = result.tool_return
    nested = ((call.name, call.status) for call in tool_return.nested)
    return [(tool_return.name, tool_return.status), *nested]


def _has_unknown_outcome(result: ToolResult) -> bool:
    return any(status is ToolStatus.UNKNOWN for _, status in _ended(result))
