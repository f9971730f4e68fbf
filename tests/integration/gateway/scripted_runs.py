"""Events of scripted runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from chat_messages import text_part
from strata.api.agent_loop.v1 import turn_service_pb2
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2

# Kinds of the events of a run of the script `reply`.
REPLY_EVENTS = [
    "run_started",
    "step_started",
    "text_delta",
    "text_delta",
    "message_stored",
    "run_finished",
]
# An item of `plays`: wait until the turn is cancelled.
NEVER = "never"
Script = Callable[[turn_service_pb2.ExecuteRunRequest], AsyncIterator[run_event_pb2.RunEvent]]


def event(**fields: Any) -> run_event_pb2.RunEvent:
    return run_event_pb2.RunEvent(**fields)


def started() -> run_event_pb2.RunEvent:
    return event(run_started=run_event_pb2.RunStarted(attempt=1))


def step(number: int = 1) -> run_event_pb2.RunEvent:
    return event(
        step_started=run_event_pb2.StepStarted(
            taint=[message_pb2.PROVENANCE_MCP], step_id=f"step-{number}", step=number
        )
    )


def delta(text: str, message_id: str = "message-1") -> run_event_pb2.RunEvent:
    return event(text_delta=run_event_pb2.TextDelta(message_id=message_id, text=text))


def stored(text: str, message_id: str = "message-1") -> run_event_pb2.RunEvent:
    message = message_pb2.Message(
        id=message_id,
        role=message_pb2.ROLE_ASSISTANT,
        parts=[text_part(text)],
        usage=usage_pb2.Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10),
    )
    return event(message_stored=run_event_pb2.MessageStored(message=message))


def finished(
    reason: Any = run_event_pb2.STOP_REASON_END_TURN, steps: int = 1
) -> run_event_pb2.RunEvent:
    usage = usage_pb2.Usage(prompt_tokens=7, completion_tokens=3, total_tokens=10)
    return event(
        run_finished=run_event_pb2.RunFinished(
            stop_reason=reason,
            usage=usage,
            step_count=steps,
            taint=[message_pb2.PROVENANCE_WEB],
        )
    )


def plays(*items: run_event_pb2.RunEvent | asyncio.Event | str) -> Script:
    """Returns a script that sends events; at an `asyncio.Event` it waits until that is set.

    At `NEVER` it waits until the turn is cancelled.
    """

    async def turn(_: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        for item in items:
            if isinstance(item, run_event_pb2.RunEvent):
                yield item
            else:
                await (asyncio.Event() if isinstance(item, str) else item).wait()

    return turn


def reply(text: str) -> Script:
    """Returns a plain turn: two deltas, one message, the end."""
    middle = len(text) // 2
    return plays(
        started(), step(), delta(text[:middle]), delta(text[middle:]), stored(text), finished()
    )
