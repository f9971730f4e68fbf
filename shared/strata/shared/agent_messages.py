"""The first line of a message from one agent to another.

Tool execution writes it, with the present name of the sender. The gateway leaves the name out of
the digest by which it recognises a repeated message, since the sender may be renamed meanwhile.
"""

from __future__ import annotations

from strata.shared.member_labels import labels_of

_BEGINNING = "[Message from another agent, "


def opening(name: str, agent_id: str, how: str) -> str:
    """Returns the line that says who sent a message.

    Args:
        name: The name of the sender.
        agent_id: Its id.
        how: Sentences about how it gets an answer.
    """
    [label] = labels_of([name])
    return f"{_BEGINNING}{label}{_identity(agent_id)}{how}]"


def without_name(text: str, agent_id: str) -> str:
    """Returns a message without the name of its sender; other texts are returned unchanged.

    Args:
        text: The message.
        agent_id: The sender.
    """
    if not text.startswith(_BEGINNING):
        return text
    _, identity, rest = text.partition(_identity(agent_id))
    return f"{_BEGINNING}{identity}{rest}" if identity else text


def _identity(agent_id: str) -> str:
    return f" ({agent_id}). "
