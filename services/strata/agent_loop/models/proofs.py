"""Whose proof a stored piece of reasoning bears, since every provider refuses that of another.

Anthropic's signatures and hidden payloads are stored as they came. Those of other wire protocols
are marked in `ReasoningPart.signature`: the name of the protocol, a colon, and what it notes. A
signature of Anthropic is Base64 and has no colon. A thought that the V2 loop took out of a call is
marked, too: it is shown to every model as an argument of the call, and to none as reasoning. Pure.
"""

from __future__ import annotations

from typing import TypeGuard

from strata.agent_loop.models.domain import PromptPart, ReasoningPart

_END_OF_NAME = ":"
_THOUGHT = "thought"


def mark(owner: str, note: str) -> str:
    """Returns the signature of a piece of reasoning that only `owner` takes back.

    Args:
        owner: Name of the wire protocol or service.
        note: What it needs to know when the piece goes back.
    """
    return f"{owner}{_END_OF_NAME}{note}"


def note_for(owner: str, part: ReasoningPart) -> str | None:
    """Returns the note of a piece of reasoning; None if it is not that of `owner`."""
    name, end, note = part.signature.partition(_END_OF_NAME)
    return note if end and name == owner else None


def is_marked(part: ReasoningPart) -> bool:
    """Whether a piece of reasoning is that of a wire protocol that marks its own."""
    return _END_OF_NAME in part.signature


def thought(text: str) -> ReasoningPart:
    """Returns a thought that a model wrote as an argument of a call."""
    return ReasoningPart(text, mark(_THOUGHT, ""))


def is_thought(part: PromptPart) -> TypeGuard[ReasoningPart]:
    """Says whether a part is a thought that a model wrote as an argument of a call."""
    return isinstance(part, ReasoningPart) and note_for(_THOUGHT, part) is not None
