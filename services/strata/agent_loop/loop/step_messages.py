"""Builds the messages that a step stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.agent_loop.context.packaging import bounded_returns, limit_images, pack_heartbeat
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import TextPart
from strata.agent_loop.domain.run.journal import StepRecord
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import ToolResult
from strata.protocol.images import MAX_IMAGES_BYTES
from strata.shared.clock import Clock
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance
from strata.shared.record_fields import replace


class StepMessages:
    """Builds the messages of the steps of one run.

    Args:
        request: The run.
        clock: The time of heartbeats.
        timezone: The timezone in which heartbeats show the time.
    """

    def __init__(self, request: RunRequest, clock: Clock, timezone: str) -> None:
        self._request = request
        self._clock = clock
        self._timezone = timezone

    def assistant(
        self, record: StepRecord, overridden: Mapping[str, str], *, with_usage: bool
    ) -> Message:
        """Returns the message of a reply with its calls.

        Args:
            record: The reply.
            overridden: Arguments that a rule changed, by call id.
            with_usage: Whether the message has the tokens of the reply.
        """
        calls = (
            replace(call, arguments=overridden.get(call.id, call.arguments))
            for call in record.reply.tool_calls
        )
        return replace(
            self._blank(MessageRole.ASSISTANT, record),
            id=record.message_id,
            parts=(*record.reply.content, *calls),
            model=record.model,
            usage=record.reply.usage if with_usage else None,
            provenance=(Provenance.MODEL, *record.snapshot.taint),
        )

    def returns(self, record: StepRecord, results: Sequence[ToolResult]) -> Message:
        """Returns the message with the returns of the calls, cut to the limits of a message."""
        bounded = bounded_returns([result.tool_return for result in results])
        tool_returns = limit_images(bounded, MAX_IMAGES_BYTES)
        labels = dict.fromkeys(
            part.provenance for part in tool_returns if part.provenance is not None
        )
        labels |= dict.fromkeys(label for part in tool_returns for label in part.taint)
        return replace(
            self._blank(MessageRole.TOOL, record), parts=tool_returns, provenance=tuple(labels)
        )

    def heartbeat(self, record: StepRecord, reason: str) -> Message:
        """Returns the message that asks the model to continue."""
        text = pack_heartbeat(reason, self._clock.now(), self._timezone)
        return replace(
            self._blank(MessageRole.USER, record),
            parts=(TextPart(text),),
            provenance=(Provenance.SYSTEM,),
        )

    def _blank(self, role: MessageRole, record: StepRecord) -> Message:
        request = self._request
        return Message(
            id=new_id("message"),
            role=role,
            parts=(),
            conversation_id=request.conversation_id,
            agent_id=request.agent_id,
            run_id=request.run_id,
            step_id=record.step_id,
            group_id=request.group_id,
        )
