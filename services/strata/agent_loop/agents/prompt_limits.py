"""Keeps the limits in core memory consistent with the settings of agents.

Agent and limit are stored in two services. A change of an agent therefore raises the limit before
it is stored, and lowers it afterwards: even if it is interrupted, core memory never refuses an edit
that fits the agent's current model. A limit that is too large for a while is harmless, since each
turn checks the whole prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from strata.agent_loop.agents.prompt_budget import PromptBudget, budget_of
from strata.agent_loop.context.tool_space import tool_space
from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentPatch,
    apply_patch,
    check_revision,
)
from strata.agent_loop.domain.agent.commands import UpdateAgent
from strata.agent_loop.domain.agent.store import AgentStore
from strata.agent_loop.domain.model.errors import ModelError
from strata.agent_loop.domain.ports import BoundModel, MemorySection, Models, PromptLimit, Tools
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import TokenEstimator
from strata.protocol.errors import FailedPreconditionError, StrataError
from strata.shared.clock import Clock
from strata.shared.ids import default_conversation_id
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class LimitedMemory(Protocol):
    """The part of core memory that stores limits."""

    async def raise_limit(self, agent_id: str, limit: PromptLimit | None) -> PromptLimit | None:
        """Checks that memory is within a limit and raises the stored limit; returns the old one.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED.
        """
        ...

    async def set_limit(self, agent_id: str, limit: PromptLimit | None, revision: int) -> None:
        """Sets or removes (None) a limit; ignored if there is one for a later agent revision.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        ...


class PromptLimits:
    """Computes the prompt limits of agents and keeps them in core memory.

    Args:
        store: Stores the agents.
        memory: Core memory.
        tools: The tools.
        models: The models.
        tokens: Estimates tokens from bytes.
        clock: The clock.
    """

    def __init__(
        self,
        store: AgentStore,
        memory: LimitedMemory,
        tools: Tools,
        models: Models,
        tokens: TokenEstimator,
        clock: Clock,
    ) -> None:
        self._store = store
        self._memory = memory
        self._tools = tools
        self._models = models
        self._tokens = tokens
        self._clock = clock

    async def bound(self, agent: Agent) -> BoundModel | None:
        """Returns the agent's model; None if no usable model is configured."""
        try:
            return await self._models.bind(agent.model, agent.model_keys)
        except ModelError:
            # An agent may be created before its model is configured.
            return None

    async def budget(self, agent: Agent, tools: ToolSet | None = None) -> PromptBudget | None:
        """Returns the prompt budget of an agent; None if no usable model is configured.

        Args:
            agent: The agent, before or after a change.
            tools: Its tools; None to resolve them. Those of an agent with whole MCP servers are
                resolved in any case, within the space of the prompt.

        Raises:
            NotFoundError: TOOL_NOT_FOUND.
        """
        bound = await self.bound(agent)
        if bound is None:
            return None
        space = self.tool_space(agent, bound)
        toolset = (
            tools
            if tools is not None and not space
            else await self._tools.resolve(agent.tools, skip_missing=True, max_bytes=space)
        )
        return budget_of(agent, bound, toolset.schemas, self._tokens, self._clock)

    def tool_space(
        self, agent: Agent, bound: BoundModel | None, section: MemorySection | None = None
    ) -> int:
        """Returns the maximum bytes of an agent's tools; see `context.tool_space`."""
        return tool_space(agent, bound, self._tokens, self._clock, section)

    async def change(
        self, command: UpdateAgent, check: Callable[[Agent], Awaitable[None]]
    ) -> Agent:
        """Makes a change of an agent that may affect the space for its memory.

        Args:
            command: The change.
            check: Validates the changed agent.

        Raises:
            InvalidArgumentError: `check` refused it, or its limits of open files do not fit.
            NotFoundError: AGENT_NOT_FOUND, TOOL_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED; nothing is changed.
        """
        patch, request = command.patch, command.request
        answered_agent = await self._store.known_agent(request)
        if answered_agent is not None:
            await self._settle(answered_agent.id)
            return answered_agent
        before = await self._load(patch.agent_id)
        check_revision(before, patch.expected_revision)
        patched = apply_patch(before, patch)
        await check(patched)
        budget = await self.budget(patched)
        if budget is not None and _changes_files(patch):
            budget.check_file_limits(patched)
        previous, raised = await self._raise(before, budget)
        try:
            agent = await self._store.update(patch, request)
        except StrataError:
            if raised:
                await self._take_back(before, previous)
            raise
        if _prompt_of(agent) == _prompt_of(patched):
            await self._memory.set_limit(agent.id, _limit(budget), agent.revision)
        else:
            # The agent was changed concurrently, or the request was a repetition.
            await self._settle(agent.id)
        return agent

    async def _raise(
        self, before: Agent, budget: PromptBudget | None
    ) -> tuple[PromptLimit | None, bool]:
        """Makes space for a change of an agent, or refuses it.

        Returns:
            The previous limit, and whether it may have been raised.
        """
        try:
            if budget is not None:
                budget.check()
            return await self._memory.raise_limit(before.id, _limit(budget)), True
        except FailedPreconditionError:
            # A change that does not reduce the space is allowed even if memory is too large.
            assert budget is not None
            present = await self.budget(before)
            if present is None or budget.leaves_less_than(present):
                raise
        return None, False

    async def _take_back(self, before: Agent, previous: PromptLimit | None) -> None:
        """Undoes `_raise` after a change that was not stored."""
        try:
            present = await self._load(before.id)
            if present.revision == before.revision:
                await self._memory.set_limit(before.id, previous, before.revision)
            else:
                await self._settle(before.id)
        except StrataError as error:
            # At worst the limit is too large; the next change of the agent corrects it.
            _log.warning("prompt limit not restored", agent_id=before.id, error=repr(error))

    async def _settle(self, agent_id: str) -> None:
        """Sets the limit for the stored state of an agent."""
        agent = await self._load(agent_id)
        budget = await self.budget(agent)
        await self._memory.set_limit(agent_id, _limit(budget), agent.revision)

    async def _load(self, agent_id: str) -> Agent:
        return await self._store.load(agent_id, default_conversation_id(agent_id))


def _limit(budget: PromptBudget | None) -> PromptLimit | None:
    return None if budget is None else budget.limit


def _changes_files(patch: AgentPatch) -> bool:
    limits = (patch.max_files_open, patch.per_file_view_window_char_limit)
    return any(part is not None for part in (patch.model, *limits))


def _prompt_of(agent: Agent) -> Sequence[object]:
    files = agent.max_files_open, agent.per_file_view_window_char_limit
    return agent.system, agent.model, agent.tools, agent.tool_rules, agent.timezone, files
