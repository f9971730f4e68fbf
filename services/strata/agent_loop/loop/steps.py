"""The steps of a turn: ask, run the calls, store; and again while the model wants tools.

Invariants 2 to 4 of the architecture are kept here: a step is stored whole, after a crash it is
gone on with from the journal, and a call is never stored without its return.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.summarizing import Summarizer
from strata.agent_loop.domain.agents import LINE_NUMBERED_TYPES, Agent
from strata.agent_loop.domain.events import (
    ApprovalRequested,
    MessageStored,
    StepStarted,
    ToolFinished,
)
from strata.agent_loop.domain.journal import JournalKey, StepRecord
from strata.agent_loop.domain.messages import Message, MessageRole, Provenance, ToolStatus
from strata.agent_loop.domain.runs import RunRequest, StopReason
from strata.agent_loop.domain.taint import Taint, labels_of, sources_of, taint_of
from strata.agent_loop.domain.tools import Seen, ToolResult, ToolSet
from strata.agent_loop.loop.approvals import (
    OpenRequest,
    coming_taint,
    decided,
    open_requests,
    request_for,
    settled_steps,
)
from strata.agent_loop.loop.asking import Asker, StepName
from strata.agent_loop.loop.calls import tidy
from strata.agent_loop.loop.failures import nothing_to_answer
from strata.agent_loop.loop.gauge import Gauge
from strata.agent_loop.loop.packaging import pack_heartbeat, return_limit
from strata.agent_loop.loop.ports import (
    BegunTurn,
    BoundModel,
    EventSink,
    MemorySection,
    Ports,
    StepCommit,
)
from strata.agent_loop.loop.prompt import WorkingWindow
from strata.agent_loop.loop.requests import View
from strata.agent_loop.loop.ruling import StepRules, TurnRules
from strata.agent_loop.loop.tooling import StepCalls, ToolBench, effects
from strata.agent_loop.loop.uninterrupted import uninterrupted
from strata.agent_loop.models.domain import (
    EndpointType,
    FinishReason,
    TextPart,
    ToolCall,
    Usage,
)
from strata.agent_loop.rules.history import calls_of
from strata.shared.errors import StrataError
from strata.shared.ids import new_id
from strata.shared.logs import get_logger

_CLEANUP_SECONDS = 10.0

_log = get_logger(__name__)


def key_of(request: RunRequest) -> JournalKey:
    """Returns whose steps the steps of a dispatch are."""
    return JournalKey(request.conversation_id, request.agent_id, request.run_id, request.attempt)


def shows_line_numbers(agent: Agent, bound: BoundModel) -> bool:
    """Says whether the agent's model sees its memory with line numbers (blueprint §0.3.3)."""
    anthropic = bound.settings.endpoint_type is EndpointType.ANTHROPIC
    return anthropic and agent.type in LINE_NUMBERED_TYPES


