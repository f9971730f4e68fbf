"""The life of agents over the tiers: create, change, delete, start conversations.

There are no transactions over several rooms. Each action is a sequence of calls that can be
repeated from its start, and is recorded where it starts: an agent in creation or deletion has a
row that nobody sees, and the next one to come finishes or clears it (architecture §2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from strata.agent_loop.domain.agents import (
    LINE_NUMBERED_TYPES,
    Agent,
    AgentState,
    CompactionSettings,
    Conversation,
    StoredAgent,
    changes_prompt,
    merge_tools,
)
from strata.agent_loop.domain.commands import (
    CreateAgent,
    CreateConversation,
    ForkConversation,
    UpdateAgent,
)
from strata.agent_loop.domain.messages import Message, MessageRole, Provenance, Window
from strata.agent_loop.domain.store import AgentStore
from strata.agent_loop.domain.tools import FILE_TOOLS, ToolSet
from strata.agent_loop.inspection import shows_folders
from strata.agent_loop.limiting import LimitedMemory, PromptLimits
from strata.agent_loop.loop.failures import ends_run
from strata.agent_loop.loop.ports import (
    Archival,
    BoundModel,
    Memory,
    MemorySection,
    Models,
    PromptLimit,
    Tools,
)
from strata.agent_loop.models.domain import EndpointType, TextPart
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.system_message import ArchivalStats, Metadata, assemble
from strata.agent_loop.rules.validation import tool_violations
from strata.shared.clock import Clock
from strata.shared.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
)
from strata.shared.ids import new_id
from strata.shared.logs import get_logger

ABANDONED_AFTER = timedelta(minutes=1)
"""A creation that has not ended by then was given up; its name is free again."""

_log = get_logger(__name__)


class MemoryLife(Memory, LimitedMemory, Protocol):
    """Core memory in the life of an agent."""

    async def prepare(
        self,
        agent: Agent,
        blocks: Sequence[Any],
        block_ids: Sequence[str],
        limit: PromptLimit | None,
    ) -> Sequence[Any]:
        """Makes and attaches the first blocks; repeating it returns them.

        Raises:
            FailedPreconditionError: BLOCK_LIMIT_EXCEEDED; CONTEXT_WINDOW_EXCEEDED if all of them
                together exceed the limit.
        """
        ...

    async def release(self, agent_id: str) -> None:
        """Takes everything from an agent."""
        ...


class RecallLife(Protocol):
    """Recall memory in the life of an agent."""

    async def open_window(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message]
    ) -> None:
        """Makes a window; one that is there stays as it is."""
        ...

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window."""
        ...

    async def fork_window(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Makes a window as another was at a message; one that is there stays as it is."""
        ...

    async def release(self, agent_id: str) -> None:
        """Deletes all messages of an agent."""
        ...


class ArchivalLife(Archival, Protocol):
    """Archival memory in the life of an agent."""

    async def prepare(self, agent_id: str) -> None:
        """Makes an agent known; repeating it is success."""
        ...

    async def release(self, agent_id: str) -> None:
        """Takes all archives from an agent and deletes its own."""
        ...


class ModelCatalog(Models, Protocol):
    """The configured models, and which handles can be one of them."""

    def check(self, handle: str, field: str = "model.handle") -> None:
        """Refuses a handle that no configured endpoint can have; an empty one passes.

        Raises:
            InvalidArgumentError: INVALID_FIELD; it names what is known.
        """
        ...


class AgentLifecycle:
    """Implements what `AgentService` promises.

    Args:
        store: Where agents are kept.
        memory: Core memory.
        recall: Recall memory.
        archival: Archival memory.
        tools: The tools.
        models: The models.
        tokens: What is known of bytes per token.
        clock: The clock.
    """

    def __init__(
        self,
        store: AgentStore,
        memory: MemoryLife,
        recall: RecallLife,
        archival: ArchivalLife,
        tools: Tools,
        models: ModelCatalog,
        tokens: TokenEstimator,
        clock: Clock,
    ) -> None:
        self._store = store
        self._memory = memory
        self._recall = recall
        self._archival = archival
        self._tools = tools
        self._models = models
        self._clock = clock
        self._limits = PromptLimits(store, memory, tools, models, tokens, clock)

    async def create(self, command: CreateAgent) -> tuple[Agent, Sequence[Any]]:
        """Creates an agent whole or not at all; returns it with its blocks.

        After an error that may pass (a room cannot be reached), the same request id goes on
        where this stopped. After any other error nothing is left.

        Raises:
            InvalidArgumentError: INVALID_FIELD: the tool rules do not go with the tools.
            NotFoundError: BLOCK_NOT_FOUND, TOOL_NOT_FOUND.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
            FailedPreconditionError: BLOCK_LIMIT_EXCEEDED; CONTEXT_WINDOW_EXCEEDED if system
                prompt, tools and blocks are too large for the model.
        """
        self._models.check(command.agent.model.handle)
        self.check_compaction(command.agent.compaction)
        tools = await self._tools.resolve(command.agent.tools)
        await self._check_rules(command.agent)
        stored = await self._claim(command)
        agent = stored.agent
        if stored.state is AgentState.DELETING:
            raise _not_found(agent.id)
        try:
            limit = await self._first_limit(stored, tools)
            # Each is waited for: what is still under way could store after it was undone.
            blocks, archive = await asyncio.gather(
                self._memory.prepare(agent, command.blocks, command.block_ids, limit),
                self._archival.prepare(agent.id),
                return_exceptions=True,
            )
            if isinstance(blocks, BaseException):
                raise blocks
            if isinstance(archive, BaseException):
                raise archive
            if stored.state is AgentState.ACTIVE:
                return agent, blocks
            await self._open(agent, agent.default_conversation_id, command)
            return await self._store.activate(agent.id), blocks
        except StrataError as error:
            fresh = stored.state is AgentState.CREATING
            if fresh and (ends_run(error) or not command.request.id):
                await self._undo(agent.id)
            raise

    async def update(self, command: UpdateAgent) -> Agent:
        """Changes an agent.

        Raises:
            InvalidArgumentError: INVALID_FIELD: the tool rules do not go with the tools.
            NotFoundError: AGENT_NOT_FOUND, TOOL_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED: system prompt, tools and blocks
                would be too large for the model.
        """
        if command.patch.model is not None:
            self._models.check(command.patch.model.handle)
        if command.patch.compaction is not None:
            self.check_compaction(command.patch.compaction)
        if command.patch.tools is not None:
            await self._tools.resolve(command.patch.tools)
        if changes_prompt(command.patch):
            return await self._limits.change(command, self._check_rules)
        return await self._store.update(command.patch, command.request)

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent from all tiers. Repeating it goes on where it stopped.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        await self._store.begin_deletion(agent_id)
        await asyncio.gather(
            self._recall.release(agent_id),
            self._memory.release(agent_id),
            self._archival.release(agent_id),
        )
        await self._store.remove(agent_id)

    async def start_conversation(self, command: CreateConversation) -> Conversation:
        """Starts a conversation. Its window is made first, so that one that is seen has one.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        known = await self._store.known_conversation(command.request)
        if known is not None:
            return known
        agent = await self.get(command.agent_id)
        conversation = Conversation(new_id("conversation"), agent.id, command.title)
        await self._open(agent, conversation.id, None)
        return await self._store.insert_conversation(conversation, command.request)

    async def fork_conversation(self, command: ForkConversation) -> Conversation:
        """Starts a conversation where another was. Its window is made first.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND, MESSAGE_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        known = await self._store.known_conversation(command.request)
        if known is not None:
            return known
        source = await self._store.conversation(command.conversation_id)
        fork = Conversation(new_id("conversation"), source.agent_id, command.title, source.id)
        await self._recall.fork_window(source.id, fork.id, command.until_message_id)
        return await self._store.insert_conversation(fork, command.request)

    def check_compaction(self, settings: CompactionSettings) -> CompactionSettings:
        """Returns settings whose summarizer can be one of the configured models.

        Raises:
            InvalidArgumentError: INVALID_FIELD.
        """
        self._models.check(settings.model, "compaction.model")
        return settings

    async def get(self, agent_id: str) -> Agent:
        """Returns an agent.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        return _visible(await self._store.get(agent_id))

    async def get_by_name(self, name: str) -> Agent:
        """Returns the agent of that name.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        return _visible(await self._store.by_name(name))

    async def inspect(
        self, agent_id: str, conversation_id: str
    ) -> tuple[Agent, Window, ToolSet, BoundModel | None]:
        """Returns what fills a context window of an agent, and the model that it is for.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
        """
        agent = await self._store.load(agent_id, conversation_id)
        window, toolset = await asyncio.gather(
            self._recall.get_window(conversation_id),
            self._tools.resolve(merge_tools(agent.tools, FILE_TOOLS), skip_missing=True),
        )
        offered = toolset.offered(agent.tools, folders=shows_folders(window))
        return agent, window, offered, await self._limits.bound(agent)

    async def _claim(self, command: CreateAgent) -> StoredAgent:
        try:
            return await self._store.insert(command.agent, command.request)
        except AlreadyExistsError as error:
            if error.reason is not Reason.NAME_TAKEN:
                raise
            holder = await self._holder(command.agent.name)
            if holder is not None and self._is_left_over(holder):
                await self.delete(holder.agent.id)
            elif holder is not None and not _same_request(holder, command):
                raise
        return await self._store.insert(command.agent, command.request)

    async def _holder(self, name: str) -> StoredAgent | None:
        try:
            return await self._store.by_name(name)
        except NotFoundError:
            return None

    def _is_left_over(self, stored: StoredAgent) -> bool:
        if stored.state is not AgentState.CREATING:
            return stored.state is AgentState.DELETING
        began = stored.agent.create_time
        return began is not None and self._clock.now() - began > ABANDONED_AFTER

    async def _first_limit(self, stored: StoredAgent, tools: ToolSet) -> PromptLimit | None:
        """Returns how large the memory of a new agent may become.

        Raises:
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED: there is no room for any.
        """
        budget = await self._limits.budget(stored.agent, tools)
        if budget is None:
            return None
        if stored.state is AgentState.CREATING:
            budget.check()
        return budget.limit

    async def _check_rules(self, agent: Agent) -> None:
        """Refuses rules that do not go with the agent's tools.

        Raises:
            InvalidArgumentError: INVALID_FIELD.
        """
        if not agent.tool_rules:
            return
        toolset = await self._tools.resolve(merge_tools(agent.tools, FILE_TOOLS))
        found = tool_violations("tool_rules", agent.tool_rules, toolset, agent.tools)
        if found:
            raise InvalidArgumentError(
                f"The tool rules do not go with the tools: {found[0].field}"
                f" {found[0].description}.",
                violations=found,
            )

    async def _open(self, agent: Agent, conversation_id: str, command: CreateAgent | None) -> None:
        bound = await self._limits.bound(agent)
        numbered = (
            bound is not None
            and bound.settings.endpoint_type is EndpointType.ANTHROPIC
            and agent.type in LINE_NUMBERED_TYPES
        )
        section = await self._memory.compile(agent, line_numbers=numbered)
        stats = ArchivalStats() if command is not None else await self._stats(agent.id)
        text = assemble(agent.system, section.text, self._metadata(agent, section, stats))
        blank = Message(
            id=new_id("message"),
            role=MessageRole.SYSTEM,
            parts=(TextPart(text),),
            conversation_id=conversation_id,
            agent_id=agent.id,
            provenance=(Provenance.SYSTEM,),
        )
        given = command.initial_messages if command is not None else ()
        first = [
            Message(
                id=new_id("message"),
                role=message.role,
                parts=message.parts,
                conversation_id=conversation_id,
                agent_id=agent.id,
                name=message.name,
                client_message_id=message.client_message_id,
                provenance=(Provenance.USER, *message.taint),
            )
            for message in given
        ]
        await self._recall.open_window(conversation_id, agent.id, [blank, *first])

    async def _stats(self, agent_id: str) -> ArchivalStats:
        try:
            return await self._archival.stats(agent_id)
        except StrataError as error:
            _log.warning("archival counts are not to be had", error=repr(error))
            return ArchivalStats()

    def _metadata(self, agent: Agent, section: MemorySection, stats: ArchivalStats) -> Metadata:
        return Metadata(self._clock.now(), agent.timezone, section.last_modified, 0, stats)

    async def _undo(self, agent_id: str) -> None:
        try:
            await self.delete(agent_id)
        except StrataError as error:
            # The row says "deleting" or "creating"; whoever wants the name next clears it.
            _log.warning("a failed creation is left over", agent_id=agent_id, error=repr(error))


def _visible(stored: StoredAgent) -> Agent:
    if stored.state is not AgentState.ACTIVE:
        raise _not_found(stored.agent.id)
    return stored.agent


def _not_found(agent_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no agent {agent_id}.", reason=Reason.AGENT_NOT_FOUND, metadata={"id": agent_id}
    )


def _same_request(stored: StoredAgent, command: CreateAgent) -> bool:
    return bool(command.request.id) and stored.request_id == command.request.id
