"""Creates, changes and deletes agents and conversations across the services.

There are no transactions over several services. Each action is a sequence of calls that can be
repeated from its start, and its start is recorded: an agent in creation or deletion has a row that
is not visible to clients. A later call for the same agent or name finishes or removes it; without
such a call the gateway has it removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from strata.agent_loop.agents.first_messages import first_messages
from strata.agent_loop.agents.memory_agents import (
    PERSONA,
    PERSONA_DESCRIPTION,
    PERSONA_LABEL,
    changed_buffer,
    check_frequency_is_used,
    creation_of_memory_agent,
    frequency_of,
    has_no_frequency,
    keeps_memory_agent,
    memory_agent_for,
    needs_no_memory_agent,
)
from strata.agent_loop.agents.ports import (
    LifecycleArchival,
    LifecycleMemory,
    LifecycleRecall,
    ModelCatalog,
)
from strata.agent_loop.agents.prompt_limits import PromptLimits
from strata.agent_loop.context.archival_counts import read_counts
from strata.agent_loop.context.memory_view import memory_view
from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentState,
    CompactionSettings,
    Conversation,
    StoredAgent,
    apply_patch,
    changes_prompt,
    external_id_taken,
    merge_tools,
)
from strata.agent_loop.domain.agent.commands import (
    CreateAgent,
    CreateConversation,
    ForkConversation,
    UpdateAgent,
)
from strata.agent_loop.domain.agent.store import AgentStore
from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import TextPart
from strata.agent_loop.domain.model.keys import ModelKeyStore, SealedKey
from strata.agent_loop.domain.model.quirks import NO_QUIRKS
from strata.agent_loop.domain.ports import ArchivalStats, MemorySection, PromptLimit, Tools
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.failures import ends_run
from strata.agent_loop.models.tokens import TokenEstimator
from strata.agent_loop.prompts.system_message import Metadata, archival_lines, assemble
from strata.agent_loop.rules.validation import tool_violations
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FieldViolation,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
)
from strata.shared.agent_types import MEMORY_AGENT_TYPES
from strata.shared.clock import Clock
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.logs import get_logger
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance
from strata.shared.tool_catalogue import FILE_TOOLS

# Longer than a creation can take, plus the clock skew between two replicas.
ABANDONED_AFTER = timedelta(minutes=3)
"""A creation that was not continued for this time counts as abandoned; its name is free again."""

# Concurrent calls that enable a memory agent and fail can remove each other's memory agent.
_CREATION_TRIES = 5

_log = get_logger(__name__)


class AgentLifecycle:
    """Implements the operations of `AgentService`.

    Args:
        store: Stores the agents.
        memory: Core memory.
        recall: Recall memory.
        archival: Archival memory.
        tools: The tools.
        models: The models.
        tokens: Estimates tokens from bytes.
        clock: The clock.
        keys: Stores the project's model keys.
    """

    def __init__(
        self,
        store: AgentStore,
        memory: LifecycleMemory,
        recall: LifecycleRecall,
        archival: LifecycleArchival,
        tools: Tools,
        *,
        models: ModelCatalog,
        tokens: TokenEstimator,
        clock: Clock,
        keys: ModelKeyStore,
    ) -> None:
        self._store = store
        self._keys = keys
        self._memory = memory
        self._recall = recall
        self._archival = archival
        self._tools = tools
        self._models = models
        self._clock = clock
        self._limits = PromptLimits(store, memory, tools, models, tokens, clock)

    async def create(self, command: CreateAgent) -> tuple[Agent, Sequence[Any]]:
        """Creates an agent completely or not at all; returns it with its blocks.

        After a transient error (a service cannot be reached), a repetition with the same request
        id continues the creation. After any other error everything is removed.

        Raises:
            InvalidArgumentError: INVALID_FIELD: the tool rules do not match the tools.
            NotFoundError: BLOCK_NOT_FOUND, TOOL_NOT_FOUND.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
            FailedPreconditionError: BLOCK_LIMIT_EXCEEDED; CONTEXT_WINDOW_EXCEEDED if system
                prompt, tools and blocks are too large for the model.
        """
        handles = command.agent.model.handles
        for field, handle in handles.items():
            self._models.check(handle, field)
        self.check_compaction(command.agent.compaction)
        if any(handles.values()):
            await self._check_listed(handles, await self._keys.of_project())
        tools = await self._tools.resolve(command.agent.tools)
        await self._check_rules(command.agent)
        stored = await self._claim(command)
        agent = stored.agent
        if stored.state is AgentState.DELETING:
            raise _not_found(agent.id)
        try:
            limit = await self._first_limit(stored, tools)
            # Both are awaited even if one fails: a late write could follow the removal.
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
            memory_agent_id = ""
            if command.enable_sleeptime:
                memory_agent_id = await self._make_memory_agent(agent)
            await self._open(agent, agent.default_conversation_id, command)
            return await self._store.activate(agent.id, memory_agent_id), blocks
        except StrataError as error:
            fresh = stored.state is AgentState.CREATING
            if fresh and (ends_run(error) or not command.request.id):
                await self._undo(agent.id)
            raise

    async def update(self, command: UpdateAgent) -> Agent:
        """Changes an agent.

        Raises:
            InvalidArgumentError: INVALID_FIELD: the tool rules do not match the tools, or the
                type of the agent does not allow the change.
            NotFoundError: AGENT_NOT_FOUND, TOOL_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: NAME_TAKEN, REQUEST_ID_REUSED.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED: system prompt, tools and blocks
                would be too large for the model.
        """
        if command.patch.model is not None:
            handles = command.patch.model.handles
            for field, handle in handles.items():
                self._models.check(handle, field)
            agent_id = command.patch.agent_id
            # Loaded with its keys, to ask the provider.
            before = await self._store.load(agent_id, default_conversation_id(agent_id))
            handles_before = set(before.model.handles.values())
            new = {
                field: handle for field, handle in handles.items() if handle not in handles_before
            }
            await self._check_listed(new, before.model_keys)
        if command.patch.compaction is not None:
            self.check_compaction(command.patch.compaction)
        if command.patch.tools is not None:
            await self._tools.resolve(command.patch.tools)
        if command.patch.message_buffer_autoclear is False:
            await self._check_autoclear(command.patch.agent_id)
        command = await self._with_buffer(command)
        if command.patch.enable_sleeptime is None:
            if command.patch.sleeptime_frequency is not None:
                check_frequency_is_used(await self.get(command.patch.agent_id))
            return await self._change(command)
        return await self._change_sleeptime(command)

    async def _change(self, command: UpdateAgent) -> Agent:
        if changes_prompt(command.patch):
            return await self._limits.change(command, self._check_rules)
        return await self._store.update(command.patch, command.request)

    async def _check_autoclear(self, agent_id: str) -> None:
        agent = await self.get(agent_id)
        if AGENT_TYPES[agent.type].autoclears:
            problem = f"must be true for an agent of the type {agent.type}"
            raise InvalidArgumentError(
                f"message_buffer_autoclear {problem}.",
                violations=[FieldViolation("message_buffer_autoclear", problem)],
            )

    async def _with_buffer(self, command: UpdateAgent) -> UpdateAgent:
        patch = command.patch
        if patch.max_buffer is None and patch.min_buffer is None:
            return command
        agent = await self.get(patch.agent_id)
        return replace(command, patch=replace(patch, buffer=changed_buffer(agent, patch)))

    async def _change_sleeptime(self, command: UpdateAgent) -> Agent:
        """Changes an agent, and creates or removes its memory agent.

        A repetition finishes a change that was interrupted. Concurrent calls create one memory
        agent, with the settings of the last call.
        """
        patch, agent_id = command.patch, command.patch.agent_id
        agent = await self.get(agent_id)
        if not patch.enable_sleeptime:
            if AGENT_TYPES[agent.type].needs_sleeptime:
                raise keeps_memory_agent(agent.type)
            patch = replace(patch, memory_agent_id="", sleeptime_frequency=0)
            changed = await self._change(replace(command, patch=patch))
            await self._clear_memory_agent(agent_id)
            return changed
        for _ in range(_CREATION_TRIES):
            agent = await self.get(agent_id)
            if agent.type in MEMORY_AGENT_TYPES:
                raise needs_no_memory_agent(agent.type)
            if patch.sleeptime_frequency is not None and AGENT_TYPES[agent.type].buffered:
                raise has_no_frequency(agent.type)
            if agent.memory_agent_id:
                return await self._change(command)
            await self._clear_memory_agent(agent_id)
            enabled = await self._enable_sleeptime(agent, command)
            if enabled is not None:
                return enabled
        raise AbortedError(
            f"Other calls keep changing the memory agent of agent {agent_id}: try again."
        )

    async def _enable_sleeptime(self, agent: Agent, command: UpdateAgent) -> Agent | None:
        """Creates a memory agent for an agent and changes the agent.

        Returns:
            The agent; None if a concurrent call failed and removed the memory agent.
        """
        # The memory agent gets the model that the change sets.
        creation = await self._claim_memory_agent(apply_patch(agent, command.patch))
        memory_agent = creation.agent
        patch = replace(
            command.patch,
            memory_agent_id=memory_agent.id,
            sleeptime_frequency=frequency_of(agent.type, command.patch.sleeptime_frequency or 0),
        )
        try:
            if creation.state is AgentState.CREATING:
                await self._prepare_memory_agent(creation)
            return await self._change(replace(command, patch=patch))
        except StrataError as error:
            if isinstance(error, NotFoundError) and memory_agent.id in error.metadata.values():
                # Removes the data that was prepared after the concurrent removal.
                await self._release(memory_agent.id)
                return None
            if ends_run(error) or not command.request.id:
                await self._abandon(memory_agent)
            raise

    async def _abandon(self, agent: Agent) -> None:
        """Removes a memory agent that could not be created, unless another call continues it."""
        try:
            if await self._store.abandon_creation(agent.id, agent.revision):
                await self.delete(agent.id)
        except StrataError as error:
            # The next call that enables a memory agent continues its creation.
            _log.warning(
                "a failed memory agent was not removed", agent_id=agent.id, error=repr(error)
            )

    async def _clear_memory_agent(self, agent_id: str) -> None:
        """Finishes the deletion of a memory agent that was removed from its agent."""
        memory_agent = await self._store.memory_agent_of(agent_id)
        if memory_agent is not None and memory_agent.state is AgentState.DELETING:
            # Another call may finish the deletion first.
            with suppress(NotFoundError):
                await self.delete(memory_agent.agent.id)

    async def _make_memory_agent(self, tended: Agent) -> str:
        """Creates the memory agent of an agent; it becomes visible together with its agent.

        A repetition continues an interrupted creation.

        Returns:
            Id of the memory agent.

        Raises:
            AlreadyExistsError: NAME_TAKEN by an agent that is not its memory agent.
        """
        creation = await self._claim_memory_agent(tended)
        await self._prepare_memory_agent(creation)
        return creation.agent.id

    async def _claim_memory_agent(self, tended: Agent) -> StoredAgent:
        """Returns the memory agent of an agent: a new one, or an earlier one in creation.

        An earlier one gets the settings that a new one would have.
        """
        memory_agent = memory_agent_for(tended)
        request = creation_of_memory_agent(tended.id)
        stored = await self._claim(CreateAgent(memory_agent, (), (), (), request))
        if stored.agent.id == memory_agent.id or stored.state is not AgentState.CREATING:
            return stored
        renewed = await self._store.renew_creation(replace(memory_agent, id=stored.agent.id))
        return stored if renewed is None else replace(stored, agent=renewed)

    async def _prepare_memory_agent(self, creation: StoredAgent) -> None:
        agent = creation.agent
        persona = block_pb.NewBlock(
            label=PERSONA_LABEL, description=PERSONA_DESCRIPTION, value=PERSONA
        )
        limit = await self._first_limit(creation, await self._tools.resolve(agent.tools))
        await self._memory.prepare(agent, (persona,), (), limit)
        if agent.revision > 1:
            # It was prepared with its earlier settings.
            await self._memory.raise_limit(agent.id, limit)
            await self._memory.set_limit(agent.id, limit, agent.revision)
        await self._archival.prepare(agent.id)
        command = CreateAgent(agent, (), (), (), creation_of_memory_agent(agent.tends_agent_id))
        await self._open(agent, agent.default_conversation_id, command)

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent and its memory agent from all services.

        A repetition continues an interrupted deletion.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
        """
        hidden = await self._store.begin_deletion(agent_id)
        # The memory agent first, since it shares the blocks of the agent.
        for hidden_id in sorted(hidden, key=lambda id_: id_ == agent_id):
            await self._release(hidden_id)
        await self._store.remove(hidden)

    async def remove_unfinished(self) -> None:
        """Removes agents whose creation was abandoned, or whose deletion was interrupted.

        Raises:
            StrataError: Some are left; a repetition removes these.
        """
        for agent_id in await self._store.hide_unfinished(ABANDONED_AFTER):
            # Another call, or the deletion of its agent, may remove it first.
            with suppress(NotFoundError):
                await self.delete(agent_id)

    async def _release(self, agent_id: str) -> None:
        await asyncio.gather(
            self._recall.release(agent_id),
            self._memory.release(agent_id),
            self._archival.release(agent_id),
        )

    async def start_conversation(self, command: CreateConversation) -> Conversation:
        """Starts a conversation. Its window is created first: every visible conversation has one.

        Raises:
            NotFoundError: AGENT_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED; NAME_TAKEN: the agent has a conversation with
                the same external id.
        """
        existing = await self._store.known_conversation(command.request)
        if existing is not None:
            return existing
        agent = await self.get(command.agent_id)
        if command.external_id and await self._is_taken(agent.id, command.external_id):
            # Noticed before a window is created that would belong to no conversation.
            existing = await self._store.known_conversation(command.request)
            if existing is None:
                raise external_id_taken(command.external_id)
            return existing
        conversation = Conversation(
            new_id("conversation"), agent.id, command.title, external_id=command.external_id
        )
        await self._open(agent, conversation.id, None)
        return await self._store.insert_conversation(conversation, command.request)

    async def _is_taken(self, agent_id: str, external_id: str) -> bool:
        try:
            await self._store.external_conversation(agent_id, external_id)
        except NotFoundError:
            return False
        return True

    async def fork_conversation(self, command: ForkConversation) -> Conversation:
        """Starts a conversation with a copy of another one's window, which is created first.

        Raises:
            NotFoundError: CONVERSATION_NOT_FOUND, MESSAGE_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        existing = await self._store.known_conversation(command.request)
        if existing is not None:
            return existing
        source = await self._store.conversation(command.conversation_id)
        fork = Conversation(new_id("conversation"), source.agent_id, command.title, source.id)
        await self._recall.fork_window(source.id, fork.id, command.until_message_id)
        return await self._store.insert_conversation(fork, command.request)

    async def _check_listed(self, handles: Mapping[str, str], keys: Sequence[SealedKey]) -> None:
        checks = (
            self._models.check_listed(handle, keys, field) for field, handle in handles.items()
        )
        await asyncio.gather(*checks)

    def check_compaction(self, settings: CompactionSettings) -> CompactionSettings:
        """Checks that the summarizer can be a configured model; returns the settings.

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
        """Returns the memory limit of a new agent.

        Raises:
            InvalidArgumentError: INVALID_FIELD: the limits of open files do not fit the window.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED: there is no space for memory.
        """
        budget = await self._limits.budget(stored.agent, tools)
        if budget is None:
            return None
        if stored.state is AgentState.CREATING:
            budget.check()
            budget.check_file_limits(stored.agent)
        return budget.limit

    async def _check_rules(self, agent: Agent) -> None:
        """Refuses tool rules that do not match the agent's tools.

        Raises:
            InvalidArgumentError: INVALID_FIELD.
        """
        if not agent.tool_rules:
            return
        toolset = await self._tools.resolve(merge_tools(agent.tools, FILE_TOOLS))
        own = toolset.offered(agent.tools, folders=False).names
        violations = tool_violations("tool_rules", agent.tool_rules, toolset, own)
        if violations:
            raise InvalidArgumentError(
                f"The tool rules do not match the tools: {violations[0].field}"
                f" {violations[0].description}.",
                violations=violations,
            )

    async def _open(self, agent: Agent, conversation_id: str, command: CreateAgent | None) -> None:
        bound = await self._limits.bound(agent)
        section = await self._memory.compile(agent, memory_view(agent, bound))
        stats = None if command is not None else await read_counts(self._archival, agent.id)
        text = assemble(
            agent.system, section.text, self._metadata(agent, section, stats or ArchivalStats())
        )
        blank = Message(
            id=new_id("message"),
            role=MessageRole.SYSTEM,
            parts=(TextPart(text),),
            conversation_id=conversation_id,
            agent_id=agent.id,
            provenance=(Provenance.SYSTEM,),
        )
        if command is not None and command.initial_messages is None:
            quirks = bound.settings.quirks if bound is not None else NO_QUIRKS
            boot = first_messages(agent, conversation_id, self._clock.now(), quirks)
            await self._recall.open_window(conversation_id, agent.id, [blank, *boot])
            return
        inputs = (command.initial_messages if command is not None else None) or ()
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
            for message in inputs
        ]
        await self._recall.open_window(conversation_id, agent.id, [blank, *first])

    def _metadata(self, agent: Agent, section: MemorySection, stats: ArchivalStats) -> Metadata:
        archival = archival_lines(stats, section.block_revisions)
        return Metadata(self._clock.now(), agent.timezone, section.last_modified, 0, archival)

    async def _undo(self, agent_id: str) -> None:
        try:
            await self.delete(agent_id)
        except StrataError as error:
            # The row stays in creation or deletion; the next creation with the name removes it.
            _log.warning("a failed creation was not removed", agent_id=agent_id, error=repr(error))


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
