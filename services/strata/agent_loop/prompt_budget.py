"""How much of an agent's prompt is left for its core memory.

Core memory is told when the agent is made and when it is changed, and then refuses what would
not fit, at the edit. What it cannot know stands here: the model, the tools, the system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.agents import Agent
from strata.agent_loop.domain.file_limits import FileLimits, file_limits_of
from strata.agent_loop.domain.tool_rules import rules_in_force
from strata.agent_loop.loop.memory_view import shows_line_numbers
from strata.agent_loop.loop.ports import BoundModel, PromptLimit
from strata.agent_loop.loop.token_budget import FILES_SHARE, MESSAGES_SHARE, TokenBudget
from strata.agent_loop.models.domain import ToolSchema
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.agent_loop.prompts.system_message import (
    ArchivalStats,
    Metadata,
    archival_lines,
    assemble,
)
from strata.shared.clock import Clock
from strata.shared.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    Reason,
)
from strata.shared.tool_rules import rule_element

SMALLEST_FILE_BYTES = 200
"""What an open file takes of a prompt at least: its element, its name and one line."""

# What tool rules take around their sentences and at least for each, as core memory writes them.
_RULES_BYTES, _RULE_BYTES = 220, 120
# Counts in the metadata as they are after years; the tags, at most `TAGS_BYTES`, are not
# foreseen: they are taken from the share of the messages.
_LONG_LIVED = archival_lines(ArchivalStats(passage_count=1_000_000), ())
_HIDDEN = 1_000_000


@dataclass(frozen=True, slots=True)
class PromptBudget:
    """What an agent's model can be sent, and what is sent of it with every request.

    Attributes:
        agent_id: The agent.
        context_window: Tokens of the model's window.
        usable: Bytes that a prompt may have.
        fixed: Bytes of system prompt, metadata, tool rules and tools.
        line_numbers: The model sees its memory with line numbers.
        files: How many files may be open and how much of each is shown.
    """

    agent_id: str
    context_window: int
    usable: int
    fixed: int
    line_numbers: bool
    files: FileLimits

    @property
    def memory_bytes(self) -> int:
        """Bytes that are left for core memory; below 0 if even the rest is too large."""
        return self.usable - int(self.usable * MESSAGES_SHARE) - self.fixed

    @property
    def files_bytes(self) -> int:
        """Bytes that blocks and open files may take together when a file is opened."""
        return self.usable - int(self.usable * FILES_SHARE) - self.fixed

    def check_file_limits(self, agent: Agent) -> None:
        """Refuses limits of open files that an agent sets and that can never be used.

        A single file may take all that is left for files, and many small ones may be open, so
        only limits are refused that not even one file or the smallest files would fit into.

        Raises:
            InvalidArgumentError: ``INVALID_FIELD``; it names the largest value that fits.
        """
        left = max(0, self.files_bytes)
        most = {
            "max_files_open": (agent.max_files_open, left // SMALLEST_FILE_BYTES),
            "per_file_view_window_char_limit": (agent.per_file_view_window_char_limit, left),
        }
        violations = [
            FieldViolation(
                field,
                f"is {wanted}, but a context window of {self.context_window} tokens has space for "
                f"{largest} at most beside system prompt, tools and conversation; 0 derives it "
                "from the context window",
            )
            for field, (wanted, largest) in most.items()
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
        """What core memory is told."""
        return PromptLimit(
            max(0, self.memory_bytes),
            self.line_numbers,
            # 0 would mean that it is not known.
            max(1, self.files_bytes),
            self.files.max_open,
            self.files.view_chars,
        )

    def leaves_less_than(self, other: PromptBudget) -> bool:
        """Says whether memory has less space by this budget than by another one."""
        numbered = self.line_numbers and not other.line_numbers
        return numbered or self.memory_bytes < other.memory_bytes

    def check(self) -> None:
        """Refuses an agent that could not even be asked without any memory.

        Raises:
            FailedPreconditionError: ``CONTEXT_WINDOW_EXCEEDED``.
        """
        if self.memory_bytes < 0:
            most = self.fixed + self.memory_bytes
            raise FailedPreconditionError(
                f"System prompt and tools take {self.fixed} bytes, {-self.memory_bytes} more than "
                f"the {most} that there is space for in a context window of "
                f"{self.context_window} tokens. Shorten the system prompt, take away tools, or "
                "choose a larger context window or a smaller limit of output tokens.",
                reason=Reason.CONTEXT_WINDOW_EXCEEDED,
                metadata={
                    "agent_id": self.agent_id,
                    "size": self.fixed,
                    "limit": most,
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
        agent: The agent, as it is or as it is to be.
        bound: Its model.
        tools: What it is offered, without the file tools.
        tokens: What is known of bytes per token.
        clock: For the date in the metadata.
    """
    now = clock.now()
    metadata = Metadata(now, agent.timezone, now, _HIDDEN, _LONG_LIVED)
    system = len(assemble(agent.system, "", metadata).encode("utf-8", "replace"))
    token_budget = TokenBudget(tokens, bound.settings, agent.id)
    return PromptBudget(
        agent_id=agent.id,
        context_window=bound.settings.context_window,
        usable=int(token_budget.max_bytes),
        fixed=system + tools_bytes(tools) + _rules_bytes(agent),
        line_numbers=shows_line_numbers(agent, bound),
        files=file_limits_of(agent, bound.settings.context_window),
    )


def _rules_bytes(agent: Agent) -> int:
    rules = rules_in_force(agent.tools, agent.tool_rules)
    shown = [rule_element(rule.sentence) + "\n" for rule in rules if rule.sentence is not None]
    sizes = [max(_RULE_BYTES, len(element.encode("utf-8", "replace"))) for element in shown]
    return _RULES_BYTES + sum(sizes) if sizes else 0
