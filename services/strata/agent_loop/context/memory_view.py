"""Determines how an agent's memory is shown to its model: line numbers, limits of open files."""

from __future__ import annotations

from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.file_limits import file_limits_of
from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.domain.model.chat import DEFAULT_CONTEXT_WINDOW
from strata.agent_loop.domain.ports import BoundModel, MemoryView
from strata.agent_loop.models.dialects.table import dialect_of


def shows_line_numbers(agent: Agent, bound: BoundModel) -> bool:
    """Returns whether memory is shown with line numbers (docs/wire-format.md#line-numbers)."""
    dialect = dialect_of(bound.settings.endpoint_type)
    return dialect.line_numbers and AGENT_TYPES[agent.type].line_numbered


def memory_view(agent: Agent, bound: BoundModel | None) -> MemoryView:
    """Returns how memory is shown; without a model, for the default context window."""
    if bound is None:
        return MemoryView(False, file_limits_of(agent, DEFAULT_CONTEXT_WINDOW))
    limits = file_limits_of(agent, bound.settings.context_window)
    return MemoryView(shows_line_numbers(agent, bound), limits)
