"""Computes the space in a prompt for the tools of whole MCP servers, such as ``files__*``.

A server may add tools at any time. What does not fit is left out, so that the agent stays usable.
Tools that the agent names individually are always offered.
"""

from __future__ import annotations

from collections.abc import Collection

from strata.agent_loop.context.token_budget import MESSAGES_SHARE, TokenBudget
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.tool_rules import rules_in_force
from strata.agent_loop.domain.ports import ArchivalStats, BoundModel, MemorySection
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.system_message import Metadata, archival_lines, assemble
from strata.shared.clock import Clock
from strata.shared.provenance import Provenance
from strata.shared.server_tools import server_of
from strata.shared.tool_rules import rule_element

MEMORY_SHARE = 0.25
"""Share of the space beside system prompt and messages that tools of whole servers leave for memory
blocks and open files, also when these are still small."""

# Bytes per token are rounded down to a multiple of this. The exact ratio changes a little with each
# turn, and the tools would change with it, which invalidates the provider's prompt cache.
_RATIO_STEP = 0.5
# Bytes of the tool rules element, and the least bytes of each rule, as core memory renders them.
_RULES_BYTES, _RULE_BYTES = 220, 120
# Large counts, as after years of use. Tags, at most `TAGS_BYTES`, are not counted: they take space
# from the share of the messages.
_LONG_LIVED = archival_lines(ArchivalStats(passage_count=1_000_000), ())
_HIDDEN = 1_000_000


def system_bytes(agent: Agent, clock: Clock) -> int:
    """Returns the bytes of system prompt and metadata, without memory."""
    now = clock.now()
    metadata = Metadata(now, agent.timezone, now, _HIDDEN, _LONG_LIVED)
    return len(assemble(agent.system, "", metadata).encode("utf-8", "replace"))


def rules_bytes(agent: Agent) -> int:
    """Returns the bytes of the tool rules, which are shown in the memory section."""
    rules = rules_in_force(agent.tools, agent.tool_rules)
    elements = [rule_element(rule.sentence) + "\n" for rule in rules if rule.sentence is not None]
    sizes = [max(_RULE_BYTES, len(element.encode("utf-8", "replace"))) for element in elements]
    return _RULES_BYTES + sum(sizes) if sizes else 0


def has_whole_servers(agent: Agent) -> bool:
    """Returns whether an agent has all tools of a server under one name."""
    return any(server_of(name) for name in agent.tools)


def tool_space(
    agent: Agent,
    bound: BoundModel | None,
    tokens: TokenEstimator,
    clock: Clock,
    section: MemorySection | None = None,
) -> int:
    """Returns the maximum bytes of an agent's tools; 0 for no limit.

    Args:
        agent: The agent.
        bound: Its model; without one there is no limit.
        tokens: Estimates tokens from bytes.
        clock: For the date in the metadata.
        section: The memory that the model is shown; None if it is not known.
    """
    if bound is None or not has_whole_servers(agent):
        return 0
    token_budget = TokenBudget(tokens, bound.settings, agent.id)
    ratio = max(_RATIO_STEP, token_budget.ratio // _RATIO_STEP * _RATIO_STEP)
    max_bytes = token_budget.usable_tokens * ratio
    space = max_bytes * (1.0 - MESSAGES_SHARE) - system_bytes(agent, clock)
    memory = rules_bytes(agent) if section is None else section.size
    # At least 1, because 0 means no limit.
    return max(1, int(space - max(memory, space * MEMORY_SHARE)))


def fitting_tools(
    agent: Agent, tools: ToolSet, max_bytes: int, preferred: Collection[str]
) -> ToolSet:
    """Returns the tools for which a model has space that they were not chosen for.

    Only tools of whole servers are left out, the `preferred` ones last.

    Args:
        agent: The agent.
        tools: The tools of the run.
        max_bytes: Maximum bytes of all tools; 0 for no limit.
        preferred: Names of tools, such as those that the conversation has used.
    """
    if not max_bytes:
        return tools

    def of_whole_server(tool: Tool) -> bool:
        return tool.returns_from is Provenance.MCP and tool.name not in agent.tools

    chosen = {tool.name for tool in tools.tools if not of_whole_server(tool)}
    space = max_bytes - sum(t.schema.size_bytes for t in tools.tools if t.name in chosen)
    for tool in sorted(tools.tools, key=lambda tool: tool.name not in preferred):
        # A large tool does not keep smaller ones out.
        if tool.name not in chosen and tool.schema.size_bytes <= space:
            chosen.add(tool.name)
            space -= tool.schema.size_bytes
    return tools.only(chosen)
