"""Carries out the runs that this gateway holds, and takes those that nobody holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Protocol, TypeVar

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs import convert
from strata.gateway.runs.active_run import ActiveRun, Stop
from strata.gateway.runs.attempts import AttemptFailures, DispatchTerms
from strata.gateway.runs.domain import (
    Accepted,
    Dispatch,
    LeaseLostError,
    NewRun,
    RunFailure,
    RunKind,
    RunStore,
    StopReason,
    takes_slot,
)
from strata.gateway.runs.live import LiveRun, RunHub
from strata.gateway.runs.slots import RunSlots
from strata.shared.auth import TokenSigner
from strata.shared.clock import Clock
from strata.shared.context import Caller, RequestContext, use
from strata.shared.errors import (
    AbortedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnavailableError,
    passes,
)
from strata.shared.logs import get_logger
from strata.shared.telemetry import new_trace_id

ResultT = TypeVar("ResultT")

_log = get_logger(__name__)

# The token of a run outlives the run by this, for what is under way at its deadline.
_TOKEN_MARGIN_S = 60.0
_CLAIM_BATCH = 50


class TurnClient(Protocol):
    """The agent loop, as the dispatcher needs it."""

    def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[turn_pb.ExecuteRunResponse, None]:
        """Runs a turn and yields what happens; leaving the iteration breaks the stream off.

        Setting `cancel` cancels the run; then its end still follows. A stream that is broken off
        cancels nothing.

        Raises from the iteration: the `StrataError` that ended the stream.
        """
        ...


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
        on_memory_run: Told the payload of a memory agent's run that has ended; must not raise.
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
        on_memory_run: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._turns = turns
        self._signer = signer
        self._clock = clock
        self._owner = owner
        self._terms = terms or DispatchTerms()
        self._on_not_found = on_not_found
        self._on_memory_run = on_memory_run
        self._active: dict[str, ActiveRun] = {}
        self._slots = RunSlots(self._terms.max_runs)
        # Memory agents take no slot from anybody.
        self._memory_slots = RunSlots(
            self._terms.max_memory_runs, self._terms.max_memory_runs_of_project
        )
        self._renewed = clock.monotonic()
        self._closing = False
        self._claiming = False
        self._wake = asyncio.Event()

    async def accept(self, new: NewRun) -> Accepted:
        """Stores a run and begins to carry it out, if its conversation and a slot are free.

        Raises: as `RunStore.accept`.
        """
        project_id = new.principal.project_id
        if not takes_slot(new):
            accepted = await self._store.accept(new)
            if accepted.dispatch is not None:
                self._start(accepted.dispatch)
            return accepted
        may_start = self._slots.has_slot(project_id)
        if not may_start:
            accepted = await self._store.accept(new, may_start=False)
            if self._slots.has_slot(project_id):
                # It was freed before the run could be seen in the queue.
                self.look()
            return accepted
        self._slots.take(project_id)
        try:
            accepted = await self._store.accept(new)
        except BaseException:
            self._release(project_id)
            raise
        if accepted.dispatch is not None:
            self._start(accepted.dispatch)
        else:
            self._release(project_id)
        return accepted

    def _start(self, dispatch: Dispatch) -> None:
        """Begins to carry out a run that this gateway holds a lease and a slot for.

        The run of a group needs no slot, nor does the turn of an agent that has its members answer:
        the runs of the members do the work and have theirs, and a group that waited for a member
        while it holds the last slot would wait for ever.
        """
        run = dispatch.run
        live = LiveRun(dispatch, self._owner, self._store, self._clock)
        active = ActiveRun(dispatch, live, self._clock.monotonic() + dispatch.remaining_s)
        self._active[run.id] = active
        self._hub.add(live)
        active.task = asyncio.create_task(self._carry_out(active), name=f"run {run.id}")

    def cancel(self, run_id: str) -> None:
        """Stops a run if it is carried out here; its row says CANCELLING already."""
        active = self._active.get(run_id)
        if active is not None:
            active.ask_to_stop(Stop.CANCEL)
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
            with suppress(TimeoutError):
                async with asyncio.timeout(self._terms.poll_s * _spread(0.2)):
                    await self._wake.wait()

    def look(self) -> None:
        """Looks for runs that may start without waiting for the next poll."""
        self._wake.set()

    async def close(self) -> None:
        """Stops carrying out runs and gives the leases back, so that another gateway goes on."""
        self._closing = True
        active = list(self._active.values())
        for each in active:
            each.ask_to_stop(Stop.ABANDON)
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
            self._renewed = self._clock.monotonic()
            return
        held = {each.run_id: each for each in await self._store.renew(list(asked))}
        self._renewed = self._clock.monotonic()
        for run_id, attempt in asked.items():
            active = self._active.get(run_id)
            if active is None or active.live.finished:
                continue
            lease = held.get(run_id)
            if lease is None or lease.attempt < attempt:
                active.ask_to_stop(Stop.ABANDON)
            elif lease.cancelling and active.stop is None:
                active.ask_to_stop(Stop.CANCEL)

    async def _claim(self) -> None:
        free = self._slots.free
        if not free or self._closing:
            return
        if self._clock.monotonic() - self._renewed > 2 * self._terms.heartbeat_s:
            # The database was away: this gateway must not take its own runs for orphans.
            await self._renew()
        limit = min(free, _CLAIM_BATCH)
        self._claiming = True
        try:
            claimed = await self._store.claim(limit, held=self._slots.held, most=self._slots.most)
            for project_id, run_id in claimed:
                await self._adopt(project_id, run_id)
            taken = await self._claim_memory_runs() if self._slots.free else 0
        finally:
            self._claiming = False
        if len(claimed) == limit or (taken and not self._slots.used):
            self.look()

    async def _claim_memory_runs(self) -> int:
        """Takes runs of memory agents if nobody else waits for a slot; returns how many."""
        slots = self._memory_slots
        limit = min(slots.free, _CLAIM_BATCH)
        if self._slots.used:
            # Somebody waits for an answer: they begin one after the other. What they do then gives
            # way in the agent loop.
            limit = min(limit, 1)
        if limit <= 0:
            return 0
        claimed = await self._store.claim_memory_runs(
            limit, held=slots.held, most=slots.most, budget=self._terms.memory_budget
        )
        for project_id, run_id in claimed:
            await self._adopt(project_id, run_id)
        return len(claimed)

    async def _adopt(self, project_id: str, run_id: str) -> None:
        try:
            dispatch = await self._store.load(project_id, run_id)
        except LeaseLostError:
            return
        if dispatch.run.attempt > 1:
            _log.info("run taken over", run_id=run_id, attempt=dispatch.run.attempt)
        if run_id not in self._active:
            if takes_slot(dispatch.run):
                self._slots_of(dispatch).take(project_id)
            self._start(dispatch)

    def _slots_of(self, dispatch: Dispatch) -> RunSlots:
        is_memory_run = dispatch.run.kind is RunKind.SLEEPTIME
        return self._memory_slots if is_memory_run else self._slots

    def _release(self, project_id: str, *, may_be_awaited: bool = False) -> None:
        """Gives a slot back, and looks for a run that waits for it if there may be one."""
        # The claim under way does not know of this slot.
        awaited = may_be_awaited or self._claiming or not self._slots.has_slot(project_id)
        self._slots.release(project_id)
        if awaited:
            self.look()

    async def _carry_out(self, active: ActiveRun) -> None:
        run = active.dispatch.run
        following: Dispatch | None = None
        try:
            with use(self._context(active.dispatch)):
                if run.attempt > 1:
                    await self._until_stored(active, active.live.restore)
                finished = await self._turn(active)
                if finished is not None:
                    following = await self._finish(active, finished)
                    if run.kind is RunKind.SLEEPTIME and self._on_memory_run is not None:
                        await self._on_memory_run(active.dispatch.payload)
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
                self._start(following)
            elif run.kind is RunKind.SLEEPTIME:
                self._memory_slots.release(run.project_id)
                self.look()
            elif takes_slot(run):
                self._release(run.project_id, may_be_awaited=active.next_left)

    async def _finish(
        self, active: ActiveRun, finished: run_event_pb2.RunFinished
    ) -> Dispatch | None:
        # Where slots are short, the projects take turns, and so do the conversations of a project.
        run = active.dispatch.run
        has_slot = not takes_slot(run) or self._slots.has_slot(run.project_id)
        active.next_left = not has_slot
        take_next = not self._closing and not active.next_left
        if active.dispatch.run.kind is RunKind.SLEEPTIME:
            # Its slot is for runs of memory agents alone; the look after it finds what waits.
            take_next = False
        return await self._until_stored(
            active, lambda: active.live.finish(finished, take_next=take_next)
        )

    async def _until_stored(
        self, active: ActiveRun, call: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        """Repeats a call of the store while the database is away.

        Raises:
            LeaseLostError: Another gateway holds the run now, or this one is closing.
        """
        pause = self._terms.first_pause_s
        while True:
            try:
                return await call()
            except StrataError as error:
                if not passes(error) and not isinstance(error, AbortedError):
                    raise
                if active.abandoned:
                    raise LeaseLostError(active.dispatch.run.id) from error
                _log.warning("the run store is waited for", error=repr(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._terms.longest_pause_s)

    async def _turn(self, active: ActiveRun) -> run_event_pb2.RunFinished | None:
        """Dispatches until the turn has an end; None if the run is to be left alone.

        A run that is cancelled, or whose deadline has passed, is dispatched once more if an attempt
        may have left something: agent_loop stores what is known of it and begins nothing. What
        cannot be stored then is left as it is.
        """
        failures = AttemptFailures(self._terms, active.live.progress, active.dispatch.lost_holders)
        error = self._deadline_passed()
        if failures.too_many:
            # Not even to store what is known: the run may be what kills its process.
            if active.cancelled.is_set():
                return self._ended(active, StopReason.CANCELLED)
            return self._failed(active, _holders_lost(active.dispatch.lost_holders))
        while True:
            if active.abandoned:
                return None
            cancelled = active.cancelled.is_set()
            over = cancelled or self._remaining(active) <= 0
            outcome = await self._attempt(active) if active.begun or not over else None
            if isinstance(outcome, run_event_pb2.RunFinished):
                return outcome
            if active.abandoned:
                return None
            if active.cancelled.is_set() and (over or outcome is None):
                return self._ended(active, StopReason.CANCELLED)
            if over or outcome is None:
                return self._failed(active, error)
            error = outcome
            failures.note(error, active.live.progress, broke_off=active.live.heard)
            if failures.exhausted(error):
                return self._failed(active, error)
            await self._pause(active, min(failures.pause(error), max(self._remaining(active), 0.0)))
            if not active.abandoned:
                _log.warning("turn dispatched again", reason=error.reason, error=repr(error))
                await self._until_stored(active, active.live.redispatch)

    async def _attempt(self, active: ActiveRun) -> run_event_pb2.RunFinished | StrataError | None:
        """Relays one ExecuteRun: its end, the error it broke with, or None if it had to stop."""
        active.begun = True
        relay = asyncio.create_task(self._relay(active))
        stopped = asyncio.create_task(active.stopped.wait())
        try:
            await asyncio.wait((relay, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not relay.done() and active.stop is Stop.CANCEL:
                # The turn ends by itself: it stores what its tools had done, and says so.
                await asyncio.wait((relay,), timeout=self._terms.settle_s)
            if not relay.done():
                relay.cancel()
                await asyncio.wait((relay,))
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

    async def _relay(self, active: ActiveRun) -> run_event_pb2.RunFinished:
        live = active.live
        live.heard = False
        remaining, settle = max(self._remaining(active), 0.0), self._terms.settle_s
        cancelled = active.stop is Stop.CANCEL
        # A cancelled turn is not told of a deadline: it says that it was cancelled.
        limit = max(remaining, settle) if cancelled else remaining
        request = convert.execute_request(active.dispatch, live.fence.attempt, limit)
        request.cancel = cancelled or remaining <= 0
        # agent_loop ends the turn at its deadline, and says what it stored.
        turn = self._turns.execute(request, active.cancelled, seconds=remaining + settle)
        try:
            async with aclosing(turn) as responses:
                async for response in responses:
                    live.heard = True
                    if response.HasField("reply"):
                        live.note_reply(response.reply)
                    elif response.HasField("request"):
                        live.note_request(response.request)
                    elif response.HasField("tended"):
                        live.note_tended(response.tended)
                    elif response.HasField("transcript_read"):
                        live.note_transcript_read(response.transcript_read)
                    elif response.event.HasField("run_finished"):
                        return response.event.run_finished
                    else:
                        await live.append(response.event)
        except DeadlineExceededError as error:
            raise (self._deadline_passed() if self._remaining(active) <= 0 else error) from error
        broken = UnavailableError("The stream of the turn ended without an end of the turn.")
        broken.lost = True
        raise broken

    async def _pause(self, active: ActiveRun, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * _spread(0.3)):
                await active.stopped.wait()

    def _remaining(self, active: ActiveRun) -> float:
        return active.deadline - self._clock.monotonic()

    def _deadline_passed(self) -> StrataError:
        return DeadlineExceededError("The run took longer than a run may take.")

    def _failed(self, active: ActiveRun, error: StrataError) -> run_event_pb2.RunFinished:
        run = active.dispatch.run
        if isinstance(error, NotFoundError) and self._on_not_found is not None:
            self._on_not_found(run.project_id, run.agent_id)
        if error.reason is Reason.AGENT_NOT_FOUND and active.live.step_count:
            # It was there when the run began: it was deleted meanwhile.
            return self._ended(active, StopReason.CANCELLED)
        retryable = not isinstance(error, NotFoundError | InvalidArgumentError)
        if error.reason is Reason.UNSPECIFIED:
            error = InternalError(error.message)
        failure = convert.failure_of(error, retryable=retryable)
        _log.warning("run failed", run_id=run.id, reason=error.reason, error=repr(error))
        return self._ended(active, StopReason.ERROR, failure)

    def _ended(
        self, active: ActiveRun, reason: StopReason, failure: RunFailure | None = None
    ) -> run_event_pb2.RunFinished:
        live = active.live
        return convert.finished(reason, live.usage, live.step_count, failure, live.taint)

    def _context(self, dispatch: Dispatch) -> RequestContext:
        # Not the context of the call that sent the message: its deadline, and its end,
        # are not those of the run.
        run, principal = dispatch.run, dispatch.principal
        token = self._signer.mint(
            principal.organization_id,
            principal.project_id,
            principal.name,
            principal.scopes,
            run_id=run.id,
            ttl=timedelta(seconds=max(dispatch.remaining_s, 0.0) + _TOKEN_MARGIN_S),
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


def _holders_lost(count: int) -> StrataError:
    return InternalError(
        f"The run was given up: {count} times in a row the process that carried it out was lost."
    )


def _spread(share: float) -> float:
    """Returns a factor around 1, so that gateways do not move in step."""
    return random.uniform(1 - share, 1 + share)  # noqa: S311
