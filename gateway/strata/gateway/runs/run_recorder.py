"""Records finished runs: the gateway sends its stored data of a run to agent_loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import grpc.aio

from strata.api.agent_loop.v1 import recording_pb2
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.agent_loop.v1 import turn_service_pb2_grpc as turn_grpc
from strata.api.common.v1 import run_event_pb2
from strata.gateway.runs.domain.runs import Run, RunFilter, RunKind, RunStore, is_group
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.fair_slots import FairSlots
from strata.shared.request_stream import RequestStream
from strata.shared.settings import MIB

MAX_EVENT_BYTES = 48 * MIB
"""Maximum bytes of events of one run for its recording."""
MAX_LATER_RUNS = 200
"""Maximum number of later runs of the conversation to search for changes of the system message."""
MAX_LATER_BYTES = 128 * MIB
"""Maximum bytes of events of these runs."""

_PAGE_SIZE = 100
# A recording has all events of a run in memory, so few are made concurrently. A slow client blocks
# others for at most `_HOLD_S`.
_MAX_CONCURRENT = 4
_SHARE = 1 / _MAX_CONCURRENT
_QUEUE = 8
_HOLD_S = 120.0


class RunRecorder:
    """Records runs.

    Args:
        store: The runs.
        channel: Channel to agent_loop.
    """

    def __init__(self, store: RunStore, channel: grpc.aio.Channel) -> None:
        self._store = store
        self._stub = turn_grpc.TurnServiceStub(channel)
        self._slots = FairSlots(
            _MAX_CONCURRENT, "recordings", share=_SHARE, queue=_QUEUE, hold_s=_HOLD_S
        )

    async def record(self, run: Run) -> AsyncGenerator[bytes, None]:
        """Yields the recording of a run; each project makes one at a time.

        Raises:
            FailedPreconditionError: ``RUN_NOT_RECORDABLE``.
            NotFoundError: ``AGENT_NOT_FOUND``, ``CONVERSATION_NOT_FOUND``.
            ResourceExhaustedError: Too many recordings of the project wait (``OVERLOADED``).
        """
        if is_group(run.agent_id):
            raise _not_recordable(run, "it is the run of a group; record the runs of its members")
        if not run.state.final:
            raise _not_recordable(run, "it has not ended")
        async with self._slots.slot(run.project_id):
            # Read everything first: an error while sending the request stream would be lost.
            requests = RequestStream(*[piece async for piece in self._pieces(run)])
            requests.close()
            # The stubs of gRPC are narrower than gRPC, which takes any asynchronous iterable.
            async for response in self._stub.RecordRun(requests):  # type: ignore[arg-type]
                yield response.piece

    async def _pieces(self, run: Run) -> AsyncIterator[turn_pb.RecordRunRequest]:
        yield turn_pb.RecordRunRequest(turn=await self._turn(run))
        size = 0
        async for event in self._events(run):
            size += event.ByteSize()
            if size > MAX_EVENT_BYTES:
                raise _not_recordable(
                    run, f"its events have more than {MAX_EVENT_BYTES // MIB} MiB"
                )
            yield turn_pb.RecordRunRequest(event=event)
        async for later in self._later_changes(run):
            yield turn_pb.RecordRunRequest(later=later)

    async def _turn(self, run: Run) -> recording_pb2.RecordedTurn:
        # The request of a finished run is stored only in its messages.
        _, max_steps = await self._store.asked_by(run.project_id, run.id)
        turn = recording_pb2.RecordedTurn(
            run_id=run.id,
            agent_id=run.agent_id,
            conversation_id=run.conversation_id,
            max_steps=max_steps,
            stream_tokens=True,
            reads_transcript=run.kind is RunKind.SLEEPTIME,
            attempts=run.attempt,
        )
        turn.accept_time.FromDatetime(run.create_time)
        return turn

    async def _events(self, run: Run) -> AsyncIterator[run_event_pb2.RunEvent]:
        after = 0
        while after < run.last_sequence:
            page = await self._store.events(run.project_id, run.id, after)
            for stored in page.events:
                yield run_event_pb2.RunEvent.FromString(stored.payload)
            if not page.events:
                return
            after = page.events[-1].sequence

    async def _later_changes(self, run: Run) -> AsyncIterator[turn_pb.LaterChange]:
        """Yields the changes of the system message after a run, newest first."""
        runs_of_conversation = RunFilter(conversation_id=run.conversation_id)
        before: str | None = None
        later_runs = size = 0
        while later_runs < MAX_LATER_RUNS:
            runs = await self._store.list(
                run.project_id, runs_of_conversation, before=before, limit=_PAGE_SIZE
            )
            for later in runs:
                # Ids are ordered by creation time.
                if later.id <= run.id:
                    return
                later_runs += 1
                changes, event_bytes = await self._changes_of(later)
                size += event_bytes
                if size > MAX_LATER_BYTES:
                    # agent_loop then reports that changes are missing.
                    return
                for change in changes:
                    yield change
            if len(runs) < _PAGE_SIZE:
                return
            before = runs[-1].id

    async def _changes_of(self, run: Run) -> tuple[list[turn_pb.LaterChange], int]:
        """Returns the changes in a run, newest first, and the bytes of its events."""
        changes, size = [], 0
        async for event in self._events(run):
            size += event.ByteSize()
            for call in event.model_calls:
                if call.request.HasField("system_change"):
                    request = call.request
                    change = turn_pb.LaterChange(after=request.system, change=request.system_change)
                    changes.append(change)
        return changes[::-1], size


def _not_recordable(run: Run, why: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"The run cannot be recorded: {why}.",
        reason=Reason.RUN_NOT_RECORDABLE,
        metadata={"run_id": run.id},
    )
