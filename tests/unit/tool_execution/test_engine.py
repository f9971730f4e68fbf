"""The execution of the calls of one reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from span_records import SpanRecorder, traced
from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError
from strata.shared.clock import SystemClock
from strata.shared.context import RequestContext, current, use
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import ToolStatus
from strata.shared.metric_names import TOOL_CALL_SECONDS, TOOL_CALLS
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.nested import nested_span
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.clients.peers import LostAnswerError
from strata.tool_execution.domain.tools import (
    CallingAgent,
    CallOutcome,
    Output,
    OwnDefinition,
    Tool,
    ToolCall,
    ToolError,
    ToolType,
)
from strata.tool_execution.execution.engine import CallExecutor, Started

CALLER = CallingAgent("agent-1", "conversation-1", "run-1", "step-1", "openai/x", "UTC")
READ = BUILTIN_TOOLS["conversation_search"]
WRITE = BUILTIN_TOOLS["core_memory_append"]
Behaviour = Callable[[ToolCall], Awaitable[Output]]


class Scripted:
    """Runs every tool by one function."""

    names: frozenset[str] = frozenset(BUILTIN_TOOLS)

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        return await self._behave(call)


def engine(
    behave: Behaviour, timeout: float = 5, tools: dict[str, Tool] | None = None
) -> CallExecutor:
    return CallExecutor(
        tools or BUILTIN_TOOLS, [Scripted(behave)], SystemClock(), timeout=timeout, max_parallel=4
    )


def call(number: int, tool: Tool, arguments: str = "") -> ToolCall:
    usual = {READ.name: '{"query": "x"}', WRITE.name: '{"label": "a", "content": "b"}'}
    return ToolCall(f"call-{number}", tool.name, arguments or usual[tool.name], f"run/1/{number}")


async def outcomes(engine: CallExecutor, *calls: ToolCall) -> list[CallOutcome]:
    events = [event async for event in engine.run(calls, CALLER, frozenset(BUILTIN_TOOLS))]
    assert sum(isinstance(event, Started) for event in events) == len(calls)
    return [event for event in events if isinstance(event, CallOutcome)]


async def test_serial_calls_run_in_order_and_parallel_ones_do_not_wait() -> None:
    running: list[str] = []
    order: list[str] = []
    released = asyncio.Event()

    async def behave(call: ToolCall) -> Output:
        order.append(call.id)
        running.append(call.id)
        if call.name == WRITE.name:
            assert [item for item in running if item in {"call-1", "call-3"}] == [call.id]
            await released.wait()
        else:
            released.set()
        running.remove(call.id)
        return Output(call.id)

    done = await outcomes(engine(behave), call(1, WRITE), call(2, READ), call(3, WRITE))
    assert {json.loads(item.content)["message"] for item in done} == {"call-1", "call-2", "call-3"}
    assert order.index("call-1") < order.index("call-3")


async def test_calls_are_measured_by_type_and_status_and_only_built_in_ones_by_name() -> None:
    async def behave(call: ToolCall) -> Output:
        if call.name == READ.name:
            raise ToolError("No.")
        return Output("Done.")

    custom = replace(READ, name="of_a_project", type=ToolType.CUSTOM, own=OwnDefinition())
    telemetry = Telemetry()
    executor = Scripted(behave)
    executor.names = frozenset({*BUILTIN_TOOLS, custom.name})
    measured = CallExecutor(
        {**BUILTIN_TOOLS, custom.name: custom},
        [executor],
        SystemClock(),
        timeout=5,
        max_parallel=4,
        telemetry=telemetry,
    )
    calls = [call(1, READ), call(2, WRITE), call(3, custom, '{"query": "x"}')]
    unknown = ToolCall("call-4", "invented", "{}", "run/1/4")
    allowed = {*BUILTIN_TOOLS, custom.name}
    async for _ in measured.run([*calls, unknown], CALLER, allowed):
        pass
    counted = {
        (sample.labels["type"], sample.labels["tool"], sample.labels["status"])
        for sample in telemetry.samples()
        if sample.name == TOOL_CALLS
    }
    assert counted == {
        (READ.type.value, READ.name, "Failed"),
        (WRITE.type.value, WRITE.name, "OK"),
        ("custom", "", "OK"),
        ("unknown", "", "Failed"),
    }
    assert telemetry.total(TOOL_CALLS) == 4
    assert telemetry.histogram(TOOL_CALL_SECONDS, type="custom", tool="").count == 1


async def test_calls_are_spans_without_their_arguments_and_returns() -> None:
    async def behave(call: ToolCall) -> Output:
        with nested_span("inside"):
            if call.name == READ.name:
                raise ToolError("secret of the error")
        return Output("secret of the return")

    recorder = SpanRecorder()
    unknown = ToolCall("call-3", "secret name", "{}", "run/1/3")
    read = call(1, READ, '{"query": "secret of the query"}')
    with traced(recorder) as parent:
        await outcomes(engine(behave), read, call(2, WRITE), unknown)
    failed = recorder.named(f"execute_tool {READ.name}")
    written = recorder.named(f"execute_tool {WRITE.name}")
    invented = recorder.named("execute_tool unknown")
    assert {span.parent_id for span in (failed, written, invented)} == {parent.span_id}
    inside = {span.parent_id for span in recorder.spans if span.name == "inside"}
    assert inside == {failed.span_id, written.span_id}
    assert (failed.error_type, written.error_type, invented.error_type) == ("Failed", "", "Failed")
    assert written.attributes["gen_ai.operation.name"] == "execute_tool"
    assert written.attributes["gen_ai.tool.name"] == WRITE.name
    assert written.attributes["gen_ai.tool.call.id"] == "call-2"
    assert written.attributes["strata.tool.type"] == WRITE.type.value
    assert "secret" not in recorder.texts()


async def test_later_calls_do_not_build_on_replaced_text() -> None:
    """The seen revision stays that of the prompt after an edit; a new block has none."""
    seen: list[dict[str, int]] = []
    operations = iter(["append", "create", "append"])

    class Edits(Scripted):
        async def run(
            self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent
        ) -> Output:
            seen.append(dict(caller.block_revisions))
            edit = MemoryEdit("block-1", "human", 8, "+x", next(operations))
            return Output(None, memory_edits=(edit,))

    caller = replace(CALLER, block_revisions={"human": 7, "persona": 1})
    running = CallExecutor(
        BUILTIN_TOOLS, [Edits(_never)], SystemClock(), timeout=5, max_parallel=4
    ).run([call(n, WRITE) for n in range(3)], caller, BUILTIN_TOOLS)
    async for _ in running:
        pass
    assert seen == [{"human": 7, "persona": 1}, {"human": 7, "persona": 1}, {"persona": 1}]


async def _never(call: ToolCall) -> Output:
    raise AssertionError(call)


async def test_a_failed_call_does_not_affect_the_others() -> None:
    async def behave(call: ToolCall) -> Output:
        if call.id == "call-1":
            raise RuntimeError("secret detail")
        return Output("fine")

    done = {item.call.id: item for item in await outcomes(engine(behave), *_two())}
    assert not done["call-1"].ok
    assert "secret detail" not in done["call-1"].content
    assert done["call-2"].ok


def _two() -> tuple[ToolCall, ToolCall]:
    return call(1, WRITE), call(2, WRITE)


async def test_errors_of_a_tool_are_returned_with_their_message() -> None:
    async def behave(call: ToolCall) -> Output:
        raise ToolError("Invalid start_date format: x.")

    (done,) = await outcomes(engine(behave), call(1, WRITE))
    assert json.loads(done.content)["message"] == "Invalid start_date format: x."


async def test_errors_of_a_memory_service_are_returned_with_their_message() -> None:
    async def behave(call: ToolCall) -> Output:
        raise FailedPreconditionError("Error: read-only.", reason=Reason.BLOCK_READ_ONLY)

    (done,) = await outcomes(engine(behave), call(1, WRITE))
    assert json.loads(done.content)["message"] == "Error: read-only."


async def test_an_unavailable_service_fails_the_tool_and_not_the_turn() -> None:
    async def behave(call: ToolCall) -> Output:
        raise UnavailableError("the database cannot be reached now")

    (done,) = await outcomes(engine(behave), call(1, WRITE))
    assert not done.ok
    assert "Try again later" in done.content


async def test_a_call_past_its_time_limit_is_ended() -> None:
    async def behave(call: ToolCall) -> Output:
        await asyncio.Event().wait()
        raise AssertionError

    done = await outcomes(engine(behave, timeout=0.05), call(1, WRITE), call(2, READ))
    ended = {outcome.call.id: outcome for outcome in done}
    assert all("did not end within 0.05 seconds" in outcome.content for outcome in done)
    # A tool with side effects may have had them; a search has no unknown outcome.
    assert ended["call-1"].status is ToolStatus.UNKNOWN
    assert json.loads(ended["call-1"].content)["status"] == "Unknown"
    assert ended["call-2"].status is ToolStatus.FAILED


async def test_a_lost_answer_and_a_defect_have_an_unknown_outcome() -> None:
    async def behave(call: ToolCall) -> Output:
        if call.id == "call-1":
            raise LostAnswerError("The archival memory service gave no answer.")
        raise RuntimeError("secret detail")

    for done in await outcomes(engine(behave), *_two()):
        assert done.status is ToolStatus.UNKNOWN
        assert "effect is unknown" in done.content


async def test_calls_have_their_deadline() -> None:
    left: list[float] = []

    async def behave(call: ToolCall) -> Output:
        remaining = current().remaining()
        assert remaining is not None
        left.append(remaining)
        return Output("fine")

    await outcomes(engine(behave, timeout=5), call(1, WRITE))
    with use(RequestContext(deadline=asyncio.get_running_loop().time() + 1)):
        await outcomes(engine(behave, timeout=5), call(1, WRITE))
    assert 1 < left[0] <= 5
    assert left[1] <= 1


async def test_a_tool_that_is_not_offered_is_refused() -> None:
    async def behave(call: ToolCall) -> Output:
        raise AssertionError

    running = engine(behave).run([call(1, WRITE)], CALLER, ["b", "a"])
    done = [event async for event in running if isinstance(event, CallOutcome)]
    assert json.loads(done[0].content)["message"] == (
        "[ToolConstraintError] Cannot call core_memory_append, valid tools include: ['a', 'b']."
    )


async def test_leaving_the_stream_stops_running_calls() -> None:
    stopped = asyncio.Event()

    async def behave(call: ToolCall) -> Output:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    running = engine(behave).run([call(1, WRITE)], CALLER, BUILTIN_TOOLS)
    assert isinstance(await anext(running), Started)
    await asyncio.sleep(0)
    await running.aclose()
    assert stopped.is_set()


async def test_the_limit_of_the_tool_cuts_its_return() -> None:
    async def behave(call: ToolCall) -> Output:
        return Output("x" * 500)

    short = replace(WRITE, return_char_limit=100)
    (done,) = await outcomes(engine(behave, tools={WRITE.name: short}), call(1, WRITE))
    assert done.truncated
    assert json.loads(done.content)["message"].endswith("(500 > 100)]")


@pytest.mark.parametrize("tool", BUILTIN_TOOLS.values(), ids=lambda tool: tool.name)
def test_definitions_of_built_in_tools_are_valid(tool: Tool) -> None:
    assert len(tool.name) <= 48
    assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])
    assert tool.parameters["additionalProperties"] is False
    assert tool.id.startswith("tool-")


OTHER = {"type": "object", "properties": {}, "additionalProperties": False}


async def test_custom_tools_never_replace_built_in_ones() -> None:
    own = {"mine": replace(READ, name="mine"), READ.name: replace(READ, parameters=OTHER)}

    class Own:
        tools = own
        names = frozenset(own)

        async def run(
            self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent
        ) -> Output:
            return Output(f"own {call.name}")

    async def behave(call: ToolCall) -> Output:
        return Output(f"built in {call.name}")

    running = engine(behave)
    mine = ToolCall("call-9", "mine", '{"query": "x"}', "run/1/9")
    allowed = frozenset({"mine", READ.name})
    events = [event async for event in running.run([mine, call(1, READ)], CALLER, allowed, Own())]
    done = [event for event in events if isinstance(event, CallOutcome)]
    assert {json.loads(item.content)["message"] for item in done} == {
        "own mine",
        f"built in {READ.name}",
    }
    [alone] = await outcomes(running, mine)
    assert "[ToolConstraintError]" in alone.content


async def test_a_schema_that_fails_its_checker_fails_one_call_only() -> None:
    async def behave(call: ToolCall) -> Output:
        return Output(call.id)

    broken = {"type": "object", "properties": {"query": {"multipleOf": 1e-300}}}
    tools = {READ.name: replace(READ, parameters=broken), WRITE.name: WRITE}
    running = engine(behave, tools=tools)
    calls = [call(1, READ, '{"query": 1e300}'), call(2, WRITE)]
    done = await outcomes(running, *calls)
    assert {item.call.id for item in done} == {"call-1", "call-2"}