class Steps:
    """The steps of a turn that has begun.

    Attributes:
        step: Number of the step under way, or of the last one; 0 before the first.
        settled: Steps of the run in which no model was asked: they ended what waited for a person.
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
    ) -> None:
        self.step = 0
        self.settled = settled_steps(begun.committed_messages)
        self._settling = False
        self._waiting = open_requests(begun.window.messages)
        self._ports = ports
        self._request = request
        self._key = key_of(request)
        self._sink = sink
        self._agent = agent
        self._committed_steps = begun.committed_steps
        self._known = toolset
        self._toolset = toolset
        self._rules = rules
        self._seen = Seen()
        self._tainted_blocks: Mapping[str, Taint] = {}
        self._model = bound.settings.handle
        self._numbered = shows_line_numbers(agent, bound)
        self._window = WorkingWindow(agent, begun.window, ports.archival, ports.clock)
        summarizer = Summarizer(ports.models, ports.tokens, agent, bound)
        compactor = Compactor(agent, summarizer, ports.recall, ports.clock)
        self._asker = Asker(
            bound,
            Gauge(ports.tokens, bound.settings, agent.id),
            View(return_limit(bound.settings.context_window), agent.timezone),
            sink,
            compact=functools.partial(compactor.compact, key=self._key),
            stream_tokens=request.stream_tokens,
        )

    @property
    def usage(self) -> Usage:
        """Tokens of the model calls of this dispatch, and of a resumed reply."""
        return self._asker.usage

    @property
    def taint(self) -> Taint:
        """Untrusted labels of what the model would be shown now."""
        shown = (labels_of(message) for message in self._window.messages)
        return taint_of(*shown, *self._tainted_blocks.values())

    async def run(self, section: MemorySection) -> StopReason:
        """Makes steps until the model is done, or may make no more.

        Raises:
            StepFailedError: A step cannot be made.
            StrataError: A room cannot be reached, or refused.
        """
        self._expect_answered()
        self.step = self._committed_steps
        resumed: StepRecord | None = None
        if self._key.attempt > 1:
            resumed = await self._ports.journal.resume(self._key, self.step + 1)
        await self._see(section)
        for asked in self._waiting:
            self.step += 1
            self.settled += 1
            stop = await self._settle(asked, resumed)
            if stop is not None:
                return stop
            resumed = None
        while self.step < self._last_step:
            self.step += 1
            stop = await self._step(self.step, resumed)
            if stop is not None:
                return stop
            resumed = None
        return StopReason.MAX_STEPS

    @property
    def _last_step(self) -> int:
        return self._request.max_steps + self.settled

    def _expect_answered(self) -> None:
        """Makes sure that the answer that the run came with is one to an open request."""
        answer = self._request.approval
        if answer is None or self.settled:
            return
        if all(asked.request.approval_id != answer.approval_id for asked in self._waiting):
            raise nothing_to_answer(answer.approval_id)

    async def _settle(self, asked: OpenRequest, resumed: StepRecord | None) -> StopReason | None:
        """Brings a request for approval to its end: what the person approved is run."""
        now, zone = self._ports.clock.now(), self._agent.timezone
        if resumed is not None:
            # It wrote its reply down, so its answer was the one that counts.
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
            # Since it was asked for, nothing was added to what its calls were made from.
            Seen(
                max_files_open=self._agent.max_files_open,
                taint=taint_of(labels_of(asked.message)),
            ),
            self._rules.rules,
        )
        rules = self._rules.of(record, asked.granted(self._key.run_id))
        given = asked.given(self._key.run_id, now, zone, self._known)
        for result in given.values():
            await self._sink.emit(ToolFinished(result))
        self._settling = True
        results, stop = await self._run_calls(
            record, rules, resumed=resumed is not None, given=given
        )
        self._settling = False
        if stop is None and any(self._outdates(result) for result in results):
            section = await self._ports.memory.compile(self._agent, line_numbers=self._numbered)
            await self._see(section)
        return stop

    async def _step(self, step: int, resumed: StepRecord | None) -> StopReason | None:
        record = resumed or await self._ask(step)
        if resumed is not None:
            await self._tell_started(step, resumed.step_id, resumed.seen.taint)
            self._asker.usage += resumed.reply.usage
        cut = record.reply.finish_reason is FinishReason.LENGTH
        rules = self._rules.of(record)
        if not record.reply.tool_calls:
            reminder = None if cut else rules.reminder(rules.history, self._toolset.names)
            await self._commit(record, self._messages(record, reminder=reminder))
            if reminder is not None:
                return None
            return StopReason.MAX_TOKENS_EXCEEDED if cut else StopReason.END_TURN
        if resumed is None:
            gated = rules.asks(record.reply, self._toolset)
            if gated:
                return await self._ask_person(record, gated)
        results, stop = await self._run_calls(record, rules, resumed=resumed is not None)
        if stop is not None:
            return stop
        if cut:
            return StopReason.MAX_TOKENS_EXCEEDED
        if any(self._outdates(result) for result in results):
            section = await self._ports.memory.compile(self._agent, line_numbers=self._numbered)
            await self._see(section)
        return None

    async def _see(self, section: MemorySection) -> None:
        """Shows the model this memory from now on, and the tools that go with it."""
        self._toolset = self._known.offered(self._agent.tools, folders=section.has_folders)
        self._seen = Seen(section.block_revisions, self._agent.max_files_open)
        self._tainted_blocks = section.taint
        await self._window.refresh(section)

    def _outdates(self, result: ToolResult) -> bool:
        """Says whether memory may read otherwise now than the model was shown.

        A tier's own tool that failed counts too: an edit is refused where others have changed
        the text, and the next one must build on what is there now.
        """
        if result.memory_edits or result.files_changed:
            return True
        told = result.tool_return
        ended = [(told.name, told.status), *((c.name, c.status) for c in told.nested)]
        tools = (self._known.find(name) for name, how in ended if how is ToolStatus.FAILED)
        return any(tool is not None and tool.keyed for tool in tools)

    async def _ask(self, step: int) -> StepRecord:
        name = StepName(step, new_id("step"), new_id("message"))
        seen = replace(self._seen, taint=self.taint)
        await self._tell_started(step, name.step_id, seen.taint)
        reply = await self._asker.ask(name, self._window, self._rules.offer(self._toolset))
        reply = tidy(reply, self._window.call_ids)
        found = effects(reply, self._toolset)
        return StepRecord(
            step,
            name.step_id,
            name.message_id,
            self._model,
            reply,
            found,
            {},
            seen,
            self._rules.rules,
        )

    async def _tell_started(self, step: int, step_id: str, taint: Taint) -> None:
        await self._sink.emit(StepStarted(step_id, step, self._model, taint))

    async def _ask_person(self, record: StepRecord, gated: Sequence[ToolCall]) -> StopReason:
        """Stores the reply as a request for approval; none of its calls is run before an answer."""
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
        await self._commit(record, [message])
        await self._sink.emit(ApprovalRequested(request))
        return StopReason.REQUIRES_APPROVAL

    async def _run_calls(
        self,
        record: StepRecord,
        rules: StepRules,
        *,
        resumed: bool,
        given: Mapping[str, ToolResult] | None = None,
    ) -> tuple[list[ToolResult], StopReason | None]:
        calls = StepCalls(self._bench(record, rules), record, resumed=resumed, given=given)
        await calls.journal()
        try:
            await calls.run()
            messages, stop = self._ending(record, rules, calls)
            await self._commit(record, messages, calls.results)
        except asyncio.CancelledError:
            calls.give_up()
            await self._commit_cancelled(record, calls)
            raise
        return calls.results, stop

    def _ending(
        self, record: StepRecord, rules: StepRules, calls: StepCalls
    ) -> tuple[list[Message], StopReason | None]:
        """Returns what a step with calls stores, and whether the turn ends with it."""
        messages = self._messages(record, calls)
        told = messages[-1]
        if rules.invalid(told):
            return messages, StopReason.INVALID_TOOL_CALL
        if not rules.ended_by(told):
            return messages, None
        done = [*rules.history, *calls_of(messages)]
        reminder = rules.reminder(done, self._toolset.names)
        if reminder is None:
            return messages, StopReason.TOOL_RULE
        return self._messages(record, calls, reminder=reminder), None

    def _bench(self, record: StepRecord, rules: StepRules) -> ToolBench:
        # What was offered when the reply was made is judged by that, also in a later dispatch.
        called = {call.name for call in record.reply.tool_calls if call.id in record.effects}
        toolset = self._known.only({*self._toolset.names, *called})
        ports = self._ports
        return ToolBench(
            ports.tools,
            ports.journal,
            self._sink,
            ports.clock,
            self._agent,
            self._key,
            toolset,
            rules,
        )

    async def _commit_cancelled(self, record: StepRecord, calls: StepCalls) -> None:
        commit = self._commit(record, self._messages(record, calls), calls.results)
        try:
            await uninterrupted(commit, seconds=_CLEANUP_SECONDS)
        except (StrataError, TimeoutError) as error:
            # A newer attempt has the step in its journal; otherwise nothing of it is stored.
            _log.warning(
                "a cancelled step was not stored", run_id=self._key.run_id, error=repr(error)
            )

    async def _commit(
        self, record: StepRecord, messages: list[Message], results: Sequence[ToolResult] = ()
    ) -> None:
        stale = any(result.archival_changed for result in results)
        committed = await self._ports.recall.commit_step(
            StepCommit(
                self._key,
                record.step,
                record.step_id,
                messages,
                self._window.unsaved_text,
                self._window.metadata_stale(changed=stale),
            )
        )
        self._window.committed(committed)
        self._rules.take(committed.messages)
        for message in committed.messages:
            if not message.hidden:
                await self._sink.emit(MessageStored(message))

    def _messages(
        self, record: StepRecord, calls: StepCalls | None = None, *, reminder: str | None = None
    ) -> list[Message]:
        """Returns what a step stores: the reply, the returns, and what asks the model to go on."""
        messages = [self._assistant(record, calls.overridden if calls is not None else {})]
        if calls is not None:
            messages.append(self._returns(record, calls.results))
        # After the last step nobody would read it.
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
            # What a person was asked about was counted with the request.
            usage=None if self._settling else record.reply.usage,
            provenance=(Provenance.MODEL, *record.seen.taint),
        )

    def _returns(self, record: StepRecord, results: list[ToolResult]) -> Message:
        told = tuple(result.tool_return for result in results)
        labels = dict.fromkeys(part.provenance for part in told if part.provenance is not None)
        labels |= dict.fromkeys(label for part in told for label in part.taint)
        return replace(self._blank(MessageRole.TOOL, record), parts=told, provenance=tuple(labels))

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
        )
