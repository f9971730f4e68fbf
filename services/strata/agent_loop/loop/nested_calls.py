"""Runs the tool calls that the code of a `run_code` call makes (decision 0086).

Nested calls are checked by the tool rules, written to the journal and executed like calls of the
model, as if they followed the call that runs the code. Their results are merged into the result of
that call, and so into the history of the run and the taint of the context. The context window holds
only calls of the model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from strata.agent_loop.context.packaging import OUTCOME_UNKNOWN, own_result
from strata.agent_loop.domain.conversation.messages import NestedCall
from strata.agent_loop.domain.model.chat import ToolCall
from strata.agent_loop.domain.retries import until_available
from strata.agent_loop.domain.run.journal import NestedRecord, StepRecord, idempotency_key
from strata.agent_loop.domain.tools import (
    CallFinished,
    CodeAnswer,
    CodeCall,
    PromptSnapshot,
    ToolBatch,
    ToolResult,
)
from strata.agent_loop.loop.calls import runnable
from strata.agent_loop.loop.lost_calls import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LostCallAction,
    action_for_lost_call,
)
from strata.agent_loop.loop.tool_context import ToolContext
from strata.agent_loop.rules.history import Called, called_by
from strata.agent_loop.rules.refusals import CONSTRAINT, NOT_RUN
from strata.protocol.errors import StrataError, is_transient
from strata.shared.json_text import JsonTextError, parse_json, storable_text
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance, Taint, taint_of
from strata.shared.tool_catalogue import ToolEffect

MAX_NESTED_CALLS = 50
"""Maximum number of tool calls that the code of one call may make, including refused ones."""
_SHOWN = 500

NestedState: TypeAlias = tuple[list[NestedCall], list[ToolResult]]
"""Calls that code made so far, and the known results of these calls."""


@dataclass(frozen=True, slots=True)
class StateBeforeCode:
    """The state of the run before the code makes its first call.

    Attributes:
        calls: The calls of the run and of the reply; the last one runs the code.
        tainted: The context holds untrusted content.
        snapshot: The memory in the prompt of the reply.
    """

    calls: tuple[Called, ...]
    tainted: bool
    snapshot: PromptSnapshot


class NestedCalls:
    """Runs the calls that the code of one call makes.

    Args:
        context: The ports and rules that calls are run with.
        record: The reply that holds the parent call.
        parent: The call whose code makes the nested calls.
        before: The state of the run before the code.
    """

    def __init__(
        self, context: ToolContext, record: StepRecord, parent: ToolCall, before: StateBeforeCode
    ) -> None:
        self._context = context
        self._record = record
        self._parent = parent
        self._before = before
        self._made: list[NestedCall] = []
        self._results: list[ToolResult] = []
        self._ids = {call.id for call in record.reply.tool_calls}

    @property
    def known(self) -> NestedState:
        """The calls so far, with a running one as UNKNOWN, and their results."""
        return list(self._made), list(self._results)

    async def answer(self, code_call: CodeCall) -> CodeAnswer:
        """Checks a call of the code against the rules and runs it.

        Raises:
            AbortedError: STALE_ATTEMPT; another dispatch has taken over the run.
            StrataError: The journal cannot be reached.
        """
        number = len(self._made) + 1
        if number > MAX_NESTED_CALLS:
            return CodeAnswer(
                error=f"{CONSTRAINT} Code can call tools {MAX_NESTED_CALLS} times in one call;"
                f" {code_call.name} was not called."
            )
        name, arguments = storable_text(code_call.name), storable_text(code_call.arguments)
        call = ToolCall(self._id(number), name, arguments)
        history = [*self._before.calls, *(Called(c.name) for c in self._made if not c.refused)]
        verdict = self._context.rules.judge_nested(
            call,
            history,
            self._context.toolset,
            tainted=self._before.tainted or bool(self._taint) or self._called_untrusted_tools(),
        )
        call = runnable(replace(call, arguments=verdict.arguments))
        if verdict.refusal is not None:
            self._made.append(_shown(call, ToolStatus.FAILED, refused=True))
            return CodeAnswer(error=verdict.refusal)
        effect = self._effect(call)
        context, step = self._context, self._record.step
        nested = NestedRecord(self._parent.id, call)
        await until_available(
            lambda: context.journal.nest(context.key, step, nested, number, effect)
        )
        # The status stays UNKNOWN if the code is killed before the call ends.
        self._made.append(_shown(call, ToolStatus.UNKNOWN))
        result = without_images(await self._run(call))
        await until_available(lambda: context.journal.record(context.key, step, [result]))
        self._results.append(result)
        self._made[-1] = _shown(call, result.tool_return.status)
        return _answer(result)

    async def _run(self, call: ToolCall) -> ToolResult:
        batch, repeatable = self._batch(call), self._effect(call).repeatable
        defects, pause = 0, FIRST_PAUSE_S
        started = False
        while True:
            try:
                async with aclosing(self._context.tools.execute(batch)) as events:
                    async for event in events:
                        if isinstance(event, CallFinished):
                            return event.result
                        started = True
                return self._own_result(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
            except StrataError as error:
                match action_for_lost_call(
                    error, started=started, repeatable=repeatable, defects=defects
                ):
                    case LostCallAction.RAISE:
                        raise
                    case LostCallAction.REPORT_UNKNOWN:
                        return self._own_result(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
                    case LostCallAction.REPORT_FAILED:
                        return self._own_result(
                            call, ToolStatus.FAILED, f"{NOT_RUN} {error.message}"
                        )
                    case LostCallAction.REPEAT:
                        defects += not is_transient(error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _batch(self, call: ToolCall) -> ToolBatch:
        context, record = self._context, self._record
        key = context.key
        snapshot = self._before.snapshot.after(self._results)
        return ToolBatch(
            agent_id=key.agent_id,
            conversation_id=key.conversation_id,
            run_id=key.run_id,
            step_id=record.step_id,
            model=record.model,
            timezone=context.agent.timezone,
            calls=[call],
            idempotency_keys={call.id: idempotency_key(key.run_id, record.step, call.id)},
            allowed=context.toolset.callable.names,
            agent_type=context.agent.type.value,
            # The code may have put returns of earlier calls into this one.
            snapshot=replace(snapshot, taint=taint_of(snapshot.taint, self._taint)),
            message_id=record.message_id,
            group=context.group,
        )

    @property
    def _taint(self) -> Taint:
        return taint_of(*(labels_in(result) for result in self._results))

    def _called_untrusted_tools(self) -> bool:
        # As for calls of a reply, the tool's declared source counts, regardless of its return.
        toolset = self._context.toolset
        return any(toolset.untrusted_labels(call.name) for call in self._made if not call.refused)

    def _effect(self, call: ToolCall) -> ToolEffect:
        tool = self._context.toolset.find(call.name)
        return tool.replay_effect if tool is not None else ToolEffect.UNDECLARED

    def _own_result(self, call: ToolCall, status: ToolStatus, text: str) -> ToolResult:
        return own_result(
            call, status, text, self._context.clock.now(), self._context.agent.timezone
        )

    def _id(self, number: int) -> str:
        call_id = f"{self._parent.id}/{number}"
        while call_id in self._ids:
            call_id += "/"
        return call_id


def recorded(parent_id: str, records: Iterable[NestedRecord]) -> NestedState:
    """Returns the journalled calls of code whose run was lost, and their results."""
    own_records = [record for record in records if record.parent_id == parent_id]
    nested_calls = [
        _shown(
            record.call,
            record.result.tool_return.status if record.result is not None else ToolStatus.UNKNOWN,
        )
        for record in own_records
    ]
    return nested_calls, [record.result for record in own_records if record.result is not None]


def joined(
    result: ToolResult, nested_calls: Sequence[NestedCall], results: Sequence[ToolResult]
) -> ToolResult:
    """Returns the result of a call, merged with the nested calls that its code made."""
    if not nested_calls:
        return result
    tool_return = result.tool_return
    taint = taint_of(tool_return.taint, *(labels_in(result) for result in results))
    return replace(
        result,
        tool_return=replace(tool_return, nested=tuple(nested_calls), taint=taint),
        memory_edits=(
            *result.memory_edits,
            *(e for result in results for e in result.memory_edits),
        ),
        archival_changed=any(r.archival_changed for r in (result, *results)),
        files_changed=any(r.files_changed for r in (result, *results)),
    )


def without_images(result: ToolResult) -> ToolResult:
    """Returns a result without its images, since code and model get the text only."""
    if not result.tool_return.images:
        return result
    return replace(result, tool_return=replace(result.tool_return, images=()))


def labels_in(result: ToolResult) -> list[Provenance]:
    """Returns the provenance and taint labels of a result."""
    tool_return = result.tool_return
    own = [] if tool_return.provenance is None else [tool_return.provenance]
    return [*own, *tool_return.taint]


def _answer(result: ToolResult) -> CodeAnswer:
    tool_return = result.tool_return
    value = called_by(tool_return).output
    if tool_return.status is not ToolStatus.OK:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return CodeAnswer(error=storable_text(text))
    return CodeAnswer(json.dumps(_value(value)))


def _value(value: Any) -> Any:
    """Parses a text that holds a JSON object or array; returns any other value unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except JsonTextError:
            return value
    return value


def _shown(call: ToolCall, status: ToolStatus, *, refused: bool = False) -> NestedCall:
    arguments = call.arguments
    if len(arguments) > _SHOWN:
        arguments = f"{arguments[:_SHOWN]}..."
    return NestedCall(call.id, call.name, arguments, status, refused)
