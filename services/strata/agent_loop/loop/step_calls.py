"""Runs the tool calls of one reply: checks them, journals the reply, executes, collects results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

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
    StateBeforeCode,
    joined,
    labels_in,
    recorded,
)
from strata.agent_loop.loop.tool_context import ToolContext
from strata.agent_loop.loop.turn_rules import CallVerdict
from strata.agent_loop.rules.history import Called, made_by
from strata.agent_loop.rules.refusals import NOT_RUN
from strata.protocol.errors import StrataError, is_transient
from strata.shared.logs import get_logger
from strata.shared.messages import ToolStatus
from strata.shared.provenance import taint_of
from strata.shared.tool_catalogue import CODE_TOOLS, ToolEffect

_log = get_logger(__name__)


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
        self._context = context
        self._record = record
        self._resumed = resumed
        self._opened = False
        self._known_results = known_results or {}
        self._results: dict[str, ToolResult] = {**self._known_results, **record.results}
        self._unrecorded: list[ToolResult] = []
        # Whether another dispatch could not obtain one of these results again.
        self._must_record = False
        self._sent: set[str] = set()
        self._started: set[str] = set()
        self._code: dict[str, NestedCalls] = {}
        # History and taint before the running call, if calls run sequentially.
        self._state_before_call: tuple[list[Called], bool] = ([], False)
        self._sequential = context.rules.sequential and len(record.reply.tool_calls) > 1
        self._verdicts = {} if self._sequential else self._judge_all()

    @property
    def results(self) -> list[ToolResult]:
        """The results, in the order of the calls."""
        return [
            self._results[call.id]
            for call in self._record.reply.tool_calls
            if call.id in self._results
        ]

    @property
    def is_journalled(self) -> bool:
        """Whether the reply is in the journal."""
        return self._resumed or self._opened

    @property
    def overridden(self) -> dict[str, str]:
        """Arguments that a rule changed, by call id."""
        return {
            call.id: self._verdicts[call.id].arguments
            for call in self._record.reply.tool_calls
            if call.id in self._verdicts and self._verdicts[call.id].arguments != call.arguments
        }

    async def journal_reply(self) -> None:
        """Writes the reply to the journal before its first call runs, if any call can run."""
        # Refused calls do not enter the history, so all are judged by the history before the reply.
        before, calls = self._context.rules.history, self._waiting()
        tainted = self._context.rules.tainted
        verdicts = (
            self._verdicts.get(call.id) or self._judge(call, before, tainted=tainted)
            for call in calls
        )
        if any(verdict.refusal is None for verdict in verdicts) and not self._resumed:
            context, record = self._context, self._record
            # The provider charged for the reply: repeat the write until the journal takes it.
            await until_available(lambda: context.journal.open_step(context.key, record))
            self._opened = True

    async def run(self) -> None:
        """Runs the calls until each has a result.

        The results are in the ledger then, except the results of calls that can be repeated: the
        step is committed next, and a later dispatch that finds no step repeats these calls. Call
        `journal_results` if the commit is delayed.

        Raises:
            StrataError: Another attempt of the run must continue; results so far are in the
                journal.
        """
        if self._sequential:
            await self._run_sequentially()
        else:
            for call in self._waiting():
                await self._answer_without_running(call, maybe_ran=self._resumed)
            waiting = self._waiting()
            if waiting:
                await self._execute(waiting)
        if self._must_record:
            await self._flush()

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
        for call in self._waiting():
            verdict = self._verdicts.get(call.id)
            if verdict is not None and verdict.refusal is not None:
                result = self._own_result(call, ToolStatus.FAILED, verdict.refusal)
            elif maybe_ran or call.id in self._sent:
                result = self._own_result(call, ToolStatus.UNKNOWN, text)
                # An earlier dispatch started no sequential call after an unfinished one.
                maybe_ran = maybe_ran and not self._sequential
            else:
                result = self._own_result(call, ToolStatus.FAILED, NOT_STARTED)
            self._results[call.id] = result
            added.append(result)
        return added

    async def journal_results(self) -> None:
        """Writes the results that are not journalled yet, for the next attempt."""
        await self._flush()

    def _waiting(self) -> list[ToolCall]:
        return self._unanswered(self._record.reply.tool_calls)

    def _unanswered(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        return [call for call in calls if call.id not in self._results]

    def _judge_all(self) -> dict[str, CallVerdict]:
        rules, verdicts = self._context.rules, {}
        before, tainted = list(rules.history), rules.tainted
        for call in self._record.reply.tool_calls:
            if call.id in self._known_results:
                tool_return = self._known_results[call.id].tool_return
                verdicts[call.id] = CallVerdict(call.arguments)
                before += made_by(tool_return)
                tainted = tainted or bool(taint_of(labels_in(self._known_results[call.id])))
                continue
            verdicts[call.id] = self._judge(call, before, tainted=tainted)
            if verdicts[call.id].refusal is None:
                before.append(Called(call.name))
                tainted = tainted or rules.taints(call, self._context.toolset)
        return verdicts

    def _judge(self, call: ToolCall, before: Sequence[Called], *, tainted: bool) -> CallVerdict:
        context, reply = self._context, self._record.reply
        last = call is reply.tool_calls[-1]
        return context.rules.judge(
            call, before, context.toolset, reply.finish_reason, last=last, tainted=tainted
        )

    async def _run_sequentially(self) -> None:
        before, tainted = list(self._context.rules.history), self._context.rules.tainted
        maybe_ran, known = self._resumed, set(self._results)
        for call in self._record.reply.tool_calls:
            self._verdicts[call.id] = self._judge(call, before, tainted=tainted)
            runs = self._verdicts[call.id].refusal is None
            if call.id not in self._results:
                await self._answer_without_running(call, maybe_ran=maybe_ran)
            if call.id not in self._results:
                self._state_before_call = (before, tainted)
                if not self._effect(call).repeatable:
                    # A later dispatch needs the results that this call was allowed by.
                    await self._flush()
                await self._execute([call])
            # An earlier dispatch did not start the calls after an unfinished one.
            maybe_ran = maybe_ran and not (runs and call.id not in known)
            tool_return = self._results[call.id].tool_return
            before += made_by(tool_return)
            # Both count: the labels of the return, such as a tainted memory, and the declared
            # source of the tool, as when approvals were decided.
            source = () if tool_return.provenance is None else (tool_return.provenance,)
            may_taint = runs and self._context.rules.taints(call, self._context.toolset)
            tainted = tainted or may_taint or bool(taint_of(source, tool_return.taint))

    async def _answer_without_running(self, call: ToolCall, *, maybe_ran: bool) -> None:
        refused = self._verdicts[call.id].refusal
        if refused is not None:
            await self._answer(call, ToolStatus.FAILED, refused)
        elif maybe_ran and not self._effect(call).repeatable:
            await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)

    async def _answer(
        self, call: ToolCall, status: ToolStatus, text: str, *, keep: bool = False
    ) -> None:
        result = self._own_result(call, status, text)
        self._results[call.id] = result
        # A refusal is the same on every dispatch; only unknown outcomes must be journalled.
        if keep or status is ToolStatus.UNKNOWN:
            self._unrecorded.append(result)
            self._must_record = True
        if call.id not in self._started:
            await self._context.sink.emit(ToolStarted(call.id, call.name, call.arguments))
        await self._context.sink.emit(ToolFinished(result))

    async def _execute(self, calls: Sequence[ToolCall]) -> None:
        """Sends calls to the executor until each has a result or an unknown outcome."""
        defects, pause = 0, FIRST_PAUSE_S
        while waiting := self._unanswered(calls):
            self._sent.update(call.id for call in waiting)
            try:
                await self._run_batch(waiting)
            except StrataError as error:
                await self._handle_failure(error, self._unanswered(calls), defects)
                if not self._unanswered(calls):
                    return
                run_id = self._context.key.run_id
                _log.warning("tool calls repeated", run_id=run_id, error=repr(error))
                defects += not is_transient(error)
                await self._flush()
                await asyncio.sleep(max(pause, min(error.retry_after or 0.0, LONGEST_PAUSE_S)))
                pause = min(pause * 2, LONGEST_PAUSE_S)
            else:
                for call in self._unanswered(calls):
                    await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)

    async def _run_batch(self, calls: Sequence[ToolCall]) -> None:
        async with aclosing(self._context.tools.execute(self._batch(calls))) as events:
            async for event in events:
                if isinstance(event, CallStarted):
                    is_new = event.tool_call_id not in self._started
                    self._started.add(event.tool_call_id)
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
            started = call.id in self._started or call.id in self._code
            repeatable = self._effect(call).repeatable
            match action_for_lost_call(
                error, started=started, repeatable=repeatable, defects=defects
            ):
                case LostCallAction.RAISE:
                    await self._flush()
                    raise error
                case LostCallAction.REPORT_UNKNOWN:
                    await self._answer(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
                case LostCallAction.REPORT_FAILED:
                    text = f"{NOT_RUN} {error.message}"
                    await self._answer(call, ToolStatus.FAILED, text, keep=self._sequential)
                case LostCallAction.REPEAT:
                    pass

    async def _finish(self, result: ToolResult) -> None:
        call_id = result.tool_return.tool_call_id
        result = joined(result, *self._nested(call_id))
        self._results[call_id] = result
        self._unrecorded.append(result)
        await self._context.sink.emit(ToolFinished(result))
        # Results of calls that cannot be repeated are journalled at once, except the last one:
        # `run` journals it.
        call = next((c for c in self._record.reply.tool_calls if c.id == call_id), None)
        if call is not None and not self._effect(call).repeatable:
            self._must_record = True
            if self._waiting():
                await self._flush()

    async def _flush(self) -> None:
        if self._unrecorded:
            results = list(self._unrecorded)
            context, step = self._context, self._record.step
            await until_available(lambda: context.journal.record(context.key, step, results))
            # Only after the write: if it is cancelled, `journal_results` writes them again.
            del self._unrecorded[: len(results)]
            self._must_record = False

    def _effect(self, call: ToolCall) -> ToolEffect:
        return self._record.effects.get(call.id, ToolEffect.UNDECLARED)

    def _own_result(self, call: ToolCall, status: ToolStatus, text: str) -> ToolResult:
        context, (made, results) = self._context, self._nested(call.id)
        text = with_calls(text, made)
        result = own_result(call, status, text, context.clock.now(), context.agent.timezone)
        return joined(result, made, results)

    def _nested(self, call_id: str) -> NestedState:
        nested = self._code.get(call_id)
        return nested.known if nested is not None else recorded(call_id, self._record.nested)

    async def _answer_code(self, code_call: CodeCall) -> CodeAnswer:
        nested = self._code.get(code_call.parent_id)
        if nested is None:
            calls = self._record.reply.tool_calls
            parent = next(call for call in calls if call.id == code_call.parent_id)
            nested = NestedCalls(self._context, self._record, parent, self._before(parent))
            self._code[parent.id] = nested
        return await nested.answer(code_call)

    def _before(self, parent: ToolCall) -> StateBeforeCode:
        """Returns the state before the code of a call; calls beside it count as before it."""
        (before, tainted), rules = self._state_before_call, self._context.rules
        if not self._sequential:
            before, tainted = list(rules.history), rules.tainted
            for call in self._record.reply.tool_calls:
                if call is parent or self._verdicts[call.id].refusal is not None:
                    continue
                known = self._results.get(call.id)
                before += [Called(call.name)] if known is None else made_by(known.tool_return)
                tainted = tainted or rules.taints(call, self._context.toolset)
        snapshot = self._record.snapshot.after(self._results.values())
        return StateBeforeCode((*before, Called(parent.name)), tainted, snapshot)

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
            calls=[runnable(replace(c, arguments=self._verdicts[c.id].arguments)) for c in calls],
            idempotency_keys={
                call.id: idempotency_key(key.run_id, record.step, call.id) for call in calls
            },
            allowed=self._context.toolset.names,
            agent_type=self._context.agent.type.value,
            snapshot=record.snapshot.after(self._results.values()),
            message_id=record.message_id,
            group=self._context.group,
            code_access=code_access,
            older_lines=self._context.older_lines,
        )


def effects(reply: ModelReply, toolset: ToolSet) -> dict[str, ToolEffect]:
    """Returns the replay effect of each call's tool, by call id."""
    tools = {call.id: toolset.find(call.name) for call in reply.tool_calls}
    return {call_id: tool.replay_effect for call_id, tool in tools.items() if tool is not None}
