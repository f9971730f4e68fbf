"""Converts requests that expand summaries, export, fork, and set the retention of messages."""

from __future__ import annotations

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.protocol.errors import invalid_field
from strata.recall.convert.messages import messages_to_proto
from strata.recall.domain.messages import MessageFilter
from strata.recall.domain.retention import MAX_DAYS, Retention
from strata.recall.domain.summary_expansion import ExpandedSummary, SummaryExpansion
from strata.shared.checks import Checks
from strata.shared.db import page_limit

MAX_PAGE_SIZE = 500


def to_expansion(request: message_pb.ExpandSummaryRequest) -> SummaryExpansion:
    """Returns the expansion of a request.

    Raises:
        InvalidArgumentError: An id or a number is wrong, or not exactly one summary is named.
    """
    checks = Checks()
    checks.exactly_one(request, "conversation_id", "summary_message_id")
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    checks.id(request.summary_message_id, "message", "summary_message_id", optional=True)
    checks.not_negative(request.from_sequence, "from_sequence")
    start_time = checks.optional_time(request, "start_time")
    checks.done()
    return SummaryExpansion(
        limit=page_limit(request.page_size, maximum=MAX_PAGE_SIZE),
        conversation_id=request.conversation_id,
        summary_id=request.summary_message_id,
        from_sequence=request.from_sequence,
        start_time=start_time,
    )


def expanded_to_proto(expanded: ExpandedSummary) -> message_pb.ExpandSummaryResponse:
    """Returns the messages of a summary as a response."""
    response = message_pb.ExpandSummaryResponse(
        messages=messages_to_proto(expanded.messages), next_sequence=expanded.next_sequence
    )
    if expanded.summary is not None:
        response.summary.CopyFrom(messages_to_proto([expanded.summary])[0])
    return response


def to_whole(request: message_pb.ExportMessagesRequest) -> MessageFilter:
    """Returns the filter of an ExportMessages request.

    Raises:
        InvalidArgumentError: An id is wrong, or not exactly one of agent and conversation is set.
    """
    checks = Checks()
    checks.exactly_one(request, "conversation_id", "agent_id")
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.done()
    return MessageFilter(conversation_id=request.conversation_id, agent_id=request.agent_id)


def check_fork(request: window_pb.ForkWindowRequest) -> None:
    """Validates a ForkWindow request.

    Raises:
        InvalidArgumentError: An id is wrong.
    """
    checks = Checks()
    checks.id(request.source_conversation_id, "conversation", "source_conversation_id")
    checks.id(request.conversation_id, "conversation", "conversation_id")
    checks.id(request.until_message_id, "message", "until_message_id", optional=True)
    checks.done()


def to_days(request: message_pb.SetRetentionRequest) -> int:
    """Returns for how many days messages are to be kept; 0 for ever.

    Raises:
        InvalidArgumentError: The number is not set or out of range.
    """
    if not request.HasField("days"):
        raise invalid_field("days", "must be set; 0 keeps all messages for ever")
    if not 0 <= request.days <= MAX_DAYS:
        raise invalid_field("days", f"must be between 0 and {MAX_DAYS}")
    return request.days


def retention_to_proto(retention: Retention) -> message_pb.Retention:
    """Returns a retention as a proto."""
    wire = message_pb.Retention(days=retention.days)
    if retention.update_time is not None:
        wire.update_time.FromDatetime(retention.update_time)
    return wire
