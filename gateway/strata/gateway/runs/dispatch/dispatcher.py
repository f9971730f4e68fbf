"""Executes the runs that this gateway holds, and claims runs that no gateway holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Protocol, TypeVar

from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.convert import runs as convert
from strata.gateway.runs.dispatch.active_run import ActiveRun, StopKind
from strata.gateway.runs.dispatch.attempts import AttemptFailures, DispatchTerms
from strata.gateway.runs.dispatch.run_metrics import RunMetrics
from strata.gateway.runs.dispatch.run_traces import RunTraces, end_run_span
from strata.gateway.runs.dispatch.run_work import RunWork, slots_of_working_runs
from strata.gateway.runs.dispatch.slots import RunSlots
from strata.gateway.runs.domain.runs import (
    Accepted,
    Dispatch,
    LeaseLostError,
    NewRun,
    RunFailure,
    RunKind,
    RunStore,
    is_streamed_to_client,
    takes_slot,
)
from strata.gateway.runs.events.live_run import LiveRun, RunHub
from strata.protocol.errors import (
    AbortedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnavailableError,
    is_transient,
)
from strata.shared.auth import TokenSigner
from strata.shared.clock import Clock
from strata.shared.context import Caller, RequestContext, current, use
from strata.shared.fair_slots import Slot, slots_of_short_work
from strata.shared.logs import get_logger
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.project_use import USE_OF_PROCESS, ProjectUse
from strata.shared.record_fields import replace
from strata.shared.stop_reasons import StopReason
from strata.shared.telemetry import Telemetry
from strata.shared.unstored_steps import is_step_not_stored

ResultT = TypeVar("ResultT")

_log = get_logger(__name__)

# The token of a run outlives its deadline by this, for calls that are under way then.
_TOKEN_MARGIN_S = 60.0
_CLAIM_BATCH = 50
# Messages of streams that are accepted at once.
_ACCEPTANCES = 256


class TurnClient(Protocol):
    """The interface to the agent loop."""

    def execute(
        self, request: turn_pb.ExecuteRunRequest, cancel: asyncio.Event, *, seconds: float
    ) -> AsyncGenerator[turn_pb.ExecuteRunResponse, None]:
        """Runs a turn and yields its responses; leaving the iteration closes the stream.

        Setting `cancel` cancels the run, whose end still follows. Closing the stream cancels
        nothing.

        Raises from the iteration: the `StrataError` that ended the stream.
        """
        ...


class Dispatcher:
    """Executes runs.

    Args:
        store: Runs and leases.
        hub: Registry of live runs for their followers.
        turns: The agent loop.
        signer: Signs the tokens of runs.
        clock: The time.
        owner: Id of this gateway in the store.
        terms: Times and limits.
        on_not_found: Called with project and agent if agent_loop does not find the agent.
        on_memory_run: Called with id and payload of a memory agent's finished run; must not raise.
        telemetry: Gets the metrics and the spans of runs; None for none.
        partition: The partition of the projects whose runs it executes.
        use: What the projects use of this process.
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
        on_memory_run: Callable[[str, bytes], Awaitable[None]] | None = None,
        telemetry: Telemetry | None = None,
        partition: str = DEFAULT_PARTITION,
        use: ProjectUse = USE_OF_PROCESS,
    ) -> None:
        self._partition = partition
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
        telemetry = telemetry or Telemetry()
        self._metrics = RunMetrics(telemetry, self._count_active)
        self._traces = RunTraces(telemetry.tracer)
        self._slots = RunSlots(self._terms.max_runs)
        # Runs of memory agents have separate slots.
        self._memory_slots = RunSlots(
            self._terms.max_memory_runs, self._terms.max_memory_runs_of_project
        )
        self._working = slots_of_working_runs(use)
        self._acceptances = slots_of_short_work(
            _ACCEPTANCES, "messages to accept", use, arriving=True
        )
        self._closing = False
        self._claiming = False
        self._wake = asyncio.Event()

    async def accept(self, new: NewRun) -> Accepted:
        """Stores a run, and starts it if its conversation and a slot are free.

        Raises: as `RunStore.accept`.
        """
        new = self._traces.mark(new)
        if not is_streamed_to_client(new):
            return await self._accept(new)
        # Other calls of clients have their slot as calls.
        async with self._acceptances.slot(new.principal.project_id) as acceptance:
            return await self._accept(new, acceptance)

    async def _accept(self, new: NewRun, acceptance: Slot | None = None) -> Accepted:
        project_id = new.principal.project_id
        if not takes_slot(new):
            accepted = await self._store.accept(new)
            if accepted.dispatch is not None:
                self._start(accepted.dispatch, acceptance)
            return accepted
        may_start = self._slots.has_slot(project_id)
        if not may_start:
            accepted = await self._store.accept(new, may_start=False)
            if self._slots.has_slot(project_id):
                # A slot was freed before the run was visible in the queue.
                self.look()
            return accepted
        self._slots.take(project_id)
        try:
            accepted = await self._store.accept(new)
        except BaseException:
            self._release(project_id)
            raise
        if accepted.dispatch is not None:
            self._start(accepted.dispatch, acceptance)
        else:
            self._release(project_id)
        return accepted

    def _start(self, dispatch: Dispatch, acceptance: Slot | None = None) -> None:
        """Starts a run for which this gateway holds a lease and a slot.

        The run of a group needs no slot, nor does the turn of an agent that asks its members: the
        runs of the members have separate slots, and a group that held the last slot
        while it waits for a member would deadlock.
        """
        run = dispatch.run
        live = LiveRun(dispatch, self._owner, self._store, self._clock)
        # Turns of memory agents have a lower priority in the agent loop.
        limited = takes_slot(run) and run.kind is not RunKind.SLEEPTIME
        work = RunWork(self._working if limited else None, run.project_id)
        if acceptance is not None:
            # At once: before the task runs, work of another project would begin in between.
            work.begin_after(acceptance)
        active = ActiveRun(dispatch, live, work, self._clock.monotonic() + dispatch.remaining_s)
        self._active[run.id] = active
        self._hub.add(live)
        self._metrics.note_start(dispatch)
        active.task = asyncio.create_task(self._execute(active), name=f"run {run.id}")

    def _count_active(self, kind: RunKind) -> int:
        return sum(active.dispatch.run.kind is kind for active in self._active.values())

    def cancel(self, run_id: str) -> None:
        """Stops a run if this gateway executes it; its row is CANCELLING already."""
        active = self._active.get(run_id)
        if active is not None:
            active.ask_to_stop(StopKind.CANCEL)
        self._hub.notify(run_id)

    async def keep_leases(self) -> None:
        """Renews the leases until it is cancelled, and stops lost and cancelled runs."""
        while True:
            await asyncio.sleep(self._terms.heartbeat_s)
            try:
                await self._renew()
            except StrataError as error:
                _log.warning("leases not renewed", error=repr(error))

    async def take_over(self) -> None:
        """Claims queued and orphaned runs, at first and each time it is woken, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self._claim()
            except StrataError as error:
                _log.warning("waiting runs not claimed", error=repr(error))
            await self._wake.wait()

    def look(self) -> None:
        """Looks for runs that may start."""
        self._wake.set()

    async def close(self) -> None:
        """Stops all runs and releases their leases, so that another gateway continues them."""
        self._closing = True
        active = list(self._active.values())
        for active_run in active:
            active_run.ask_to_stop(StopKind.ABANDON)
        tasks = [active_run.task for active_run in active if active_run.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        try:
            await self._store.release()
        except StrataError as error:
            _log.warning("leases not released; they will expire", error=repr(error))

    async def _renew(self) -> None:
        attempts = {
            run_id: active_run.live.fence.attempt
            for run_id, active_run in self._active.items()
            if not active_run.live.finished
        }
        if not attempts:
            return
        leases = {lease.run_id: lease for lease in await self._store.renew(list(attempts))}
        for run_id, attempt in attempts.items():
            active = self._active.get(run_id)
            if active is None or active.live.finished:
                continue
            lease = leases.get(run_id)
            if lease is None or lease.attempt < attempt:
                active.ask_to_stop(StopKind.ABANDON)
            elif lease.cancelling and active.stop is None:
                active.ask_to_stop(StopKind.CANCEL)

    async def _claim(self) -> None:
        free = self._slots.free
        if not free or self._closing:
            return
        limit = min(free, _CLAIM_BATCH)
        self._claiming = True
        try:
            claimed = await self._store.claim(
                limit, held=self._slots.held, most=self._slots.most, own_runs=self._active
            )
            for project_id, run_id in claimed:
                await self._start_claimed(project_id, run_id)
            memory_runs = await self._claim_memory_runs() if self._slots.free else 0
        finally:
            self._claiming = False
        if len(claimed) == limit or (memory_runs and not self._slots.used):
            self.look()

    async def _claim_memory_runs(self) -> int:
        """Claims runs of memory agents if no other run waits for a slot; returns how many."""
        slots = self._memory_slots
        limit = min(slots.free, _CLAIM_BATCH)
        if self._slots.used:
            # Other runs are active, so memory agents start one at a time. In the agent loop their
            # work has a lower priority.
            limit = min(limit, 1)
        if limit <= 0:
            return 0
        claimed = await self._store.claim_memory_runs(
            limit, held=slots.held, most=slots.most, budget=self._terms.memory_budget
        )
        for project_id, run_id in claimed:
            await self._start_claimed(project_id, run_id)
        return len(claimed)

    async def _start_claimed(self, project_id: str, run_id: str) -> None:
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
        """Releases a slot, and looks for a run that may be waiting for it."""
        # A claim that is under way does not see this slot.
        awaited = may_be_awaited or self._claiming or not self._slots.has_slot(project_id)
        self._slots.release(project_id)
        if awaited:
            self.look()

    async def _execute(self, active: ActiveRun) -> None:
        run = active.dispatch.run
        following: Dispatch | None = None
        try:
            with use(self._context(active.dispatch)) as context:
                if run.attempt > 1:
                    await self._until_stored(active, active.live.restore)
                terminal_event = await self._run_turn(active)
                if terminal_event is not None:
                    following = await self._finish(active, terminal_event)
                    end_run_span(context.span, terminal_event)
                    if run.kind is RunKind.SLEEPTIME and self._on_memory_run is not None:
                        await self._on_memory_run(run.id, active.dispatch.payload)
                elif self._closing:
                    await active.live.flush()
        except LeaseLostError:
            _log.info("run left to another gateway", run_id=run.id)
        except Exception:  # noqa: BLE001
            # This gateway keeps the run until its lease expires; then the run is claimed again.
            _log.exception("run not carried out", run_id=run.id)
        finally:
            active.work.pause()
            if self._active.get(run.id) is active:
                del self._active[run.id]
            self._hub.remove(active.live)
            # When closing, it is released with the other leases.
            if following is not None and not self._closing:
                self._start(following)
            elif run.kind is RunKind.SLEEPTIME:
                self._memory_slots.release(run.project_id)
                self.look()
            elif takes_slot(run):
                self._release(run.project_id, may_be_awaited=active.next_run_queued)

    async def _finish(
        self, active: ActiveRun, terminal_event: run_event_pb2.RunFinished
    ) -> Dispatch | None:
        # If slots are short, projects and their conversations are served in turn.
        run = active.dispatch.run
        has_slot = not takes_slot(run) or self._slots.has_slot(run.project_id)
        active.next_run_queued = not has_slot
        take_next = not self._closing and not active.next_run_queued
        if active.dispatch.run.kind is RunKind.SLEEPTIME:
            # Its slot is for memory agents only; the next look-up finds waiting runs.
            take_next = False
        following = await self._until_stored(
            active, lambda: active.live.finish(terminal_event, take_next=take_next)
        )
        stop_reason, _ = convert.stop_of(terminal_event)
        self._metrics.note_end(run, stop_reason, active.live.elapsed_s)
        return following

    async def _until_stored(
        self, active: ActiveRun, call: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        """Repeats a call of the store while the database is unreachable.

        Raises:
            LeaseLostError: Another gateway holds the run now, or this one is closing.
        """
        pause = self._terms.first_pause_s
        while True:
            try:
                return await call()
            except StrataError as error:
                if not is_transient(error) and not isinstance(error, AbortedError):
                    raise
                if active.abandoned:
                    raise LeaseLostError(active.dispatch.run.id) from error
                _log.warning("run store unavailable; call is repeated", error=repr(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._terms.longest_pause_s)

    async def _run_turn(self, active: ActiveRun) -> run_event_pb2.RunFinished | None:
        """Dispatches the turn until it has ended; returns None if the run was abandoned.

        A run that is cancelled or has passed its deadline is dispatched once more if an attempt may
        have had effects: agent_loop then stores the recorded results and starts no work.
        """
        failures = AttemptFailures(self._terms, active.live.progress, active.dispatch.lost_holders)
        error = self._deadline_passed()
        if failures.too_many:
            # No further dispatch, not even to store results: the run may crash its process.
            if active.cancelled.is_set():
                return self._run_finished(active, StopReason.CANCELLED)
            return self._run_failed(active, _holders_lost(active.dispatch.lost_holders))
        while True:
            await self._begin_work(active)
            if active.abandoned:
                return None
            cancelled = active.cancelled.is_set()
            over = cancelled or self._remaining(active) <= 0
            outcome = await self._attempt(active) if active.may_have_effects or not over else None
            if isinstance(outcome, run_event_pb2.RunFinished):
                return outcome
            if active.abandoned:
                return None
            # The run stays in the state CANCELLING until its last step is stored.
            waits = is_step_not_stored(outcome) and self._remaining(active) > 0
            if active.cancelled.is_set() and (over or outcome is None) and not waits:
                return self._run_finished(active, StopReason.CANCELLED)
            if outcome is None or (over and not waits):
                return self._run_failed(active, error)
            error = outcome
            failures.note(error, active.live.progress, broke_off=active.live.has_responded)
            if failures.exhausted(error):
                return self._run_failed(active, error)
            active.work.pause()
            pause = min(failures.pause(error), max(self._remaining(active), 0.0))
            await (asyncio.sleep(pause) if waits else self._pause(active, pause))
            if not active.abandoned:
                _log.warning("turn dispatched again", reason=error.reason, error=repr(error))
                await self._until_stored(active, active.live.redispatch)

    async def _begin_work(self, active: ActiveRun) -> None:
        """Waits for a slot to work in, until the run is stopped or its deadline passes."""
        if active.stop is not None or active.work.begin_now():
            return
        waiting = asyncio.create_task(active.work.begin())
        stopped = asyncio.create_task(active.stopped.wait())
        try:
            await asyncio.wait(
                (waiting, stopped),
                timeout=max(self._remaining(active), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
            stopped.cancel()

    async def _attempt(self, active: ActiveRun) -> run_event_pb2.RunFinished | StrataError | None:
        """Relays one ExecuteRun; returns its end, its error, or None if it was stopped."""
        active.may_have_effects = True
        # With a token of its own: if the clock was set back, the services refuse the one before it.
        with use(replace(current(), caller=self._caller(active.dispatch))):
            relay = asyncio.create_task(self._relay(active))
        stopped = asyncio.create_task(active.stopped.wait())
        try:
            await asyncio.wait((relay, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not relay.done() and active.stop is StopKind.CANCEL:
                # The turn stores what its tools did, and ends itself.
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
        live.has_responded = False
        remaining, settle = max(self._remaining(active), 0.0), self._terms.settle_s
        cancelled = active.stop is StopKind.CANCEL
        # A cancelled turn must end as cancelled, and not with its deadline.
        limit = max(remaining, settle) if cancelled else remaining
        request = convert.execute_request(active.dispatch, live.fence.attempt, limit)
        request.cancel = cancelled or remaining <= 0
        # agent_loop ends the turn at its deadline and reports what it has stored.
        turn = self._turns.execute(request, active.cancelled, seconds=remaining + settle)
        try:
            async with aclosing(turn) as responses:
                async for response in responses:
                    live.has_responded = True
                    active.work.note(response)
                    match response.WhichOneof("content"):
                        case "reply":
                            live.note_reply(response.reply)
                        case "request":
                            live.note_request(response.request)
                        case "tended":
                            live.note_tended(response.tended)
                        case "transcript_read":
                            live.note_transcript_read(response.transcript_read)
                        case _ if response.event.HasField("run_finished"):
                            return response.event.run_finished
                        case _:
                            await live.append(response.event)
        except DeadlineExceededError as error:
            raise (self._deadline_passed() if self._remaining(active) <= 0 else error) from error
        broken = UnavailableError("The stream of the turn ended without an end of the turn.")
        broken.lost = True
        raise broken

    async def _pause(self, active: ActiveRun, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * _random_factor(0.3)):
                await active.stopped.wait()

    def _remaining(self, active: ActiveRun) -> float:
        return active.deadline - self._clock.monotonic()

    def _deadline_passed(self) -> StrataError:
        return DeadlineExceededError("The run took longer than a run may take.")

    def _run_failed(self, active: ActiveRun, error: StrataError) -> run_event_pb2.RunFinished:
        run = active.dispatch.run
        if isinstance(error, NotFoundError) and self._on_not_found is not None:
            self._on_not_found(run.project_id, run.agent_id)
        if error.reason is Reason.AGENT_NOT_FOUND and active.live.step_count:
            # The agent existed when the run started, so it was deleted meanwhile.
            return self._run_finished(active, StopReason.CANCELLED)
        retryable = not isinstance(error, NotFoundError | InvalidArgumentError)
        if error.reason is Reason.UNSPECIFIED:
            error = InternalError(error.message)
        failure = convert.failure_of(error, retryable=retryable)
        _log.warning("run failed", run_id=run.id, reason=error.reason, error=repr(error))
        return self._run_finished(active, StopReason.ERROR, failure)

    def _run_finished(
        self, active: ActiveRun, reason: StopReason, failure: RunFailure | None = None
    ) -> run_event_pb2.RunFinished:
        live = active.live
        return convert.build_run_finished(reason, live.usage, live.step_count, failure, live.taint)

    def _context(self, dispatch: Dispatch) -> RequestContext:
        # A separate context: the deadline and the end of the call that sent the message do not
        # apply to the run.
        context = RequestContext(caller=self._caller(dispatch), request_id=dispatch.run.id)
        return self._traces.context(dispatch, context)

    def _caller(self, dispatch: Dispatch) -> Caller:
        """Returns the caller of a run, with a token that is valid now."""
        run, principal = dispatch.run, dispatch.principal
        token = self._signer.mint(
            principal.organization_id,
            principal.project_id,
            principal.name,
            principal.scopes,
            run_id=run.id,
            ttl=timedelta(seconds=max(dispatch.remaining_s, 0.0) + _TOKEN_MARGIN_S),
            partition=self._partition,
        )
        return Caller(
            principal.organization_id,
            principal.project_id,
            principal.name,
            principal.scopes,
            run.id,
            token,
            self._partition,
        )


def _holders_lost(count: int) -> StrataError:
    return InternalError(
        f"The run was given up: {count} times in a row the process that carried it out was lost."
    )


def _random_factor(share: float) -> float:
    """Returns a random factor around 1, so that gateways do not act at the same moment."""
    return random.uniform(1 - share, 1 + share)  # noqa: S311
