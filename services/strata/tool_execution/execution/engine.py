"""Runs the tool calls of one model reply: parallel and serial calls, timeouts, errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata.protocol.errors import StrataError
from strata.shared.clock import Clock
from strata.shared.context import RequestContext, current, use
from strata.shared.logs import get_logger
from strata.shared.messages import ToolStatus
from strata.shared.metric_names import TOOL_CALL_SECONDS, TOOL_CALLS
from strata.shared.search.time_expressions import zone_of
from strata.shared.telemetry import Telemetry
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT, pack, pack_on_thread
from strata.tool_execution.clients.peers import LostAnswerError
from strata.tool_execution.domain.arguments import read_arguments
from strata.tool_execution.domain.tools import (
    CallingAgent,
    CallOutcome,
    Effect,
    Output,
    Tool,
    ToolCall,
    ToolError,
)
from strata.tool_execution.execution.argument_names import in_argument_names
from strata.tool_execution.execution.tool_spans import note_outcome, tool_span, type_label

# Errors of a service with these statuses are about the request, so the model can correct it.
_CORRECTABLE_BY_MODEL = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
    }
)
_log = get_logger(__name__)


class Executor(Protocol):
    """Runs the tools of one kind."""

    @property
    def names(self) -> Collection[str]:
        """Names of the tools that it runs."""
        ...

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Runs one call with valid arguments.

        Raises:
            ToolError: The tool failed.
            StrataError: Another service refused the request or failed.
        """
        ...


class OwnExecutor(Executor, Protocol):
    """Runs the custom and MCP tools of the calling project for the calls of one reply."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The project's tools by name."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A call starts."""

    call: ToolCall


