"""Events of a run with the text of its replies."""

from __future__ import annotations

from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as pb


def step(message_id: str) -> pb.RunEvent:
    """A model call begins, whose reply will be this message."""
    return pb.RunEvent(step_started=pb.StepStarted(message_id=message_id))


def delta(message_id: str, text: str) -> pb.RunEvent:
    """The next characters of a message."""
    return pb.RunEvent(text_delta=pb.TextDelta(message_id=message_id, text=text))


def snapshot(message_id: str, text: str) -> pb.RunEvent:
    """The text of a message from its beginning."""
    return pb.RunEvent(text_snapshot=pb.TextSnapshot(message_id=message_id, text=text))


def restarted(message_id: str) -> pb.RunEvent:
    """What was streamed of a message, perhaps nothing, is void."""
    return pb.RunEvent(step_restarted=pb.StepRestarted(message_id=message_id))


def stored(message_id: str, text: str) -> pb.RunEvent:
    """A message of the assistant was stored."""
    part = message_pb2.Part(text=message_pb2.TextPart(text=text))
    message = message_pb2.Message(
        id=message_id, role=message_pb2.ROLE_ASSISTANT, parts=[part] if text else []
    )
    return pb.RunEvent(message_stored=pb.MessageStored(message=message))
