"""What was said in one run of a group, and what each of its agents has not been shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.api.agent_loop.v1.group_service_pb2 import GroupMember
from strata.api.common.v1.message_pb2 import MessageInput, Part, TextPart
from strata.api.common.v1.message_pb2 import Provenance as ProvenancePb

Labels = Sequence[ProvenancePb.ValueType]


@dataclass(frozen=True, slots=True)
class Line:
    """A message of the exchange.

    Attributes:
        message: The message, as other agents are shown it.
        sender_agent_id: The agent that wrote it; empty for what was sent to the group.
    """

    message: MessageInput
    sender_agent_id: str = ""


class Exchange:
    """The messages of a run of a group in order.

    Args:
        messages: What was sent to the group.
    """

    def __init__(self, messages: Sequence[MessageInput]) -> None:
        self._lines = [Line(message) for message in messages]
        self._shown: dict[str, int] = {}

    def add_reply(self, member: GroupMember, text: str, taint: Labels) -> None:
        """Adds what a member has said; blank text is nothing.

        Args:
            member: Who has said it.
            text: What.
            taint: Where it comes from: WEB, MCP.
        """
        if text.strip():
            self._lines.append(Line(named_message(member, text, taint), member.agent_id))

    def unseen(self, agent_id: str) -> Sequence[Line]:
        """Returns what an agent has not been shown; its own words it knows."""
        unseen = self._lines[self._shown.get(agent_id, 0) :]
        return [line for line in unseen if line.sender_agent_id != agent_id]

    def note_shown(self, agent_id: str) -> None:
        """Takes in that an agent is shown all that has been said so far."""
        self._shown[agent_id] = len(self._lines)


def named_message(member: GroupMember, text: str, taint: Labels) -> MessageInput:
    """Returns a message of a member as other agents are shown it.

    Args:
        member: Who has written it.
        text: The text.
        taint: Where it comes from: WEB, MCP.
    """
    # Of an agent's name more is allowed than of a speaker's, such as joined emoji.
    name = "".join(character for character in member.name if character.isprintable())
    # The agent loop puts the name of a writer before the text where the model is shown it.
    part = Part(text=TextPart(text=text))
    return MessageInput(name=name, parts=[part], taint=sorted(set(taint)))