class CallExecutor:
    """Runs calls of parallel tools concurrently, and the others one after another in order.

    Args:
        tools: The built-in tools by name.
        executors: The executors of these tools.
        clock: Timestamps of returns, and durations.
        timeout: Seconds that one call may take.
        timeouts: Seconds by tool name, for tools with their own limit.
        max_parallel: Maximum number of concurrent calls.
        telemetry: Gets the number and the time of calls; None for no metrics.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        executors: Sequence[Executor],
        clock: Clock,
        *,
        timeout: float,
        max_parallel: int,
        timeouts: Mapping[str, float] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._tools = tools
        self._all = executors
        self._executors = {name: executor for executor in executors for name in executor.names}
        self._clock = clock
        self._timeout = timeout
        self._max_parallel = max_parallel
        self._timeouts = timeouts or {}

    def run(
        self,
        calls: Sequence[ToolCall],
        caller: CallingAgent,
        allowed: Collection[str],
        own: OwnExecutor | None = None,
        more: Sequence[Executor] = (),
    ) -> AsyncGenerator[Started | CallOutcome, None]:
        """Yields the start and the outcome of each call as they happen; closing it cancels calls.

        Args:
            calls: The calls of one reply.
            caller: The agent and the run that make the calls.
            allowed: Names of the tools that may be called.
            own: Executor of the project's own tools; a built-in tool of the same name wins.
            more: Executors that replace the usual ones for these calls.
        """
        if own is None and not more:
            return self._run(calls, caller, allowed)
        joined = CallExecutor(
            {**(own.tools if own is not None else {}), **self._tools},
            [*([own] if own is not None else []), *self._all, *more],
            self._clock,
            timeout=self._timeout,
            max_parallel=self._max_parallel,
            timeouts=self._timeouts,
            telemetry=self._telemetry,
        )
        return joined.run(calls, caller, allowed)

    async def _run(
        self, calls: Sequence[ToolCall], caller: CallingAgent, allowed: Collection[str]
    ) -> AsyncGenerator[Started | CallOutcome, None]:
        events: asyncio.Queue[Started | CallOutcome] = asyncio.Queue()
        slots = asyncio.Semaphore(self._max_parallel)

        async def run_one(call: ToolCall, caller: CallingAgent) -> CallOutcome:
            async with slots:
                events.put_nowait(Started(call))
                outcome = await self._outcome(call, caller, allowed)
                events.put_nowait(outcome)
                return outcome

        async def run_in_order(serial: Sequence[ToolCall], caller: CallingAgent) -> None:
            for call in serial:
                outcome = await run_one(call, caller)
                caller = caller.after(outcome.output.memory_edits)

        parallel = [call for call in calls if self._is_parallel(call)]
        serial = [call for call in calls if not self._is_parallel(call)]
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(run_one(call, caller)) for call in parallel
        ]
        tasks.append(asyncio.create_task(run_in_order(serial, caller)))
        try:
            waiting = len(calls)
            while waiting:
                event = await events.get()
                waiting -= isinstance(event, CallOutcome)
                yield event
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def _is_parallel(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.parallel

    async def _outcome(
        self, call: ToolCall, caller: CallingAgent, allowed: Collection[str]
    ) -> CallOutcome:
        tool = self._tools.get(call.name)
        with tool_span(tool) as span:
            outcome = await self._timed(call, caller, allowed)
            if span is not None:
                note_outcome(span, outcome)
            return outcome

    async def _timed(
        self, call: ToolCall, caller: CallingAgent, allowed: Collection[str]
    ) -> CallOutcome:
        began = self._clock.monotonic()
        try:
            output = await self._execute(call, caller, allowed)
            status, value = ToolStatus.OK, output.value
        except ToolError as error:
            status, value = error.status, error.value
            output = Output(
                None, memory_edits=error.memory_edits, printed=error.printed, taint=error.taint
            )
        now = self._clock.now().astimezone(zone_of(caller.timezone))
        tool = self._tools.get(call.name)
        limit = tool.return_char_limit if tool else FUNCTION_RETURN_CHAR_LIMIT
        if tool is None or tool.own is None:
            content, truncated = pack(status, value, now, limit)
        else:
            content, truncated = await pack_on_thread(status, value, now, limit)
        duration = self._clock.monotonic() - began
        self._measure(tool, status, duration)
        return CallOutcome(call, status, content, duration, truncated, output)

    def _measure(self, tool: Tool | None, status: ToolStatus, seconds: float) -> None:
        kind = type_label(tool)
        # Names of a project's tools have no bound.
        name = tool.name if tool is not None and tool.own is None else ""
        self._telemetry.counter(TOOL_CALLS, type=kind, tool=name, status=status.value).inc()
        self._telemetry.histogram(TOOL_CALL_SECONDS, type=kind, tool=name).observe(seconds)

    async def _execute(
        self, call: ToolCall, caller: CallingAgent, allowed: Collection[str]
    ) -> Output:
        tool = self._tools.get(call.name)
        if tool is None or call.name not in allowed:
            raise ToolError(
                f"[ToolConstraintError] Cannot call {call.name},"
                f" valid tools include: {sorted(allowed)}."
            )
        seconds = self._timeouts.get(call.name, self._timeout)
        arguments: dict[str, Any] = {}
        acts = False
        try:
            arguments = await read_arguments(tool, call.arguments)
            # A read-only tool has no effect whose outcome could be unknown.
            acts = tool.effect is not Effect.READ_ONLY
            with use(_context_with_deadline(seconds)):
                async with asyncio.timeout(seconds):
                    return await self._executors[call.name].run(call, arguments, caller)
        except ToolError:
            raise
        except TimeoutError:
            raise _without_result(
                f"{call.name} did not end within {seconds:g} seconds.", acts
            ) from None
        except LostAnswerError as error:
            _log.warning("tool call outcome unknown", tool=call.name, reason=error.reason.value)
            raise _without_result(f"{call.name} was begun: {error.message}", acts) from error
        except StrataError as error:
            if error.status in _CORRECTABLE_BY_MODEL:
                # Request fields are mapped to argument names for built-in tools only.
                is_builtin = tool.own is None
                message = (
                    in_argument_names(call.name, error, arguments) if is_builtin else error.message
                )
                raise ToolError(message) from error
            _log.warning("tool call failed", tool=call.name, reason=error.reason.value)
            raise ToolError(
                f"{call.name} could not be carried out now: {error.message} Try again later."
            ) from error
        except Exception:  # noqa: BLE001 - a defect of one tool must not end the others
            _log.exception("tool call failed", tool=call.name)
            raise _without_result(
                f"{call.name} failed because of an internal error.", acts
            ) from None


def _context_with_deadline(seconds: float) -> RequestContext:
    """Returns the current context with a deadline in `seconds`, or with its earlier deadline."""
    context = current()
    deadline = asyncio.get_running_loop().time() + seconds
    if context.deadline is not None and context.deadline < deadline:
        return context
    return context.with_deadline(deadline)


def _without_result(text: str, acts: bool) -> ToolError:
    """Returns the error of a call that was started and returned no result."""
    if not acts:
        return ToolError(text)
    return ToolError(
        f"{text} Whether it had its effect is unknown. Find out before you call it again.",
        unknown=True,
    )
