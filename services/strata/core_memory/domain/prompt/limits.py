"""Limits of the size of an agent's core memory in its prompt.

The agent loop computes the limit from the model's context window when it creates or changes an
agent. The store enforces it in every statement that makes a block or an agent's set of blocks
larger. Statements that make them smaller always succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata.protocol.errors import FailedPreconditionError, Reason


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The limits for the memory of an agent.

    Attributes:
        bytes: UTF-8 bytes of all its rendered blocks; None for any size.
        line_numbers: Values are rendered with line numbers, which take space too.
        files_bytes: UTF-8 bytes of blocks and folders together above which no file is opened;
            0 if unknown.
        max_open: Files that may be open at once; 0 if unknown.
        view_chars: Characters of one file that are shown; 0 if unknown.
    """

    bytes: int | None = None
    line_numbers: bool = False
    files_bytes: int = 0
    max_open: int = 0
    view_chars: int = 0

    def raised_to(self, other: PromptLimit) -> PromptLimit:
        """Returns this limit with the bytes of the other one, if those are more."""
        if self.bytes is None or other.bytes is None:
            return replace(self, bytes=None)
        return replace(self, bytes=max(self.bytes, other.bytes))


NO_LIMIT = PromptLimit()


@dataclass(frozen=True, slots=True)
class PromptSize:
    """UTF-8 bytes of the memory of an agent in its prompt, as the store counts them.

    Each block counts with its value, description, label and a constant; `numbered` also
    counts the line numbers. Tags that rendering escapes are counted unescaped.
    """

    plain: int = 0
    numbered: int = 0

    def in_form(self, limit: PromptLimit) -> int:
        """Returns the size in the rendering that the limit is for."""
        return self.numbered if limit.line_numbers else self.plain

    def space(self, limit: PromptLimit) -> float:
        """Returns how many bytes are free; less than 0 above the limit."""
        return float("inf") if limit.bytes is None else limit.bytes - self.in_form(limit)


def check_change(agent_id: str, size: PromptSize, old: PromptLimit, new: PromptLimit) -> None:
    """Raises if the memory exceeds a new limit by more than it exceeds the old one.

    Raises:
        FailedPreconditionError: The memory is larger than the new limit
            (``CONTEXT_WINDOW_EXCEEDED``).
    """
    space = size.space(new)
    if new.bytes is not None and space < 0 and space < size.space(old):
        used_bytes = size.in_form(new)
        raise FailedPreconditionError(
            f"Core memory of {agent_id} takes {used_bytes} bytes of its prompt,"
            f" {used_bytes - new.bytes} more than the {new.bytes} that would be left for it."
            " Nothing was changed: shorten or detach a memory block first, or leave more space.",
            reason=Reason.CONTEXT_WINDOW_EXCEEDED,
            metadata={"agent_id": agent_id, "size": used_bytes, "limit": new.bytes},
        )


def memory_too_large(agent_id: str, size: int, limit: int) -> FailedPreconditionError:
    """Returns the error for an edit that makes the memory of an agent too large for its prompt.

    Args:
        agent_id: The agent; with shared blocks it need not be the one that edits.
        size: Size of its memory after the change, bytes.
        limit: Maximum size, bytes.
    """
    return FailedPreconditionError(
        f"Core memory would be too large for the context window: all blocks of {agent_id} "
        f"together would take {size} bytes, {size - limit} more than the {limit} that there is "
        f"space for. Nothing was changed: shorten a memory block by at least {size - limit} bytes "
        "or detach one, or write less.",
        reason=Reason.CONTEXT_WINDOW_EXCEEDED,
        metadata={"agent_id": agent_id, "size": size, "limit": limit},
    )
