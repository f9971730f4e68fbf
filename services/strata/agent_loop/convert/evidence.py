"""Reads the stored events of a run as evidence for a recording."""

from __future__ import annotations

from strata.agent_loop.convert.messages import message_from_proto
from strata.agent_loop.convert.recordings import (
    digest_from_proto,
    end_from_proto,
    system_change_from_proto,
    turn_from_proto,
)
from strata.agent_loop.replay.evidence import Evidence, ModelCallEvidence, StepEvidence
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import run_event_pb2 as pb
from strata.protocol.errors import InvalidArgumentError
from strata.shared.convert.memory_edits import edits_from_proto
from strata.shared.convert.usage import usage_from_proto
from strata.shared.ids import check_id


class EvidenceReader:
    """Collects the stored events of a run, which the gateway sends in pieces."""

    def __init__(self) -> None:
        self._evidence: Evidence | None = None
        self._step = 0

    @property
    def evidence(self) -> Evidence:
        """The collected evidence.

        Raises:
            InvalidArgumentError: No piece named a run.
        """
        if self._evidence is None:
            raise InvalidArgumentError("The stream ended before it named a run.")
        return self._evidence

    def take(self, request: turn_pb.RecordRunRequest) -> None:
        """Adds a piece; the first one names the run.

        Raises:
            InvalidArgumentError: The first piece does not name a run.
        """
        match request.WhichOneof("part"):
            case "turn":
                check_id(request.turn.run_id, "run", field="turn.run_id")
                check_id(request.turn.agent_id, "agent", field="turn.agent_id")
                check_id(request.turn.conversation_id, "conversation", field="turn.conversation_id")
                self._evidence = Evidence(turn_from_proto(request.turn))
            case "event":
                self._take_event(request.event, self.evidence)
            case "later":
                later = request.later
                change = system_change_from_proto(later.change)
                self.evidence.changes.append((later.after, change))

    def _take_event(self, event: pb.RunEvent, evidence: Evidence) -> None:
        for call in event.model_calls:
            evidence.calls.append(_call(call))
            shown = max(call.request.window, default=0)
            evidence.last_sequence = max(evidence.last_sequence, shown)
        match event.WhichOneof("event"):
            case "run_started":
                started = event.run_started
                evidence.attempts = max(evidence.attempts, started.attempt)
                evidence.input_ids = list(started.input_message_ids)
            case "step_started":
                begun = event.step_started
                self._step = begun.step
                seen = StepEvidence(begun.step, begun.step_id, begun.message_id, begun.model)
                evidence.steps.append(seen)
            case "step_restarted":
                if evidence.steps:
                    evidence.steps[-1].restarts.append(event.step_restarted.reason)
                    evidence.steps[-1].failed_over |= bool(event.step_restarted.model)
            case "tool_started":
                tool = event.tool_started
                evidence.started[tool.tool_call_id] = (tool.name, tool.arguments)
            case "tool_finished":
                tool_finished = event.tool_finished
                effects = (edits_from_proto(tool_finished.memory_edits), tool_finished.duration_ms)
                evidence.finished[tool_finished.tool_return.tool_call_id] = effects
            case "message_stored":
                sequence = event.message_stored.message.sequence
                evidence.last_sequence = max(evidence.last_sequence, sequence)
            case "window_compacted":
                summary = message_from_proto(event.window_compacted.summary)
                evidence.summaries.setdefault(self._step, []).append(summary)
                evidence.last_sequence = max(evidence.last_sequence, summary.sequence)
            case "run_finished":
                evidence.end = end_from_proto(event.run_finished)


def _call(call: pb.ModelCall) -> ModelCallEvidence:
    return ModelCallEvidence(
        call.message_id,
        call.model,
        call.start_ms,
        usage_from_proto(call.usage),
        digest_from_proto(call.request) if call.HasField("request") else None,
        call.lost,
    )
