"""Carries out the runs that this gateway holds, and takes those that nobody holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs import convert
from strata.gateway.runs.domain import Dispatch, LeaseLostError, RunFailure, RunStore, StopReason
from strata.gateway.runs.live import LiveRun, RunHub
from strata.gateway.runs.states import RunState
from strata.shared.auth import TokenSigner
from strata.shared.clock import Clock
from strata.shared.context import Caller, RequestContext, use
from strata.shared.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.shared.logs import get_logger
from strata.shared.telemetry import new_trace_id

_log = get_logger(__name__)

# The token of a run outlives the run by this, for what is under way at its deadline.
_TOKEN_MARGIN_S = 60.0
_CLAIM_BATCH = 50
_REPEATABLE = (
    UnavailableError,
    InternalError,
    DeadlineExceededError,
    ResourceExhaustedError,
    CancelledError,
    AbortedError,
)


class TurnClient(Protocol):
    """The agent loop, as the dispatcher needs it."""

    def execute(
        self, request: turn_pb.ExecuteRunRequest, *, seconds: float
    ) -> AsyncGenerator[run_event_pb2.RunEvent, None]:
        """Runs a turn and yields its events; leaving the iteration cancels the turn.

        Raises from the iteration: the `StrataError` that ended the stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class DispatchTerms:
    """How runs are carried out; times in seconds.

    Attributes:
        heartbeat_s: Pause between two renewals of the leases; a third of the lease.
        poll_s: Pause between two looks for runs that nobody holds.
        max_attempts: Dispatches of one run before it is given up.
        first_pause_s: Pause before the second dispatch; it doubles from there.
        longest_pause_s: Longest pause between dispatches.
        settle_s: Pause between the cancellation of a turn and the next one of its
            conversation, in which agent_loop stores what the turn had finished.
        max_runs: Runs that this gateway carries out at once.
    """

    heartbeat_s: float = 3.0
    poll_s: float = 1.0
    max_attempts: int = 8
    first_pause_s: float = 0.2
    longest_pause_s: float = 5.0
    settle_s: float = 0.2
    max_runs: int = 1000


class _Stop(Enum):
    CANCEL = auto()
    ABANDON = auto()


class _ActiveRun:
    """A run, its log and the task that carries it out."""

    def __init__(self, dispatch: Dispatch, live: LiveRun) -> None:
        self.dispatch = dispatch
        self.live = live
        self.stop: _Stop | None = None
        self.stopped = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def ask_to_stop(self, stop: _Stop) -> None:
        # What was abandoned stays so; a cancellation may still turn into that.
        if self.stop is not _Stop.ABANDON:
            self.stop = stop
        self.stopped.set()


