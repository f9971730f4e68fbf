"""The memory section in the prompt of a turn, and the tools that depend on it."""

from __future__ import annotations

from collections.abc import Mapping

from strata.agent_loop.context.memory_view import memory_view
from strata.agent_loop.context.working_window import WorkingWindow
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.ports import BoundModel, Memory, MemorySection
from strata.agent_loop.domain.tools import ToolResult, ToolSet
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Taint


class MemoryInPrompt:
    """The memory section that the model sees.

    Args:
        memory: Compiles memory sections.
        agent: The agent.
        bound: The model at the start of the turn.
        tools: All tools of the agent.
        window: The window; its system message shows the section.

    Attributes:
        view: How memory is shown.
        section: The section.
        toolset: The tools that are offered beside it: the tools for files need folders.
    """

    def __init__(
        self,
        memory: Memory,
        agent: Agent,
        bound: BoundModel,
        tools: ToolSet,
        window: WorkingWindow,
    ) -> None:
        self._memory = memory
        self._agent = agent
        self._tools = tools
        self._window = window
        self.view = memory_view(agent, bound)
        self.section = MemorySection("", None)
        self.toolset = tools

    @property
    def tainted_blocks(self) -> Mapping[str, Taint]:
        """The untrusted labels of blocks, by block label."""
        return self.section.taint

    def show(self, section: MemorySection) -> None:
        """Sets the section that the model sees from now on."""
        self.toolset = self._offered(section)
        self.section = section
        self._window.refresh(section)

    def _offered(self, section: MemorySection) -> ToolSet:
        return self._tools.offered(self._agent.tools, folders=section.has_folders)

    def limit_tools(self, tools: ToolSet) -> None:
        """Replaces the agent's tools, as by those for which the model that is asked has space."""
        self._tools = tools
        self.toolset = self._offered(self.section)

    async def compile(self) -> MemorySection:
        """Reads the current memory; `show` sets it."""
        return await self._memory.compile(self._agent, self.view)

    async def close_files(self, excess: int) -> bool:
        """Closes open files to save `excess` bytes; returns False if no file is open."""
        before = self.section
        if not before.has_open_files:
            return False
        max_bytes = max(0, before.size - excess)
        closed = await self._memory.close_files(self._agent, self.view, max_bytes)
        self.show(closed)
        return closed.size < before.size

    def may_be_outdated_by(self, result: ToolResult) -> bool:
        """Returns whether a call may have changed memory, so that the section is outdated.

        A failed built-in tool of a memory tier counts too: an edit fails if the text was changed
        by others, and the next edit must see the current text. A call with an unknown outcome may
        have changed anything.
        """
        if result.memory_edits or result.files_changed or has_unknown_outcome(result):
            return True
        tools = (
            self._tools.find(name)
            for name, status in _statuses(result)
            if status is ToolStatus.FAILED
        )
        return any(tool is not None and tool.keyed for tool in tools)


def has_unknown_outcome(result: ToolResult) -> bool:
    """Returns whether a call, or a call that its code made, may have had an effect or not."""
    return any(status is ToolStatus.UNKNOWN for _, status in _statuses(result))


def _statuses(result: ToolResult) -> list[tuple[str, ToolStatus]]:
    """Returns tool and status of a call, and of the calls that its code made."""
    tool_return = result.tool_return
    nested = ((call.name, call.status) for call in tool_return.nested)
    return [(tool_return.name, tool_return.status), *nested]
