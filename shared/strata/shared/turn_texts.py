"""Texts for people about what happens in a turn: arguments, results, and why a run ended."""

from __future__ import annotations

from typing import Protocol

from strata.api.common.v1 import run_event_pb2
from strata.shared.json_text import JsonTextError, indented_json, parse_json

_FINE = frozenset(
    {
        run_event_pb2.STOP_REASON_END_TURN,
        run_event_pb2.STOP_REASON_TOOL_RULE,
        run_event_pb2.STOP_REASON_MAX_STEPS,
        run_event_pb2.STOP_REASON_REQUIRES_APPROVAL,
    }
)
STOP_SENTENCES = {
    run_event_pb2.STOP_REASON_MAX_STEPS: "Stopped at the limit of model calls in one run.",
    run_event_pb2.STOP_REASON_MAX_TOKENS_EXCEEDED: "The reply was cut at the limit of its length.",
    run_event_pb2.STOP_REASON_CANCELLED: "Cancelled.",
    run_event_pb2.STOP_REASON_REQUIRES_APPROVAL: "The run waits for an answer.",
    run_event_pb2.STOP_REASON_ERROR: "The run failed.",
    run_event_pb2.STOP_REASON_LLM_API_ERROR: "The model provider failed.",
    run_event_pb2.STOP_REASON_INVALID_LLM_RESPONSE: "The model's reply could not be used.",
    run_event_pb2.STOP_REASON_INVALID_TOOL_CALL: "The model called a tool against its rules.",
    run_event_pb2.STOP_REASON_NO_TOOL_CALL: "The model called no tool where it had to.",
    run_event_pb2.STOP_REASON_NO_PROGRESS: (
        "The run was ended: the model repeated the same step without progress."
    ),
    run_event_pb2.STOP_REASON_CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT: (
        "The system prompt and the memory alone exceed the context window."
    ),
}
"""Sentences on why a run ended, for the reasons that a person must be told."""


class Ending(Protocol):
    """How a run ended: a run, or its last event."""

    @property
    def stop_reason(self) -> run_event_pb2.StopReason.ValueType:
        """Why it ended."""
        ...

    @property
    def error(self) -> run_event_pb2.RunError:
        """The error; its reason is empty if there is none."""
        ...


def ended_well(ending: Ending) -> bool:
    """Returns whether a run neither failed nor was cancelled."""
    return ending.stop_reason in _FINE and not ending.error.reason and not ending.error.message


def ending_sentence(ending: Ending) -> str:
    """Returns a sentence on why a run ended."""
    error = ending.error
    if not error.reason and not error.message:
        return STOP_SENTENCES.get(ending.stop_reason, "The run ended.")
    sentence = error.message.rstrip() or STOP_SENTENCES.get(ending.stop_reason, "The run failed.")
    if error.reason:
        sentence += f" [{error.reason}]"
    return f"{sentence} Sending it again may work." if error.retryable else sentence


def whole_arguments(arguments: str) -> str:
    """Returns all arguments of a call as indented JSON."""
    try:
        value = parse_json(arguments or "{}")
    except JsonTextError:
        return arguments
    return indented_json(value)
