"""Runs the calls of one reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strata.shared.clock import Clock
from strata.shared.context import RequestContext, current, use
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT, pack
from strata.tool_execution.builtin.argument_names import in_argument_names
from strata.tool_execution.domain.arguments import parse_arguments
from strata.tool_execution.domain.dates import zone
from strata.tool_execution.domain.tools import (
    Call,
    Caller,
    Effect,
    Outcome,
    Output,
    ReturnStatus,
    Tool,
    ToolError,
)
from strata.tool_execution.peers import LostAnswerError

# What a tier says with these statuses is about the request; the model can mend it.
_TOLD_TO_MODEL = frozenset(
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
        """The tools that it runs."""
        ...

    async def run(self, call: Call, arguments: dict[str, Any], caller: Caller) -> Output:
        """Runs one call with valid arguments.

        Raises:
            ToolError: The tool refused.
            StrataError: A tier refused or failed.
        """
        ...


class OwnExecutor(Executor, Protocol):
    """Runs the tools of the calling project among the calls of one reply."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Those tools by name."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """A call starts."""

    call: Call


class Engine:
    """Runs calls: parallel ones at once, the others one after the other in their order.

    Args:
        tools: The built-in tools by name.
        executors: What runs them.
        clock: Stamps returns and measures calls.
        timeout: Seconds that one call may take.
        timeouts: The same for tools that have another time, by name.
        max_parallel: Calls at the same time at most.
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
    ) -> None:
        self._tools = tools
        self._all = executors
        self._executors = {name: executor for executor in executors for name in executor.names}
        self._clock = clock
        self._timeout = timeout
        self._max_parallel = max_parallel
        self._timeouts = timeouts or {}

    def run(
        self,
        calls: Sequence[Call],
        caller: Caller,
        allowed: Collection[str],
        own: OwnExecutor | None = None,
        more: Sequence[Executor] = (),
    ) -> AsyncGenerator[Started | Outcome, None]:
        """Yields each start and each outcome as they happen; closing it stops what still runs.

        Args:
            calls: The calls of one reply.
            caller: On whose behalf.
            allowed: Names of the tools that may be called.
            own: The project's own tools among them; a built-in tool goes before one of its name.
            more: What runs built-in tools of these calls in the place of what else runs them.
        """
        if own is None and not more:
            return self._run(calls, caller, allowed)
        joined = Engine(
            {**(own.tools if own is not None else {}), **self._tools},
            [*([own] if own is not None else []), *self._all, *more],
            self._clock,
            timeout=self._timeout,
            max_parallel=self._max_parallel,
            timeouts=self._timeouts,
        )
        return joined.run(calls, caller, allowed)

    async def _run(
        self, calls: Sequence[Call], caller: Caller, allowed: Collection[str]
    ) -> AsyncGenerator[Started | Outcome, None]:
        events: asyncio.Queue[Started | Outcome] = asyncio.Queue()
        slots = asyncio.Semaphore(self._max_parallel)

        async def one(call: Call, caller: Caller) -> Outcome:
            async with slots:
                events.put_nowait(Started(call))
                outcome = await self._outcome(call, caller, allowed)
                events.put_nowait(outcome)
                return outcome

        async def in_order(serial: Sequence[Call], caller: Caller) -> None:
            for call in serial:
                outcome = await one(call, caller)
                caller = caller.after(outcome.output.memory_edits)

        parallel = [call for call in calls if self._is_parallel(call)]
        serial = [call for call in calls if not self._is_parallel(call)]
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(one(call, caller)) for call in parallel
        ]
        tasks.append(asyncio.create_task(in_order(serial, caller)))
        try:
            waiting = len(calls)
            while waiting:
                event = await events.get()
                waiting -= isinstance(event, Outcome)
                yield event
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def _is_parallel(self, call: Call) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.parallel

    async def _outcome(self, call: Call, caller: Caller, allowed: Collection[str]) -> Outcome:
        began = self._clock.monotonic()
        try:
            output = await self._execute(call, caller, allowed)
            status, value = ReturnStatus.OK, output.value
        except ToolError as error:
            status, value = error.status, error.value
            output = Output(None, memory_edits=error.memory_edits)
        now = self._clock.now().astimezone(zone(caller.timezone))
        tool = self._tools.get(call.name)
        limit = tool.return_char_limit if tool else FUNCTION_RETURN_CHAR_LIMIT
        content, truncated = pack(status, value, now, limit)
        duration = self._clock.monotonic() - began
        return Outcome(call, status, content, duration, truncated, output)

    async def _execute(self, call: Call, caller: Caller, allowed: Collection[str]) -> Output:
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
            arguments = parse_arguments(tool, call.arguments)
            # Of what only reads, nothing is left to find out.
            acts = tool.effect is not Effect.READ_ONLY
            with use(_until(seconds)):
                async with asyncio.timeout(seconds):
                    return await self._executors[call.name].run(call, arguments, caller)
        except ToolError:
            raise
        except TimeoutError:
            raise _unended(f"{call.name} did not end within {seconds:g} seconds.", acts) from None
        except LostAnswerError as error:
            _log.warning("answer of a tool call lost", tool=call.name, reason=error.reason.value)
            raise _unended(f"{call.name} was begun: {error.message}", acts) from error
        except StrataError as error:
            if error.status in _TOLD_TO_MODEL:
                # Only the fields that built-in tools fill in are known.
                named = tool.own is None
                message = in_argument_names(call.name, error, arguments) if named else error.message
                raise ToolError(message) from error
            _log.warning("tool call failed", tool=call.name, reason=error.reason.value)
            raise ToolError(
                f"{call.name} could not be carried out now: {error.message} Try again later."
            ) from error
        except Exception:  # noqa: BLE001 - a defect of one tool must not end the others
            _log.exception("tool call failed", tool=call.name)
            raise _unended(f"{call.name} failed because of an internal error.", acts) from None


def _until(seconds: float) -> RequestContext:
    """Returns the context with a deadline after so many seconds, or an earlier one that it has."""
    context = current()
    deadline = asyncio.get_running_loop().time() + seconds
    if context.deadline is not None and context.deadline < deadline:
        return context
    return context.with_deadline(deadline)


def _unended(text: str, acts: bool) -> ToolError:
    """Returns the failure of a call that was begun and gave no answer."""
    if not acts:
        return ToolError(text)
    return ToolError(
        f"{text} Whether it had its effect is unknown. Find out before you call it again.",
        unknown=True,
    )
