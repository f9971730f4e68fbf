"""Computes the next model request of a conversation, without sending or storing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.agent_loop.agents.ports import LifecycleArchival, LifecycleMemory, LifecycleRecall
from strata.agent_loop.agents.prompt_limits import PromptLimits
from strata.agent_loop.compaction.plan import Obstacle, Plan, plan_of_next_turn
from strata.agent_loop.context.archival_counts import read_counts
from strata.agent_loop.context.inspection import NextRequest
from strata.agent_loop.context.memory_view import memory_view
from strata.agent_loop.context.token_budget import TokenBudget, compaction_helps, files_excess
from strata.agent_loop.context.tool_space import has_whole_servers
from strata.agent_loop.context.working_window import WorkingWindow
from strata.agent_loop.domain.agent.agents import merge_tools
from strata.agent_loop.domain.agent.store import AgentStore
from strata.agent_loop.domain.ports import MemorySection, Tools
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.turn_rules import TurnRules
from strata.shared.clock import Clock
from strata.shared.tool_catalogue import FILE_TOOLS


@dataclass(frozen=True, slots=True)
class NextSteps:
    """The steps of the next turn before it calls the model.

    Attributes:
        files_to_close: Names of the open files that it would close, in order.
        compaction: The compaction that it would make, or why it would make none.
    """

    files_to_close: Sequence[str]
    compaction: Plan | Obstacle


class NextRequests:
    """Computes the next model request of a conversation.

    Args:
        store: Stores the agents.
        memory: Core memory.
        recall: Recall memory.
        archival: Archival memory.
        tools: The tools.
        limits: Binds an agent to its model.
        clock: The clock.
    """

    def __init__(
        self,
        store: AgentStore,
        memory: LifecycleMemory,
        recall: LifecycleRecall,
        archival: LifecycleArchival,
        tools: Tools,
        limits: PromptLimits,
        clock: Clock,
    ) -> None:
        self._store = store
        self._memory = memory
        self._recall = recall
        self._archival = archival
        self._tools = tools
        self._limits = limits
        self._clock = clock

    async def inspect(self, agent_id: str, conversation_id: str) -> NextRequest:
        """Returns the content of the next model request of a conversation.

        It holds the stored window, with the system message that a turn would build now from the
        current blocks, open files, counts and date. The steps that a turn takes to make it fit
        are not applied; see `next_steps`.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
        """
        agent = await self._store.load(agent_id, conversation_id)
        bound = await self._limits.bound(agent)

        async def memory_and_tools() -> tuple[MemorySection, ToolSet]:
            names = merge_tools(agent.tools, FILE_TOOLS)
            compiling = self._memory.compile(agent, memory_view(agent, bound))
            if not has_whole_servers(agent):
                resolving = self._tools.resolve(names, skip_missing=True)
                return await asyncio.gather(compiling, resolving)
            section = await compiling
            space = self._limits.tool_space(agent, bound, section)
            return section, await self._tools.resolve(names, skip_missing=True, max_bytes=space)

        window, (section, toolset), stats = await asyncio.gather(
            self._recall.get_window(conversation_id),
            memory_and_tools(),
            read_counts(self._archival, agent.id),
        )
        working = WorkingWindow(agent, window, stats, self._clock)
        working.refresh(section)
        offered = toolset.offered(agent.tools, folders=section.has_folders)
        tools = replace(TurnRules(agent, ()).offer(offered).tools, left_out=toolset.left_out)
        return NextRequest(agent, working.stored, working.counted, tools, bound, section)

    async def next_steps(self, next_request: NextRequest, token_budget: TokenBudget) -> NextSteps:
        """Returns the steps by which the next turn would make its request fit.

        The input message of that turn is unknown and not counted.

        Args:
            next_request: The request.
            token_budget: Token budget of its window.
        """
        if next_request.bound is None:
            return NextSteps((), Obstacle.NO_MODEL)
        view = next_request.view
        fixed = next_request.fixed_bytes
        total = fixed + view.size(next_request.window.messages[1:])
        closed: list[str] = []
        excess = files_excess(fixed, token_budget.max_bytes)
        if excess and next_request.section.has_open_files:
            closed = await self._memory.files_to_close(
                next_request.agent,
                memory_view(next_request.agent, next_request.bound),
                max(0, next_request.section.size - excess),
            )
        if closed:
            fixed, total = fixed - excess, total - excess
        return NextSteps(closed, _compaction(next_request, fixed, total, token_budget.max_bytes))


def _compaction(
    next_request: NextRequest, fixed: int, total: int, max_bytes: float
) -> Plan | Obstacle:
    """Returns the compaction that the next turn would make.

    Args:
        next_request: The request.
        fixed: Bytes of system message and tools.
        total: Bytes of the request.
        max_bytes: Bytes that it may have.
    """
    agent, messages = next_request.agent, next_request.window.messages
    if agent.message_buffer_autoclear and messages[-1].approval_request is None:
        return Obstacle.WINDOW_IS_CLEARED
    if total <= max_bytes:
        return Obstacle.WINDOW_NOT_FULL
    if not compaction_helps(fixed, max_bytes):
        return Obstacle.PROMPT_FILLS_WINDOW
    return plan_of_next_turn(messages, next_request.view, max_bytes - fixed, agent.compaction)
