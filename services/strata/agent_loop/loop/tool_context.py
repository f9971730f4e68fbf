"""The ports, tools and rules that the calls of one reply are run with."""

from __future__ import annotations

from dataclasses import dataclass

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.ports import EventSink, Journal, Tools
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.domain.tools import CallingGroup, OlderLines, ToolSet
from strata.agent_loop.loop.turn_rules import StepRules
from strata.shared.clock import Clock


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The ports, tools and rules that the calls of one reply are run with."""

    tools: Tools
    journal: Journal
    sink: EventSink
    clock: Clock
    agent: Agent
    key: JournalKey
    toolset: ToolSet
    rules: StepRules
    older_lines: OlderLines | None = None
    group: CallingGroup | None = None
