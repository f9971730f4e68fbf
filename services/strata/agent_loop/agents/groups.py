"""Creates and changes groups; their shared blocks are attached in core memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strata.agent_loop.domain.agent.agents import revision_mismatch
from strata.agent_loop.domain.agent.groups import CreateGroup, Group, GroupStore, UpdateGroup
from strata.agent_loop.loop.failures import ends_run
from strata.protocol.errors import StrataError
from strata.shared.idempotency.request_table import answered_or


class SharedMemory(Protocol):
    """The part of core memory that groups use."""

    async def share(self, agent_ids: Sequence[str], block_ids: Sequence[str]) -> None:
        """Attaches each of the blocks to each of the agents, all or none; repeating is success.

        Raises:
            NotFoundError: BLOCK_NOT_FOUND, AGENT_NOT_FOUND.
            AlreadyExistsError: NAME_TAKEN.
            FailedPreconditionError: CONTEXT_WINDOW_EXCEEDED.
        """
        ...


class GroupLifecycle:
    """Implements the operations of `GroupService`.

    Args:
        store: Stores the groups.
        memory: Core memory.
    """

    def __init__(self, store: GroupStore, memory: SharedMemory) -> None:
        self._store = store
        self._memory = memory

    async def create(self, command: CreateGroup) -> Group:
        """Creates a group completely or not at all.

        After a transient error, a repetition with the same request id continues the creation.
        After any other error the group is removed.

        Raises: as `GroupStore.insert` and `SharedMemory.share`.
        """
        group = await self._store.insert(command)
        if group.active:
            return group
        try:
            await self._share(group, group.shared_block_ids)
        except StrataError as error:
            if ends_run(error) or not command.request.id:
                await self._store.delete(group.id)
            raise
        return await self._store.activate(group.id)

    async def update(self, command: UpdateGroup) -> Group:
        """Changes a group.

        Raises: as `GroupStore.update` and `SharedMemory.share`.
        """
        stored_group = await self._store.known_group(command.request)
        if stored_group is not None:
            return stored_group
        return await answered_or(
            self._update(command), lambda: self._store.known_group(command.request)
        )

    async def _update(self, command: UpdateGroup) -> Group:
        group = await self._store.get(command.group_id)
        expected = command.expected_revision
        if expected and group.revision != expected:
            raise revision_mismatch("group", group.revision, expected)
        block_ids = command.shared_block_ids
        if block_ids is None:
            block_ids = group.shared_block_ids
        changed = (command.shared_block_ids, command.agent_ids, command.manager)
        if block_ids and any(part is not None for part in changed):
            # Attached before the update is visible; attaching them again changes nothing.
            manager, agent_ids = await self._store.check(command)
            await self._attach([*agent_ids, manager.manager_agent_id], block_ids)
        return await self._store.update(command, group.revision)

    async def _share(self, group: Group, block_ids: Sequence[str]) -> None:
        members = [member.agent_id for member in group.members]
        await self._attach([*members, group.manager.manager_agent_id], block_ids)

    async def _attach(self, agent_ids: Sequence[str], block_ids: Sequence[str]) -> None:
        if block_ids:
            await self._memory.share([agent_id for agent_id in agent_ids if agent_id], block_ids)
