"""How much of an agent's prompt is left for its core memory.

Core memory is told when the agent is made and when it is changed, and then refuses what would
not fit, at the edit. What it cannot know stands here: the model, the tools, the system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.agents import Agent
from strata.agent_loop.domain.tool_rules import rules_in_force
from strata.agent_loop.loop.gauge import Gauge
from strata.agent_loop.loop.ports import BoundModel, PromptLimit
from strata.agent_loop.loop.steps import shows_line_numbers
from strata.agent_loop.models.domain import ToolSchema
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.agent_loop.prompts.system_message import ArchivalStats, Metadata, assemble
from strata.shared.clock import Clock
from strata.shared.errors import FailedPreconditionError, Reason
from strata.shared.tool_rules import rule_element

MESSAGES_SHARE = 0.1
"""Share of the usable prompt that memory never takes: without it nothing could be said."""

# What tool rules take around their sentences and at least for each, as core memory writes them.
_RULES_BYTES, _RULE_BYTES = 220, 120
# Counts in the metadata as they are after years; the tags of archival memory are not foreseen.
_LONG_LIVED = ArchivalStats(passage_count=1_000_000)
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
    """

    agent_id: str
    context_window: int
    usable: int
    fixed: int
    line_numbers: bool

    @property
    def memory_bytes(self) -> int:
        """Bytes that are left for core memory; below 0 if even the rest is too large."""
        return self.usable - int(self.usable * MESSAGES_SHARE) - self.fixed

    @property
    def limit(self) -> PromptLimit:
        """What core memory is told."""
        return PromptLimit(max(0, self.memory_bytes), self.line_numbers)

    def leaves_less_than(self, other: PromptBudget) -> bool:
        """Says whether memory has less room by this budget than by another one."""
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
                f"the {most} that there is room for in a context window of "
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
    gauge = Gauge(tokens, bound.settings, agent.id)
    return PromptBudget(
        agent_id=agent.id,
        context_window=bound.settings.context_window,
        usable=int(gauge.max_bytes),
        fixed=system + tools_bytes(tools) + _rules_bytes(agent),
        line_numbers=shows_line_numbers(agent, bound),
    )


def _rules_bytes(agent: Agent) -> int:
    rules = rules_in_force(agent.tools, agent.tool_rules)
    shown = [rule_element(rule.sentence) + "\n" for rule in rules if rule.sentence is not None]
    sizes = [max(_RULE_BYTES, len(each.encode("utf-8", "replace"))) for each in shown]
    return _RULES_BYTES + sum(sizes) if sizes else 0
