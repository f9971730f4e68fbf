"""All built-in tools by name, and a check that each of them has an executor."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from strata.tool_execution.builtin.agents import AGENT_TOOLS
from strata.tool_execution.builtin.code import CODE_TOOLS
from strata.tool_execution.builtin.files import FILE_TOOLS
from strata.tool_execution.builtin.functions import FUNCTION_TOOLS
from strata.tool_execution.builtin.memory import MEMORY_TOOLS
from strata.tool_execution.builtin.retrieval import RETRIEVAL_TOOLS
from strata.tool_execution.builtin.summaries import EXPAND_SUMMARY
from strata.tool_execution.builtin.voice_memory import VOICE_MEMORY_TOOLS
from strata.tool_execution.builtin.voice_search import SEARCH_MEMORY
from strata.tool_execution.builtin.web import WEB_TOOLS

BUILTIN_TOOLS = {
    tool.name: tool
    for tool in (
        *FUNCTION_TOOLS,
        *RETRIEVAL_TOOLS,
        EXPAND_SUMMARY,
        SEARCH_MEMORY,
        *MEMORY_TOOLS,
        *VOICE_MEMORY_TOOLS,
        *FILE_TOOLS,
        *WEB_TOOLS,
        *CODE_TOOLS,
        *AGENT_TOOLS,
    )
}


class NamesTools(Protocol):
    """An executor of some tools."""

    @property
    def names(self) -> Collection[str]:
        """Names of the tools that it runs."""
        ...


def check_executors(executors: Iterable[NamesTools]) -> None:
    """Checks that executors run all built-in tools and no others.

    Raises:
        ValueError: A tool has no executor, or an executor runs a tool without a definition.
    """
    run = {name for executor in executors for name in executor.names}
    if missing := sorted(BUILTIN_TOOLS.keys() - run):
        raise ValueError(f"Built-in tools have no executor: {', '.join(missing)}.")
    if undefined := sorted(run - BUILTIN_TOOLS.keys()):
        raise ValueError(f"Executors run tools that are not defined: {', '.join(undefined)}.")
