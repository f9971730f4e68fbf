"""The calls that code makes while it runs: judged, written down and run like calls of the model.

Each is taken as the next call of the reply whose code makes it, after the call that runs the code.
What it came to goes into the result of that call, and so into the history of the run and the taint
of the context; the window holds calls of the model alone (decision 0086).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from strata.agent_loop.domain.journal import NestedRecord, idempotency_key
from strata.agent_loop.domain.messages import NestedCall, Provenance, ToolStatus
from strata.agent_loop.domain.taint import Taint, taint_of
from strata.agent_loop.domain.tools import (
    CallFinished,
    CodeAnswer,
    CodeCall,
    PromptSnapshot,
    ToolBatch,
    ToolResult,
)
from strata.agent_loop.loop.calls import runnable, storable
from strata.agent_loop.loop.lost_calls import FIRST_PAUSE_S, LONGEST_PAUSE_S, Fate, fate_of
from strata.agent_loop.loop.packaging import OUTCOME_UNKNOWN, own_result
from strata.agent_loop.loop.patience import until_available
from strata.agent_loop.models.domain import ToolCall
from strata.agent_loop.rules.history import Called, called_by
from strata.agent_loop.rules.refusals import CONSTRAINT, NOT_RUN
from strata.shared.errors import StrataError, passes
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.tool_catalogue import ToolEffect

if TYPE_CHECKING:
    from strata.agent_loop.domain.journal import StepRecord
    from strata.agent_loop.loop.step_calls import ToolContext

MAX_NESTED_CALLS = 50
"""Calls of tools that one call's code may make, refused ones included."""
_SHOWN = 500

NestedState: TypeAlias = tuple[list[NestedCall], list[ToolResult]]
"""Calls that code made, and the results that are known of them."""


@dataclass(frozen=True, slots=True)
class StateBeforeCode:
    """What there was before code made its first call.

    Attributes:
        calls: The calls of the run, and of the reply, the one that runs the code last.
        tainted: There is text of strangers in the turn.
        snapshot: What its calls go by.
    """

    calls: tuple[Called, ...]
    tainted: bool
    snapshot: PromptSnapshot


class NestedCalls:
    """The calls of the code of one call.

    Args:
        context: What they are run with.
        record: The reply.
        parent: The call whose code makes them.
        before: What there was before.
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
        """The calls so far, one that is under way as UNKNOWN; and the results."""
        return list(self._made), list(self._results)

    async def answer(self, asked: CodeCall) -> CodeAnswer:
        """Judges and runs a call of the code.

        Raises:
            AbortedError: STALE_ATTEMPT; another dispatch has the run.
            StrataError: The ledger cannot be reached.
        """
        number = len(self._made) + 1
        if number > MAX_NESTED_CALLS:
            return CodeAnswer(
                error=f"{CONSTRAINT} Code can call tools {MAX_NESTED_CALLS} times in one call;"
                f" {asked.name} was not called."
            )
        call = ToolCall(self._id(number), storable(asked.name), storable(asked.arguments))
        history = [*self._before.calls, *(Called(c.name) for c in self._made if not c.refused)]
        verdict = self._context.rules.judge_nested(
            call,
            history,
            self._context.toolset,
            tainted=self._before.tainted or bool(self._taint) or self._foreseen(),
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
        # So it stays if nobody waits for its end.
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
                return self._own(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
            except StrataError as error:
                match fate_of(error, started=started, repeatable=repeatable, defects=defects):
                    case Fate.RAISE:
                        raise
                    case Fate.UNKNOWN:
                        return self._own(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN)
                    case Fate.REFUSED:
                        return self._own(call, ToolStatus.FAILED, f"{NOT_RUN} {error.message}")
                    case Fate.REPEAT:
                        defects += not passes(error)
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
            # What a call returned, the code may have put into this one.
            snapshot=replace(snapshot, taint=taint_of(snapshot.taint, self._taint)),
            message_id=record.message_id,
            group=context.group,
        )

    @property
    def _taint(self) -> Taint:
        return taint_of(*(labels_in(result) for result in self._results))

    def _foreseen(self) -> bool:
        # As for calls of a reply: what a tool is known for counts, whatever it has returned.
        toolset = self._context.toolset
        return any(toolset.untrusted_labels(call.name) for call in self._made if not call.refused)

    def _effect(self, call: ToolCall) -> ToolEffect:
        tool = self._context.toolset.find(call.name)
        return tool.replay_effect if tool is not None else ToolEffect.UNDECLARED

    def _own(self, call: ToolCall, status: ToolStatus, text: str) -> ToolResult:
        return own_result(
            call, status, text, self._context.clock.now(), self._context.agent.timezone
        )

    def _id(self, number: int) -> str:
        call_id = f"{self._parent.id}/{number}"
        while call_id in self._ids:
            call_id += "/"
        return call_id


def recorded(parent_id: str, records: Iterable[NestedRecord]) -> NestedState:
    """Returns what the ledger knows of the calls of code that was lost."""
    own_records = [record for record in records if record.parent_id == parent_id]
    made = [
        _shown(
            record.call,
            record.result.tool_return.status if record.result is not None else ToolStatus.UNKNOWN,
        )
        for record in own_records
    ]
    return made, [record.result for record in own_records if record.result is not None]


def joined(
    result: ToolResult, made: Sequence[NestedCall], results: Sequence[ToolResult]
) -> ToolResult:
    """Returns a result with calls that code made, and with what these changed and held."""
    if not made:
        return result
    tool_return = result.tool_return
    taint = taint_of(tool_return.taint, *(labels_in(result) for result in results))
    return replace(
        result,
        tool_return=replace(tool_return, nested=tuple(made), taint=taint),
        memory_edits=(
            *result.memory_edits,
            *(e for result in results for e in result.memory_edits),
        ),
        archival_changed=result.archival_changed or any(e.archival_changed for e in results),
        files_changed=result.files_changed or any(e.files_changed for e in results),
    )


def without_images(result: ToolResult) -> ToolResult:
    """Returns a result without its images: code gets the text, and the model is not shown them."""
    if not result.tool_return.images:
        return result
    return replace(result, tool_return=replace(result.tool_return, images=()))


def labels_in(result: ToolResult) -> list[Provenance]:
    """Returns the labels of what a result holds."""
    tool_return = result.tool_return
    own = [] if tool_return.provenance is None else [tool_return.provenance]
    return [*own, *tool_return.taint]


def _answer(result: ToolResult) -> CodeAnswer:
    tool_return = result.tool_return
    value = called_by(tool_return).output
    if tool_return.status is not ToolStatus.OK:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return CodeAnswer(error=storable(text))
    return CodeAnswer(json.dumps(_value(value)))


def _value(value: Any) -> Any:
    """A text that stands for an object or an array is given as that; any other one as it is."""
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
