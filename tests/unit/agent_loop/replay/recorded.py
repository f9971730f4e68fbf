"""Recordings of runs of the loop harness, as the gateway and the agent loop make them."""

from __future__ import annotations

from collections.abc import Sequence

from strata.agent_loop.convert.evidence import EvidenceReader
from strata.agent_loop.convert.recordings import recording_from_json, recording_to_json
from strata.agent_loop.convert.runs import response_to_proto
from strata.agent_loop.domain.run.events import RunEvent, TextPiece
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.replay.recorder import Recorder
from strata.agent_loop.replay.recording import Recording
from strata.api.agent_loop.v1 import recording_pb2
from strata.api.agent_loop.v1 import turn_service_pb2 as pb
from strata.gateway.runs.events.model_calls import ModelCalls
from unit.agent_loop.loop.loop_harness import LoopHarness


def pieces_of(
    harness: LoopHarness, request: RunRequest, events: Sequence[RunEvent]
) -> list[pb.RecordRunRequest]:
    """Returns the messages that the gateway sends for a run with these events."""
    turn = recording_pb2.RecordedTurn(
        run_id=request.run_id,
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        max_steps=request.max_steps,
        attempts=request.attempt,
        reads_transcript=request.transcript is not None,
    )
    turn.accept_time.FromDatetime(harness.clock.now())
    pieces, calls = [pb.RecordRunRequest(turn=turn)], ModelCalls()
    for event in events:
        if isinstance(event, TextPiece):
            continue
        response = response_to_proto(event, request.run_id, harness.clock.now())
        match response.WhichOneof("content"):
            case "request":
                calls.note_request(response.request, 0)
            case "reply":
                calls.note_reply(response.reply, 5)
            case "event":
                response.event.model_calls.extend(calls.take())
                pieces.append(pb.RecordRunRequest(event=response.event))
    return pieces


async def record(
    harness: LoopHarness,
    request: RunRequest,
    events: Sequence[RunEvent],
    later: Sequence[pb.RecordRunRequest] = (),
) -> Recording:
    """Returns the recording of a run, written into a file and read again."""
    reader = EvidenceReader()
    for piece in [*pieces_of(harness, request, events), *later]:
        reader.take(piece)
    recording = await Recorder(harness.ports).record(reader.evidence)
    return recording_from_json(recording_to_json(recording))
