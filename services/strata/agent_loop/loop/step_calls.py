"""Runs the tool calls of one reply: checks them, journals the reply, executes, collects results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from strata.agent_loop.context.packaging import NOT_STARTED, OUTCOME_UNKNOWN, own_result, with_calls
from strata.agent_loop.domain.model.chat import ModelReply, ToolCall
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.events import ToolFinished, ToolStarted
from strata.agent_loop.domain.run.journal import StepRecord, idempotency_key
from strata.agent_loop.domain.tools import (
    CallStarted,
    CodeAnswer,
    CodeCall,
    CodeToolAccess,
    ToolBatch,
    ToolResult,
    ToolSet,
)
from strata.agent_loop.loop.calls import runnable
from strata.agent_loop.loop.lost_calls import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LostCallAction,
    action_for_lost_call,
)
from strata.agent_loop.loop.nested_calls import (
    NestedCalls,
    NestedState,
    joined,
    recorded,
)
from strata.agent_loop.loop.step_results import StepResults
from strata.agent_loop.loop.step_verdicts import StepVerdicts
from strata.agent_loop.loop.tool_context import ToolContext
from strata.agent_loop.rules.refusals import NOT_RUN
from strata.protocol.errors import StrataError, is_transient
from strata.shared.logs import get_logger
from strata.shared.messages import ToolStatus
from strata.shared.tool_catalogue import CODE_TOOLS, ToolEffect

_log = get_logger(__name__)


@dataclass(slots=True)
class _Progress:
    """What this dispatch has done with the calls so far.

    Attributes:
        journalled: It wrote the reply to the journal.
        sent: Ids of the calls that it sent to the executor.
        started: Ids of the calls that the executor reported as started.
        code: Calls that the code of a call makes, by the id of that call.
    """

    journalled: bool = False
    sent: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    code: dict[str, NestedCalls] = field(default_factory=dict)


class StepCalls:
    """Runs the calls of one reply until each has a result.

    Calls run in parallel, unless a rule restricts which call may follow which: then they run
    sequentially, and each call is checked after the calls before it have results. A call that may
    not run gets a refusal as its result; the other calls still run.

    Args:
        context: The ports, tools and rules that calls are run with.
        record: The reply, with the results of an earlier dispatch if it was resumed.
        resumed: Whether an earlier dispatch may have started the calls.
        known_results: Results of calls that are not run, by call id.
    """

    def __init__(
        self,
        context: ToolContext,
        record: StepRecord,
        *,
        resumed: bool,
        known_results: Mapping[str, ToolResult] | None = None,
    ) -> None:
        known_results = known_results or {}
        self._context = context
        self._record = record
        self._resumed = resumed
        self._verdicts = StepVerdicts(context.rules, context.toolset, record, known_results)
        self._results = StepResults(context.journal, context.key, record, known_results)
        self._progress = _Progress()

    @property
    def results(self) -> list[ToolResult]:
        """The results, in the order of the calls."""
        return self._results.in_order()

    @property
    def is_journalled(self) -> bool:
        """Whether the reply is in the journal."""
        return self._resumed or self._progress.journalled

    @property
    def overridden(self) -> dict[str, str]:
        """Arguments that a rule changed, by call id."""
        return self._verdicts.overridden

    async def journal_reply(self) -> None:
        """Writes the reply to the journal before its first call runs, if any call can run."""
        if self._verdicts.any_runs(self._results.missing()) and not self._resumed:
            context, record = self._context, self._record
            # The provider charged for the reply: repeat the write until the journal takes it.
            await until_available(lambda: context.journal.open_step(context.key, record))
            self._progress.journalled = True

    async def run(self) -> None:
        """Runs the calls until each has a result.

        The results are in the ledger then, except the results of calls that can be repeated: the
        step is committed next, and a later dispatch that finds no step repeats these calls. Call
        `journal_results` if the commit is delayed.

        Raises:
            StrataError: Another attempt of the run must continue; results so far are in the
                journal.
        """
        if self._verdicts.sequential:
            await self._run_sequentially()
        else:
            for call in self._results.missing():
                await self._answer_without_running(call, maybe_ran=self._resumed)
            runnable_calls = self._results.missing()
            if runnable_calls:
                await self._execute(runnable_calls)
        await self._results.record_required()

    def add_missing_results(self, text: str) -> list[ToolResult]:
        """Adds a result for every call that has none, because the run ends.

        A call that was sent to an executor, by this dispatch or an earlier one, may have had its
        effect: its result is UNKNOWN, not FAILED.

        Args:
            text: The result text of calls with an unknown outcome.

        Returns:
            The results that were added.
        """
        added = []
        maybe_ran = self._resumed
        for call in self._results.missing():
            refusal = self._verdicts.refusal(call)
            if refusal is not None:
                result = self._own_result(call, ToolStatus.FAILED, refusal)
            elif maybe_ran or call.id in self._progress.sent:
                result = self._own_result(call, ToolStatus.UNKNOWN, text)
                # An earlier dispatch started no sequential call after an unfinished one.
                maybe_ran = maybe_ran and not self._verdicts.sequential
            else:
                result = self._own_result(call, ToolStatus.FAILED, NOT_STARTED)
            self._results.add(result)
            added.append(result)
        return added

    async def journal_results(self) -> None:
        """Writes the results that are not journalled yet, for the next attempt."""
        await self._results.record()

    async def _run_sequentially(self) -> None:
        maybe_ran, results = self._resumed, self._results.by_call
        known_ids = set(results)
        for call in self._record.reply.tool_calls:
            self._verdicts.judge_next(call)
            if call.id not in results:
                await self._answer_without_running(call, maybe_ran=maybe_ran)
            if call.id not in results:
                if not self._effect(call).repeatable:
                    # A later dispatch needs the results that this call was allowed by.
                    await self._results.record()
                await self._execute([call])
            # An earlier dispatch did not start the calls after an unfinished one.
            unfinished = self._verdicts.refusal(call) is None and call.id not in known_ids
            maybe_ran = maybe_ran and not unfinished
            self._verdicts.finished(call, results[call.id].tool_return)

    async def _answer_without_running(self, call: ToolCall, *, maybe_ran: bool) -> None:
        refusal = self._verdicts.refusal(call)
        if refusal is not None:
            await self._answer(call, ToolStatus.FAILED, refusal)
        elif maybe_ran and not self._effect(call).repeatable:
            await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)

    async def _answer(
        self, call: ToolCall, status: ToolStatus, text: str, *, must_record: bool = False
    ) -> None:
        result = self._own_result(call, status, text)
        # A refusal is the same on every dispatch; only unknown outcomes must be journalled.
        if must_record or status is ToolStatus.UNKNOWN:
            self._results.add_unrecorded(result, must_record=True)
        else:
            self._results.add(result)
        if call.id not in self._progress.started:
            await self._context.sink.emit(ToolStarted(call.id, call.name, call.arguments))
        await self._context.sink.emit(ToolFinished(result))

    async def _execute(self, calls: Sequence[ToolCall]) -> None:
        """Sends calls to the executor until each has a result or an unknown outcome."""
        defects, pause = 0, FIRST_PAUSE_S
        while missing := self._results.missing(calls):
            self._progress.sent.update(call.id for call in missing)
            try:
                await self._run_batch(missing)
            except StrataError as error:
                await self._handle_failure(error, self._results.missing(calls), defects)
                if not self._results.missing(calls):
                    return
                run_id = self._context.key.run_id
                _log.warning("tool calls repeated", run_id=run_id, error=repr(error))
                defects += not is_transient(error)
                await self._results.record()
                await asyncio.sleep(max(pause, min(error.retry_after or 0.0, LONGEST_PAUSE_S)))
                pause = min(pause * 2, LONGEST_PAUSE_S)
            else:
                for call in self._results.missing(calls):
                    await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)

    async def _run_batch(self, calls: Sequence[ToolCall]) -> None:
        async with aclosing(self._context.tools.execute(self._batch(calls))) as events:
            async for event in events:
                if isinstance(event, CallStarted):
                    is_new = event.tool_call_id not in self._progress.started
                    self._progress.started.add(event.tool_call_id)
                    if is_new:
                        await self._context.sink.emit(
                            ToolStarted(event.tool_call_id, event.name, event.arguments)
                        )
                else:
                    await self._finish(event.result)

    async def _handle_failure(
        self, error: StrataError, calls: Sequence[ToolCall], defects: int
    ) -> None:
        """Decides for each call of a failed request whether it is repeated or gets a result.

        Raises:
            StrataError: Another attempt of the run must continue.
        """
        for call in calls:
            started = call.id in self._progress.started or call.id in self._progress.code
            repeatable = self._effect(call).repeatable
            match action_for_lost_call(
                error, started=started, repeatable=repeatable, defects=defects
            ):
                case LostCallAction.RAISE:
                    await self._results.record()
                    raise error
                case LostCallAction.REPORT_UNKNOWN:
                    await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
                case LostCallAction.REPORT_FAILED:
                    text = f"{NOT_RUN} {error.message}"
                    # The verdicts on later calls of a sequence depend on this result.
                    sequential = self._verdicts.sequential
                    await self._answer(call, ToolStatus.FAILED, text, must_record=sequential)
                case LostCallAction.REPEAT:
                    pass

    async def _finish(self, result: ToolResult) -> None:
        call_id = result.tool_return.tool_call_id
        result = joined(result, *self._nested(call_id))
        # Results of calls that cannot be repeated are journalled at once, except the last one:
        # `run` journals it.
        call = next((c for c in self._record.reply.tool_calls if c.id == call_id), None)
        must_record = call is not None and not self._effect(call).repeatable
        self._results.add_unrecorded(result, must_record=must_record)
        await self._context.sink.emit(ToolFinished(result))
        if must_record and self._results.missing():
            await self._results.record()

    def _effect(self, call: ToolCall) -> ToolEffect:
        return self._record.effects.get(call.id, ToolEffect.UNDECLARED)

    def _own_result(self, call: ToolCall, status: ToolStatus, text: str) -> ToolResult:
        context, (nested_calls, results) = self._context, self._nested(call.id)
        text = with_calls(text, nested_calls)
        result = own_result(call, status, text, context.clock.now(), context.agent.timezone)
        return joined(result, nested_calls, results)

    def _nested(self, call_id: str) -> NestedState:
        nested = self._progress.code.get(call_id)
        return nested.known if nested is not None else recorded(call_id, self._record.nested)

    async def _answer_code(self, code_call: CodeCall) -> CodeAnswer:
        nested = self._progress.code.get(code_call.parent_id)
        if nested is None:
            calls = self._record.reply.tool_calls
            parent = next(call for call in calls if call.id == code_call.parent_id)
            before = self._verdicts.before_code(parent, self._results.by_call)
            nested = NestedCalls(self._context, self._record, parent, before)
            self._progress.code[parent.id] = nested
        return await nested.answer(code_call)

    def _batch(self, calls: Sequence[ToolCall]) -> ToolBatch:
        key, record = self._context.key, self._record
        code_access = None
        if any(call.name in CODE_TOOLS for call in calls):
            code_access = CodeToolAccess(self._context.toolset.callable, self._answer_code)
        return ToolBatch(
            agent_id=key.agent_id,
            conversation_id=key.conversation_id,
            run_id=key.run_id,
            step_id=record.step_id,
            model=record.model,
            timezone=self._context.agent.timezone,
            calls=[
                runnable(replace(call, arguments=self._verdicts.arguments(call))) for call in calls
            ],
            idempotency_keys={
                call.id: idempotency_key(key.run_id, record.step, call.id) for call in calls
            },
            allowed=self._context.toolset.names,
            agent_type=self._context.agent.type.value,
            snapshot=record.snapshot.after(self._results.by_call.values()),
            message_id=record.message_id,
            group=self._context.group,
            code_access=code_access,
            older_lines=self._context.older_lines,
        )


def effects(reply: ModelReply, toolset: ToolSet) -> dict[str, ToolEffect]:
    """Returns the replay effect of each call's tool, by call id."""
    tools = {call.id: toolset.find(call.name) for call in reply.tool_calls}
    return {call_id: tool.replay_effect for call_id, tool in tools.items() if tool is not None}
