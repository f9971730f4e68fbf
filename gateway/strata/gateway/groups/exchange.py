"""The messages of one run of a group, and which of them each agent has received. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.api.agent_loop.v1.group_service_pb2 import GroupMember
from strata.api.common.v1.message_pb2 import MessageInput, Part, TextPart
from strata.api.common.v1.message_pb2 import Provenance as ProvenancePb
from strata.shared.member_labels import speaker_name

Labels = Sequence[ProvenancePb.ValueType]


@dataclass(frozen=True, slots=True)
class ExchangeMessage:
    """A message in a run of a group.

    Attributes:
        message: The message in the form that other agents get.
        sender_agent_id: The agent that wrote it; empty for messages to the group.
    """

    message: MessageInput
    sender_agent_id: str = ""


class GroupMessages:
    """The messages of a run of a group, in order.

    Args:
        messages: The messages that were sent to the group.
    """

    def __init__(self, messages: Sequence[MessageInput]) -> None:
        self._messages = [ExchangeMessage(message) for message in messages]
        self._seen_counts: dict[str, int] = {}

    def add_reply(self, member: GroupMember, text: str, taint: Labels) -> None:
        """Adds the reply of a member, unless it is blank.

        Args:
            member: The member.
            text: Text of the reply.
            taint: Provenance labels of the text: WEB, MCP.
        """
        if text.strip():
            self._messages.append(
                ExchangeMessage(named_message(member, text, taint), member.agent_id)
            )

    def unseen_by(self, agent_id: str) -> Sequence[ExchangeMessage]:
        """Returns the messages of others that an agent has not seen."""
        unseen = self._messages[self._seen_counts.get(agent_id, 0) :]
        return [message for message in unseen if message.sender_agent_id != agent_id]

    def note_shown(self, agent_id: str) -> None:
        """Marks all messages so far as seen by an agent."""
        self._seen_counts[agent_id] = len(self._messages)


def named_message(member: GroupMember, text: str, taint: Labels) -> MessageInput:
    """Returns a message of a member in the form that other agents get.

    Args:
        member: The member.
        text: The text.
        taint: Provenance labels of the text: WEB, MCP.
    """
    # The agent loop puts the name before the text in the model's prompt.
    name = speaker_name(member.name, member.agent_id)
    part = Part(text=TextPart(text=text))
    return MessageInput(name=name, parts=[part], taint=sorted(set(taint)))