class Dispatcher:
    """Carries out runs.

    Args:
        store: Runs and leases.
        hub: Where the live runs are found by their followers.
        turns: The agent loop.
        signer: Signs the token that a run acts with.
        clock: The time.
        owner: Names this gateway, as in the store.
        terms: Times and bounds.
        on_not_found: Told the project and agent when agent_loop knows no such agent.
    """

    def __init__(
        self,
        store: RunStore,
        hub: RunHub,
        turns: TurnClient,
        signer: TokenSigner,
        clock: Clock,
        *,
        owner: str,
        terms: DispatchTerms | None = None,
        on_not_found: Callable[[str, str], None] | None = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._turns = turns
        self._signer = signer
        self._clock = clock
        self._owner = owner
        self._terms = terms or DispatchTerms()
        self._on_not_found = on_not_found
        self._active: dict[str, _ActiveRun] = {}
        self._closing = False
        self._wake = asyncio.Event()

    def start(self, dispatch: Dispatch) -> None:
        """Begins to carry out a run that this gateway holds; returns at once."""
        run = dispatch.run
        live = LiveRun(dispatch, self._owner, self._store, self._clock)
        active = _ActiveRun(dispatch, live)
        self._active[run.id] = active
        self._hub.add(live)
        active.task = asyncio.create_task(self._carry_out(active), name=f"run {run.id}")

    def cancel(self, run_id: str) -> None:
        """Stops a run if it is carried out here; its row says CANCELLING already."""
        active = self._active.get(run_id)
        if active is not None:
            active.ask_to_stop(_Stop.CANCEL)
        self._hub.notify(run_id)

    async def keep_leases(self) -> None:
        """Renews the leases for ever; learns of lost runs and of remote cancellations."""
        while True:
            await asyncio.sleep(self._terms.heartbeat_s)
            try:
                await self._renew()
            except StrataError as error:
                _log.warning("leases not renewed", error=repr(error))

    async def take_over(self) -> None:
        """Takes waiting and orphaned runs for ever."""
        while True:
            self._wake.clear()
            try:
                await self._claim()
            except StrataError as error:
                _log.warning("no look at waiting runs", error=repr(error))
            try:
                await asyncio.wait_for(self._wake.wait(), self._terms.poll_s * _spread(0.2))
            except TimeoutError:
                continue

    def look(self) -> None:
        """Looks for runs that may start without waiting for the next poll."""
        self._wake.set()

    async def close(self) -> None:
        """Stops carrying out runs and gives the leases back, so that another gateway goes on."""
        self._closing = True
        active = list(self._active.values())
        for each in active:
            each.ask_to_stop(_Stop.ABANDON)
        tasks = [each.task for each in active if each.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        try:
            await self._store.release()
        except StrataError as error:
            _log.warning("leases not given back; they run out by themselves", error=repr(error))

    async def _renew(self) -> None:
        asked = {
            run_id: each.live.fence.attempt
            for run_id, each in self._active.items()
            if not each.live.finished
        }
        if not asked:
            return
        held = {each.run_id: each for each in await self._store.renew(list(asked))}
        for run_id, attempt in asked.items():
            active = self._active.get(run_id)
            if active is None or active.live.finished:
                continue
            lease = held.get(run_id)
            if lease is None or lease.attempt < attempt:
                active.ask_to_stop(_Stop.ABANDON)
            elif lease.cancelling and active.stop is None:
                active.ask_to_stop(_Stop.CANCEL)

    async def _claim(self) -> None:
        free = self._terms.max_runs - len(self._active)
        if free <= 0 or self._closing:
            return
        for project_id, run_id in await self._store.claim(min(free, _CLAIM_BATCH)):
            await self._adopt(project_id, run_id)

    async def _adopt(self, project_id: str, run_id: str) -> None:
        try:
            dispatch = await self._store.load(project_id, run_id)
        except LeaseLostError:
            return
        if dispatch.run.attempt > 1:
            _log.info("run taken over", run_id=run_id, attempt=dispatch.run.attempt)
        if run_id not in self._active:
            self.start(dispatch)

    async def _carry_out(self, active: _ActiveRun) -> None:
        run = active.dispatch.run
        following: Dispatch | None = None
        try:
            with use(self._context(active.dispatch)):
                if run.attempt > 1:
                    await active.live.restore()
                finished = await self._turn(active)
                if finished is not None:
                    following = await self._finish(active, finished)
                elif self._closing:
                    await active.live.flush()
        except LeaseLostError:
            _log.info("run left to another gateway", run_id=run.id)
        except Exception:  # noqa: BLE001
            # The row stays ours until the lease runs out; then it is taken and tried again.
            _log.exception("run not carried out", run_id=run.id)
        finally:
            if self._active.get(run.id) is active:
                del self._active[run.id]
            self._hub.remove(active.live)
            # When closing, it is given back with the other leases.
            if following is not None and not self._closing:
                self.start(following)

    async def _finish(
        self, active: _ActiveRun, finished: run_event_pb2.RunFinished
    ) -> Dispatch | None:
        pause = self._terms.first_pause_s
        while True:
            try:
                return await active.live.finish(finished, take_next=not self._closing)
            except (UnavailableError, ResourceExhaustedError, AbortedError) as error:
                if active.stop is _Stop.ABANDON:
                    raise LeaseLostError(active.dispatch.run.id) from error
                _log.warning("end of a run not stored yet", error=repr(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._terms.longest_pause_s)

    async def _turn(self, active: _ActiveRun) -> run_event_pb2.RunFinished | None:
        """Dispatches until the turn has an end; None if the run is to be left alone."""
        pause = self._terms.first_pause_s
        while True:
            if active.stop is _Stop.ABANDON:
                return None
            if active.stop is _Stop.CANCEL or active.dispatch.run.state is RunState.CANCELLING:
                return self._ended(active, StopReason.CANCELLED)
            outcome = await self._attempt(active)
            if isinstance(outcome, run_event_pb2.RunFinished):
                return outcome
            if outcome is None:
                continue
            if not self._worth_another(active, outcome):
                return self._failed(active, outcome)
            await self._pause(active, outcome.retry_after or pause)
            pause = min(pause * 2, self._terms.longest_pause_s)
            if active.stop is None:
                _log.warning("turn dispatched again", reason=outcome.reason, error=outcome.message)
                await active.live.redispatch()

    async def _attempt(self, active: _ActiveRun) -> run_event_pb2.RunFinished | StrataError | None:
        """Relays one ExecuteRun: its end, the error it broke with, or None if asked to stop."""
        remaining = self._remaining(active)
        if remaining <= 0:
            return self._deadline_passed()
        if active.live.fence.attempt > self._terms.max_attempts:
            return UnavailableError("The run was dispatched too often.")
        relay = asyncio.create_task(self._relay(active, remaining))
        stopped = asyncio.create_task(active.stopped.wait())
        try:
            await asyncio.wait((relay, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not relay.done():
                relay.cancel()
                await asyncio.wait((relay,))
                if active.stop is _Stop.CANCEL:
                    await asyncio.sleep(self._terms.settle_s)
            if relay.cancelled():
                return None
            error = relay.exception()
            if error is None:
                return relay.result()
            if isinstance(error, StrataError):
                return error
            raise error
        finally:
            relay.cancel()
            stopped.cancel()

    async def _relay(self, active: _ActiveRun, remaining: float) -> run_event_pb2.RunFinished:
        request = convert.execute_request(active.dispatch, active.live.fence.attempt)
        try:
            async with aclosing(self._turns.execute(request, seconds=remaining)) as events:
                async for event in events:
                    if event.HasField("run_finished"):
                        return event.run_finished
                    await active.live.append(event)
        except DeadlineExceededError as error:
            raise (self._deadline_passed() if self._remaining(active) <= 0 else error) from error
        raise UnavailableError("The stream of the turn ended without an end of the turn.")

    async def _pause(self, active: _ActiveRun, seconds: float) -> None:
        try:
            await asyncio.wait_for(active.stopped.wait(), seconds * _spread(0.3))
        except TimeoutError:
            return

    def _worth_another(self, active: _ActiveRun, error: StrataError) -> bool:
        return (
            isinstance(error, _REPEATABLE)
            and active.live.fence.attempt < self._terms.max_attempts
            and self._remaining(active) > 0
        )

    def _remaining(self, active: _ActiveRun) -> float:
        return (active.dispatch.deadline_time - self._clock.now()).total_seconds()

    def _deadline_passed(self) -> StrataError:
        return DeadlineExceededError("The run took longer than a run may take.")

    def _failed(self, active: _ActiveRun, error: StrataError) -> run_event_pb2.RunFinished:
        run = active.dispatch.run
        if isinstance(error, NotFoundError) and self._on_not_found is not None:
            self._on_not_found(run.project_id, run.agent_id)
        retryable = not isinstance(error, NotFoundError | InvalidArgumentError)
        if error.reason is Reason.UNSPECIFIED:
            error = InternalError(error.message)
        failure = convert.failure_of(error, retryable=retryable)
        _log.warning("run failed", run_id=run.id, reason=error.reason, error=error.message)
        return self._ended(active, StopReason.ERROR, failure)

    def _ended(
        self, active: _ActiveRun, reason: StopReason, failure: RunFailure | None = None
    ) -> run_event_pb2.RunFinished:
        live = active.live
        return convert.finished(reason, live.usage, live.step_count, failure, live.taint)

    def _context(self, dispatch: Dispatch) -> RequestContext:
        # Not the context of the call that sent the message: its deadline, and its end,
        # are not those of the run.
        run, principal = dispatch.run, dispatch.principal
        lifetime = dispatch.deadline_time - self._clock.now()
        token = self._signer.mint(
            principal.organization_id,
            principal.project_id,
            principal.name,
            principal.scopes,
            run_id=run.id,
            ttl=max(lifetime, timedelta()) + timedelta(seconds=_TOKEN_MARGIN_S),
        )
        caller = Caller(
            principal.organization_id,
            principal.project_id,
            principal.name,
            principal.scopes,
            run.id,
            token,
        )
        return RequestContext(caller=caller, request_id=run.id, trace_id=new_trace_id())


def _spread(share: float) -> float:
    """Returns a factor around 1, so that gateways do not move in step."""
    return random.uniform(1 - share, 1 + share)  # noqa: S311
