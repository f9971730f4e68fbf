"""Invariants of the run store after random operations; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gateway_records import events, fence_of, new_run
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.runs.domain.runs import (
    Dispatch,
    Fence,
    LeaseLostError,
    OnBusy,
    RunEnding,
    RunFilter,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import AbortedError
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

if TYPE_CHECKING:
    from conftest import Databases

CONVERSATIONS = ("conversation-1", "conversation-2")
ENDS = st.sampled_from(
    [StopReason.END_TURN, StopReason.LLM_API_ERROR, StopReason.CANCELLED, StopReason.MAX_STEPS]
)


class Machine(RuleBasedStateMachine):
    """Two gateways accept, carry out, lose, cancel and end runs of two conversations.

    Every issued `Fence` is kept. In the model a fence may write if it is the newest of its run and
    the run has not ended.
    """

    fences = Bundle("fences")
    service_url = ""
    worker_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.project = new_id("project")
        self.newest: dict[str, Fence] = {}
        self.over: dict[str, RunState] = {}
        self.order: dict[str, list[str]] = {name: [] for name in CONVERSATIONS}
        self.begun: dict[str, list[str]] = {name: [] for name in CONVERSATIONS}
        self.conversation: dict[str, str] = {}

    @initialize()
    def connect(self) -> None:
        self.database = Database(self.service_url, pool_size=2)
        self.worker = Database(self.worker_url, pool_size=1)
        self.gateways = [
            PostgresRunStore(self.database, self.worker, LeaseTerms(f"{self.project}-{n}", 600.0))
            for n in range(2)
        ]

    def teardown(self) -> None:
        if hasattr(self, "database"):
            # Runs that are still open must not be claimed by the next example.
            for gateway in self.gateways:
                self.do(self.end_all(gateway))
            self.do(self.database.close())
            self.do(self.worker.close())
        self.runner.close()

    async def end_all(self, gateway: PostgresRunStore) -> None:
        for run_id, fence in list(self.newest.items()):
            if run_id not in self.over and fence.owner == gateway._terms.owner:
                ending = RunEnding(StopReason.END_TURN, None, Usage(), 0)
                await gateway.finish(fence, ending, events(10**9), take_next=False)
        for run in await gateway.list(
            self.project, RunFilter(states=frozenset({RunState.QUEUED})), before=None, limit=500
        ):
            await gateway.cancel(self.project, run.id, b"end")

    def do(self, work: Any) -> Any:
        return self.runner.run(work)

    def hold(self, dispatch: Dispatch, owner: str) -> Fence:
        """Records that a gateway holds a run and has to execute it."""
        fence = fence_of(dispatch, owner)
        run = dispatch.run
        before = self.newest.get(run.id)
        assert run.id not in self.over
        assert before is None or run.attempt > before.attempt
        if before is None:
            self.begun[run.conversation_id].append(run.id)
        self.newest[run.id] = fence
        return fence

    def holds(self, fence: Fence) -> bool:
        return fence.run_id not in self.over and self.newest[fence.run_id] == fence

    def owner(self, number: int) -> str:
        return f"{self.project}-{number}"

    @rule(
        target=fences,
        number=st.integers(0, 1),
        conversation=st.sampled_from(CONVERSATIONS),
        on_busy=st.sampled_from(OnBusy),
    )
    def accept(self, number: int, conversation: str, on_busy: OnBusy) -> Any:
        busy = any(run not in self.over for run in self.order[conversation])
        new = new_run(conversation, self.project, on_busy=on_busy)
        try:
            accepted = self.do(self.gateways[number].accept(new))
        except AbortedError:
            assert busy
            assert on_busy is OnBusy.REJECT
            return multiple()
        assert not (busy and on_busy is OnBusy.REJECT)
        self.order[conversation].append(new.id)
        self.conversation[new.id] = conversation
        assert (accepted.dispatch is None) == busy
        if accepted.dispatch is None:
            return multiple()
        return self.hold(accepted.dispatch, self.owner(number))

    @rule(target=fences, fence=fences)
    def redispatch(self, fence: Fence) -> Any:
        number = int(fence.owner[-1])
        if not self.holds(fence):
            with pytest.raises(LeaseLostError):
                self.do(self.gateways[number].redispatch(fence))
            return multiple()
        newer: Fence = self.do(self.gateways[number].redispatch(fence))
        assert newer.attempt == fence.attempt + 1
        self.newest[fence.run_id] = newer
        return newer

    @rule(target=fences, fence=consumes(fences), reason=ENDS, take_next=st.booleans())
    def finish(self, fence: Fence, reason: StopReason, take_next: bool) -> Any:
        number = int(fence.owner[-1])
        ending = RunEnding(reason, None, Usage(), 1)
        work = self.gateways[number].finish(fence, ending, events(10**6), take_next=take_next)
        if not self.holds(fence):
            with pytest.raises(LeaseLostError):
                self.do(work)
            return multiple()
        following = self.do(work)
        self.over[fence.run_id] = ending.state
        if following is None:
            return multiple()
        assert take_next
        return self.hold(following, fence.owner)

    @rule(target=fences, number=st.integers(0, 1))
    def lose_and_claim(self, number: int) -> Any:
        """One gateway releases its runs; the other claims runs that may start."""
        self.do(self.gateways[1 - number].release())
        claims = []
        for project, run_id in self.do(self.gateways[number].claim(50)):
            assert project == self.project
            dispatch = self.do(self.gateways[number].load(project, run_id))
            claims.append(self.hold(dispatch, self.owner(number)))
        return multiple(*claims)

    @rule(conversation=st.sampled_from(CONVERSATIONS), index=st.integers(0, 5))
    def cancel(self, conversation: str, index: int) -> None:
        if index >= len(self.order[conversation]):
            return
        run_id = self.order[conversation][index]
        run = self.do(self.gateways[0].cancel(self.project, run_id, b"cancelled"))
        if run_id in self.over:
            assert run.state is self.over[run_id]
        elif run_id in self.newest:
            assert run.state is RunState.CANCELLING
        else:
            assert run.state is RunState.CANCELLED
            self.over[run_id] = RunState.CANCELLED

    @rule(fence=fences, sequence=st.integers(1, 10**5))
    def append(self, fence: Fence, sequence: int) -> None:
        work = self.gateways[int(fence.owner[-1])].append(fence, events(sequence))
        if not self.holds(fence):
            with pytest.raises(LeaseLostError):
                self.do(work)
            return
        page = self.do(self.gateways[0].events(self.project, fence.run_id, 0, 500))
        if sequence in {event.sequence for event in page.events}:
            work.close()
            return
        self.do(work)

    @invariant()
    def one_active_run_and_first_come_first_served(self) -> None:
        if not hasattr(self, "gateways"):
            return
        runs = self.do(self.gateways[0].list(self.project, RunFilter(), before=None, limit=500))
        stored = {run.id: run for run in runs}
        assert set(stored) == set(self.conversation)
        for conversation in CONVERSATIONS:
            mine = [stored[run_id] for run_id in self.order[conversation]]
            assert sum(run.state.active for run in mine) <= 1
            begun = self.begun[conversation]
            assert begun == [run_id for run_id in self.order[conversation] if run_id in begun]
        for run_id, state in self.over.items():
            assert stored[run_id].state is state
        for run_id, fence in self.newest.items():
            assert stored[run_id].attempt == fence.attempt
            assert stored[run_id].state.active != (run_id in self.over)


async def test_random_sequences_of_operations_keep_the_invariants(databases: Databases) -> None:
    urls = await databases.of(MIGRATIONS)
    machine = type(
        "BoundMachine",
        (Machine,),
        {"service_url": urls.service_url, "worker_url": urls.worker_url},
    )
    await asyncio.to_thread(
        run_state_machine_as_test,
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    await databases.drop(urls)
