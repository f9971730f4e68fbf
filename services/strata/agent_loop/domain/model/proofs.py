"""Marks which provider signed a stored piece of reasoning, since others refuse its signature.

Anthropic's signatures and hidden payloads are stored unchanged. Other wire protocols mark theirs in
`ReasoningPart.signature`: the name of the protocol, a colon, and a note. Anthropic's signatures are
Base64 and have no colon. Thoughts that the V2 loop took out of calls are marked too: models see
them as an argument of the call, never as reasoning. Pure.
"""

from __future__ import annotations

from typing import TypeGuard

from strata.agent_loop.domain.model.chat import PromptPart, ReasoningPart

_END_OF_NAME = ":"
_THOUGHT = "thought"


def mark(owner: str, note: str) -> str:
    """Returns the signature for a piece of reasoning that is only sent back to `owner`.

    Args:
        owner: Name of the wire protocol or service.
        note: Data that it needs when the piece is sent back.
    """
    return f"{owner}{_END_OF_NAME}{note}"


def note_for(owner: str, part: ReasoningPart) -> str | None:
    """Returns the note of a piece of reasoning; None if another provider signed it."""
    name, end, note = part.signature.partition(_END_OF_NAME)
    return note if end and name == owner else None


def is_marked(part: ReasoningPart) -> bool:
    """Returns whether a piece of reasoning was marked by a wire protocol."""
    return _END_OF_NAME in part.signature


def thought(text: str) -> ReasoningPart:
    """Returns a thought that a model wrote as an argument of a call."""
    return ReasoningPart(text, mark(_THOUGHT, ""))


def is_thought(part: PromptPart) -> TypeGuard[ReasoningPart]:
    """Returns whether a part is a thought that a model wrote as an argument of a call."""
    return isinstance(part, ReasoningPart) and note_for(_THOUGHT, part) is not None
