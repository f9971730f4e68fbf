"""Replays a recording: runs the loop of this build over the ports of the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.agent_loop.domain.conversation.messages import Message, MessageInput
from strata.agent_loop.domain.model.errors import ModelError
from strata.agent_loop.domain.run.runs import RunOutcome, RunRequest, TranscriptRange
from strata.agent_loop.loop.turn import Turn
from strata.agent_loop.replay.differences import Difference, DifferenceFoundError, compare_values
from strata.agent_loop.replay.ports import OutcomeSink, ports_of, without_images
from strata.agent_loop.replay.recording import RecordedEnd, Recording, RequestText
from strata.agent_loop.replay.script import DECIDED, EndOfRecordingError, Script
from strata.protocol.errors import StrataError
from strata.shared.provenance import Provenance, taint_of


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        difference: The first difference; None if there is none.
        steps: Number of steps that were replayed to their end.
        requests: The requests that this build would send, one per step; an empty entry for a step
            without a request.
        unknown: Parts of requests that the recording does not hold, which were not compared; empty
            if no requests were compared.
    """

    difference: Difference | None
    steps: int
    requests: Sequence[RequestText]
    unknown: Sequence[str]


async def replay(recording: Recording, *, compares: bool = True) -> Replay:
    """Runs a recorded run against this build, without any network, model or tool.

    Args:
        recording: The recording.
        compares: Whether requests are compared with the recorded ones.
    """
    script = Script(recording, compares)
    difference = None
    try:
        await Turn(ports_of(script), _request_of(recording), OutcomeSink(script)).run()
        difference = _compare_end(recording, script)
    except DifferenceFoundError as raised:
        difference = raised.difference
    except EndOfRecordingError:
        pass
    except (StrataError, ModelError) as error:
        summary = f"This build ends the run with an error: {error}"
        difference = Difference(script.path("request"), summary, replayed=repr(error))
    except Exception as error:  # noqa: BLE001 - the replay looks for defects of this build
        summary = f"This build fails: {type(error).__name__}: {error}"
        difference = Difference(script.path("request"), summary, replayed=repr(error))
    unknown = tuple(_unknown(script)) if compares else ()
    return Replay(difference, script.done, tuple(script.captured), unknown)


def _request_of(recording: Recording) -> RunRequest:
    turn = recording.turn
    answers = [m.approval_response for m in recording.inputs if m.approval_response is not None]
    inputs, senders = [], []
    for message in recording.inputs:
        if message.approval_response is None:
            inputs.append(_input_of(without_images(message)))
            by_agent = message.provenance[:1] == (Provenance.MODEL,)
            senders.append("agent" if by_agent else "")
    transcript = None
    if turn.reads_transcript:
        transcript = TranscriptRange(turn.agent_id, turn.conversation_id, -1, -1)
    return RunRequest(
        run_id=turn.run_id,
        attempt=1,
        agent_id=turn.agent_id,
        conversation_id=turn.conversation_id,
        inputs=[] if transcript is not None else inputs,
        approval=answers[0] if answers else None,
        transcript=transcript,
        max_steps=turn.max_steps,
        stream_tokens=turn.stream_tokens,
        senders=senders,
        group_id=turn.group_id,
        record_only=turn.record_only,
    )


def _input_of(message: Message) -> MessageInput:
    return MessageInput(
        message.role, message.parts, message.name, taint=taint_of(message.provenance)
    )


def _compare_end(recording: Recording, script: Script) -> Difference | None:
    outcome, end = script.outcome, recording.end
    assert outcome is not None
    if script.done < len(recording.steps) and end.stop_reason in DECIDED:
        summary = (
            f"This build ends the run here ({outcome.stop_reason.value}); the recorded run "
            "continued."
        )
        step = recording.steps[script.done]
        shown = step.messages[0].text if step.messages else ""
        return Difference(script.path("request"), summary, shown, _end_text(outcome))
    if end.stop_reason not in DECIDED:
        return None
    return compare_values("end", _end_value(end), _outcome_value(outcome))


def _end_value(end: RecordedEnd) -> dict[str, object]:
    return {
        "stop_reason": end.stop_reason.value,
        "step_count": end.step_count,
        "error": end.reason,
    }


def _outcome_value(outcome: RunOutcome) -> dict[str, object]:
    failure = outcome.failure
    return {
        "stop_reason": outcome.stop_reason.value,
        "step_count": outcome.step_count,
        "error": "" if failure is None else failure.reason.value,
    }


def _end_text(outcome: RunOutcome) -> str:
    return outcome.failure.message if outcome.failure is not None else outcome.stop_reason.value


def _unknown(script: Script) -> list[str]:
    unknown: list[str] = []
    for index, step in enumerate(script.recording.steps[: len(script.captured)]):
        if step.request is None:
            continue
        # Parts with an equal digest need no text.
        equal = script.captured[index].matching(step.request.digest)
        unknown += [
            f"steps[{index}].request.{name}"
            for name in ("system", "options", "messages")
            if getattr(step.request.text, name) is None and getattr(equal, name) is None
        ]
    return unknown


def with_requests(recording: Recording, requests: Sequence[RequestText]) -> Recording:
    """Returns a recording with the texts of the requests that were sent.

    Args:
        recording: The recording.
        requests: The requests that a replay made; parts that do not match the digests are left out.
    """
    steps = list(recording.steps)
    for index, (step, sent) in enumerate(zip(recording.steps, requests, strict=False)):
        if step.request is not None:
            text = sent.matching(step.request.digest)
            steps[index] = replace(step, request=replace(step.request, text=text))
    return replace(recording, steps=tuple(steps))
