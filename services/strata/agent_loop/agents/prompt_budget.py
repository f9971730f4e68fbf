"""Computes how much of an agent's prompt is left for its core memory.

The limit is sent to core memory when the agent is created or changed; core memory then refuses
edits that would not fit. It depends on the model, the tools and the system prompt, which core
memory does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.context.memory_view import shows_line_numbers
from strata.agent_loop.context.token_budget import FILES_SHARE, MESSAGES_SHARE, TokenBudget
from strata.agent_loop.context.tool_space import rules_bytes, system_bytes
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.file_limits import FileLimits, file_limits_of
from strata.agent_loop.domain.model.chat import ToolSchema
from strata.agent_loop.domain.ports import BoundModel, PromptLimit
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.protocol.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    Reason,
)
from strata.shared.clock import Clock

SMALLEST_FILE_BYTES = 200
"""Smallest size of an open file in a prompt: its element, its name and one line."""


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """The space in an agent's prompt, and how much of it is fixed.

    Attributes:
        agent_id: The agent.
        context_window: Tokens of the model's context window.
        usable: Maximum bytes of a prompt.
        fixed: Bytes of system prompt, metadata, tool rules and tools.
        line_numbers: The model sees memory with line numbers.
        files: Limits of open files.
    """

    agent_id: str
    context_window: int
    usable: int
    fixed: int
    line_numbers: bool
    files: FileLimits

    @property
    def memory_bytes(self) -> int:
        """Bytes left for core memory; negative if the fixed part alone is too large."""
        return self.usable - int(self.usable * MESSAGES_SHARE) - self.fixed

    @property
    def files_bytes(self) -> int:
        """Bytes that blocks and open files may take together when a file is opened."""
        return self.usable - int(self.usable * FILES_SHARE) - self.fixed

    def check_file_limits(self, agent: Agent) -> None:
        """Refuses an agent's limits of open files if they can never be reached.

        A single file may take all space for files, and very small files may be open, so only
        limits are refused that even one file, or the smallest files, would exceed.

        Raises:
            InvalidArgumentError: ``INVALID_FIELD``; the message has the largest possible value.
        """
        available = max(0, self.files_bytes)
        limits = {
            "max_files_open": (agent.max_files_open, available // SMALLEST_FILE_BYTES),
            "per_file_view_window_char_limit": (agent.per_file_view_window_char_limit, available),
        }
        violations = [
            FieldViolation(
                field,
                f"is {wanted}, but a context window of {self.context_window} tokens has space for "
                f"{largest} at most beside system prompt, tools and conversation; 0 derives it "
                "from the context window",
            )
            for field, (wanted, largest) in limits.items()
            if wanted > max(1, largest)
        ]
        if violations:
            raise InvalidArgumentError(
                "; ".join(f"{violation.field} {violation.description}" for violation in violations)
                + ".",
                violations=violations,
            )

    @property
    def limit(self) -> PromptLimit:
        """The limit that is sent to core memory."""
        return PromptLimit(
            max(0, self.memory_bytes),
            self.line_numbers,
            # 0 would mean unknown.
            max(1, self.files_bytes),
            self.files.max_open,
            self.files.view_chars,
        )

    def leaves_less_than(self, other: PromptBudget) -> bool:
        """Returns whether this budget leaves less space for memory than another one."""
        numbered = self.line_numbers and not other.line_numbers
        return numbered or self.memory_bytes < other.memory_bytes

    def check(self) -> None:
        """Refuses an agent whose prompt is too large even without memory.

        Raises:
            FailedPreconditionError: ``CONTEXT_WINDOW_EXCEEDED``.
        """
        if self.memory_bytes < 0:
            max_bytes = self.fixed + self.memory_bytes
            raise FailedPreconditionError(
                f"System prompt and tools take {self.fixed} bytes, {-self.memory_bytes} more than "
                f"the {max_bytes} that fit into a context window of {self.context_window} tokens. "
                "Shorten the system prompt, remove tools, or choose a larger context window or a "
                "smaller limit of output tokens.",
                reason=Reason.CONTEXT_WINDOW_EXCEEDED,
                metadata={
                    "agent_id": self.agent_id,
                    "size": self.fixed,
                    "limit": max_bytes,
                    "context_window": self.context_window,
                },
            )


def budget_of(
    agent: Agent,
    bound: BoundModel,
    tools: Sequence[ToolSchema],
    tokens: TokenEstimator,
    clock: Clock,
) -> PromptBudget:
    """Returns the budget of an agent.

    Args:
        agent: The agent, before or after a change.
        bound: Its model.
        tools: Schemas of its tools, without the file tools.
        tokens: Estimates tokens from bytes.
        clock: For the date in the metadata.
    """
    token_budget = TokenBudget(tokens, bound.settings, agent.id)
    return PromptBudget(
        agent_id=agent.id,
        context_window=bound.settings.context_window,
        usable=int(token_budget.max_bytes),
        fixed=system_bytes(agent, clock) + tools_bytes(tools) + rules_bytes(agent),
        line_numbers=shows_line_numbers(agent, bound),
        files=file_limits_of(agent, bound.settings.context_window),
    )
