"""The use cases of core memory, over a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from strata.core_memory.domain.block_edits.agent_edits import apply_verb
from strata.core_memory.domain.block_edits.base_revisions import is_outdated, text_at
from strata.core_memory.domain.blocks import (
    DELETE,
    Authorship,
    Block,
    agent_not_found,
    block_not_found,
    check_limit,
    check_revision,
    deleted_block,
    made_block,
    next_revision,
)
from strata.core_memory.domain.commands import (
    Actor,
    Attachment,
    Change,
    CreateBlock,
    DeleteBlock,
    EditBlock,
    Edited,
    GetBlock,
    LimitPrompt,
    PrepareAgent,
    ReleaseAgent,
    Released,
    RevertBlock,
    ShareBlocks,
    UpdateBlock,
    Updated,
)
from strata.core_memory.domain.ports import BlockStore, Unit
from strata.core_memory.domain.prompt.limits import PromptLimit, check_change
from strata.core_memory.domain.text_edits.edited_text import merge_value
from strata.core_memory.domain.text_edits.messages import label_taken, unknown_label
from strata.core_memory.domain.versions.reverts import revert
from strata.shared.clock import Clock
from strata.shared.idempotency.keys import RequestKey
from strata.shared.metadata_pairs import merge_metadata

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Receipt(Generic[ResultT]):
    """A request that runs once, and the encoder of the response that repetitions get."""

    request: RequestKey
    encode: Callable[[ResultT], bytes]


class CoreMemory:
    """The use cases of blocks. Each mutation is one transaction and runs once per request id."""

    def __init__(self, store: BlockStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, command: CreateBlock, receipt: Receipt[Block]) -> Block:
        """Makes a block.

        Raises:
            FailedPreconditionError: The text is longer than the limit.
            AlreadyExistsError: The agent has a block of that label.
            ReplayedError: The request was done before.
        """
        agents = (command.agent_id,) if command.agent_id else ()
        block = made_block(command.block, agents, self._clock.now())

        async def work(unit: Unit) -> Block:
            await unit.check_request()
            await unit.insert(
                block,
                _authorship("create", command.actor, block.create_time),
                agent_id=command.agent_id,
                made_for="",
                response=receipt.encode(block),
            )
            return block

        return await self._store.mutate(receipt.request, work)

    async def get(self, query: GetBlock) -> Block:
        """Returns a block, now or as it was.

        Raises:
            NotFoundError: There is no such block, or there was none at that time.
        """
        if not query.block_id:
            return await self._labelled(query)
        block: Block | None
        if query.as_of is None:
            block = await self._store.block(query.block_id)
        else:
            block = await self._store.block_as_of(query.block_id, query.as_of)
        if block is None or block.delete_time is not None:
            raise block_not_found(query.block_id)
        return block

    async def _labelled(self, query: GetBlock) -> Block:
        if query.as_of is None:
            labelled = await self._store.labelled(query.agent_id, query.label)
            block, labels = labelled.block, labelled.labels
            if block is None and query.detached:
                block = await self._store.last_labelled(query.agent_id, query.label)
        else:
            memory = await self._store.agent_memory_as_of(query.agent_id, query.as_of)
            labels = tuple(block.label for block in memory.blocks)
            block = next((block for block in memory.blocks if block.label == query.label), None)
        if block is None:
            raise unknown_label(query.label, labels)
        return block

    async def of_agent(self, agent_id: str) -> Sequence[Block]:
        """Returns the blocks of an agent in order of attachment.

        Raises:
            NotFoundError: There is no such agent.
        """
        if not await self._store.knows_agent(agent_id):
            raise agent_not_found(agent_id)
        return (await self._store.agent_memory(agent_id, "")).blocks

    async def update(self, command: UpdateBlock, receipt: Receipt[Updated]) -> Updated:
        """Changes a block through the API, read-only or not. Stores nothing if nothing changes.

        Raises:
            NotFoundError: There is no such block.
            AbortedError: It is not at the expected revision, or others changed the same text
                since the revision that the new text was written against.
            FailedPreconditionError: The text would be longer than the limit.
            InvalidArgumentError: It would have too many metadata pairs.
            AlreadyExistsError: One of its agents has another block of the new label.
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> Updated:
            block = await self._locked(unit, command.block_id)
            check_revision(block, command.expected_revision)
            changed, merged = _changed(block, command), False
            if command.value is not None and is_outdated(block, command.base_revision):
                base = await text_at(unit, block, command.base_revision)
                changed = replace(changed, value=merge_value(block, base, command.value))
                merged = base != block.value
            if _clears_taint(block, changed, command, merged=merged):
                changed = replace(changed, taint=())
            check_limit(changed.label, changed.value, changed.limit)
            if changed == block:
                updated = Updated(block)
                await unit.finish(receipt.encode(updated))
                return updated
            updated = Updated(next_revision(changed, self._clock.now()), merged)
            authorship = _authorship("update", command.actor, updated.block.update_time)
            if merged:
                authorship = replace(authorship, base_revision=command.base_revision)
            await unit.update(updated.block, authorship, response=receipt.encode(updated))
            return updated

        return await self._store.mutate(receipt.request, work)

    async def delete(self, command: DeleteBlock, receipt: Receipt[None]) -> None:
        """Deletes a block: detaches it from every agent and hides it. Its history stays.

        A purge also destroys the history, even of a block that was deleted before.

        Raises:
            NotFoundError: There is no such block.
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> None:
            if command.purge:
                await unit.check_request()
                if not await unit.purge(command.block_id):
                    raise block_not_found(command.block_id)
                await unit.finish(receipt.encode(None))
                return
            block = deleted_block(await self._locked(unit, command.block_id), self._clock.now())
            authorship = _authorship(DELETE, command.actor, block.update_time)
            await unit.update(block, authorship, response=receipt.encode(None))

        await self._store.mutate(receipt.request, work)

    async def attach(self, command: Attachment, receipt: Receipt[Block]) -> Block:
        """Attaches a block to an agent; does nothing if it is attached already.

        Raises:
            NotFoundError: There is no such block.
            AlreadyExistsError: The agent has another block of that label.
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> Block:
            block = await self._locked(unit, command.block_id)
            if command.agent_id not in block.agent_ids:
                await unit.attach(command.agent_id, {block.id: block.label}, self._clock.now())
                block = replace(block, agent_ids=(*block.agent_ids, command.agent_id))
            await unit.finish(receipt.encode(block))
            return block

        return await self._store.mutate(receipt.request, work)

    async def share(self, command: ShareBlocks) -> None:
        """Attaches each of the blocks to each of the agents, or changes nothing.

        Raises:
            NotFoundError: One of the blocks or agents does not exist.
            AlreadyExistsError: An agent has another block of one of the labels.
            FailedPreconditionError: The memory of an agent would be too large for its prompt.
        """

        async def work(unit: Unit) -> None:
            now = self._clock.now()
            # Locked in order of id, so that two calls cannot deadlock.
            blocks = [await self._locked(unit, block_id) for block_id in sorted(command.block_ids)]
            for agent_id in sorted(command.agent_ids):
                if not await unit.knows_agent(agent_id):
                    raise agent_not_found(agent_id)
                missing = [block for block in blocks if agent_id not in block.agent_ids]
                if missing:
                    await unit.attach(agent_id, {block.id: block.label for block in missing}, now)

        await self._store.mutate(RequestKey(), work)

    async def detach(self, command: Attachment, receipt: Receipt[None]) -> None:
        """Detaches a block from an agent; does nothing if it is not attached.

        Raises:
            NotFoundError: There is no such block or agent.
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> None:
            await self._locked(unit, command.block_id)
            now = self._clock.now()
            detached = await unit.detach(command.agent_id, command.block_id, now)
            if not detached and not await unit.knows_agent(command.agent_id):
                raise agent_not_found(command.agent_id)
            await unit.finish(receipt.encode(None))

        await self._store.mutate(receipt.request, work)

    async def edit(self, command: EditBlock, receipt: Receipt[Edited]) -> Edited:
        """Applies a memory operation with all its checks; see `apply_verb`.

        Raises:
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> Edited:
            return await apply_verb(unit, command, self._clock.now(), receipt.encode)

        return await self._store.mutate(receipt.request, work)

    async def revert(
        self, command: RevertBlock, receipt: Receipt[tuple[Change, ...]]
    ) -> tuple[Change, ...]:
        """Undoes edits; see `reverts.revert`.

        Raises:
            ReplayedError: The request was done before.
        """

        async def work(unit: Unit) -> tuple[Change, ...]:
            return await revert(unit, command, self._clock.now(), receipt.encode)

        return await self._store.mutate(receipt.request, work)

    async def prepare_agent(self, command: PrepareAgent) -> Sequence[Block]:
        """Creates and attaches the first blocks of an agent; does nothing the second time.

        Returns:
            All blocks of the agent, in order of attachment.

        Raises:
            NotFoundError: One of the existing blocks, or the agent that it follows, does not exist.
            AlreadyExistsError: Two blocks have the same label.
            FailedPreconditionError: A text is longer than its limit, or all of them together
                are larger than the limit of the prompt.
        """
        now, agents = self._clock.now(), (command.agent_id,)
        blocks = [made_block(new, agents, now) for new in command.new_blocks]

        async def work(unit: Unit) -> Sequence[Block]:
            limit, revision = command.limit, command.agent_revision
            if not await unit.begin_agent(command.agent_id, limit, revision):
                return await unit.attached(command.agent_id)
            labels = await self._labels(unit, blocks, command.block_ids)
            if blocks:
                authorship = _authorship("create", command.actor, now)
                await unit.insert_all(blocks, authorship, made_for=command.agent_id)
            if labels:
                await unit.attach(command.agent_id, labels, now)
            followed = command.follows_agent_id
            if followed and not await unit.follow(command.agent_id, followed, now):
                raise agent_not_found(followed)
            return await unit.attached(command.agent_id)

        return await self._store.mutate(RequestKey(), work)

    async def limit_prompt(self, command: LimitPrompt) -> PromptLimit:
        """Sets the maximum size of an agent's memory; returns the previous limit.

        Without `only_raise` the limit is set regardless of the size, unless the limit of a
        later revision of the agent is already set.

        Raises:
            NotFoundError: There is no such agent.
            FailedPreconditionError: With `only_raise`, the memory exceeds the new limit by
                more than the old one (``CONTEXT_WINDOW_EXCEEDED``).
        """
        agent_id, limit = command.agent_id, command.limit

        async def work(unit: Unit) -> PromptLimit:
            before = await unit.lock_prompt(agent_id)
            if before is None:
                raise agent_not_found(agent_id)
            if not command.only_raise:
                await unit.set_prompt(agent_id, limit, command.agent_revision)
                return before
            check_change(agent_id, await unit.prompt_size(agent_id), before, limit)
            raised = before.raised_to(limit)
            if raised != before:
                await unit.raise_prompt(agent_id, raised)
            return before

        return await self._store.mutate(RequestKey(), work)

    async def release_agent(self, command: ReleaseAgent) -> Released:
        """Detaches an agent's blocks; deletes those made for it that no other agent has."""

        async def work(unit: Unit) -> Released:
            now = self._clock.now()
            had = await unit.detach_all(command.agent_id, now)
            deleted_blocks = [
                deleted_block(block, now) for block in await unit.made_for(command.agent_id)
            ]
            if deleted_blocks:
                changes = [
                    (block, _authorship(DELETE, command.actor, block.update_time))
                    for block in deleted_blocks
                ]
                await unit.update_all(changes, response=b"")
            return Released(len(deleted_blocks), len(had - {block.id for block in deleted_blocks}))

        return await self._store.mutate(RequestKey(), work)

    async def _labels(
        self, unit: Unit, blocks: Sequence[Block], block_ids: Sequence[str]
    ) -> dict[str, str]:
        """Returns the labels of an agent's first blocks by id, in order; raises on duplicates."""
        labels = {block.id: block.label for block in blocks}
        existing = await unit.labels(block_ids) if block_ids else {}
        for block_id in block_ids:
            if block_id not in existing:
                raise block_not_found(block_id)
            labels[block_id] = existing[block_id]
        seen: set[str] = set()
        for label in labels.values():
            if label in seen:
                raise label_taken(label)
            seen.add(label)
        return labels

    async def _locked(self, unit: Unit, block_id: str) -> Block:
        block = await unit.lock_block(block_id)
        if block is None:
            raise block_not_found(block_id)
        return block


def _authorship(operation: str, actor: Actor, time: datetime) -> Authorship:
    return Authorship(operation, actor.origin, actor.principal, time)


def _clears_taint(block: Block, changed: Block, command: UpdateBlock, *, merged: bool) -> bool:
    """Returns whether a change removes the taint of the block: see `domain.taint`.

    A new value counts as written by a person, unless it was merged with changes of others or
    set by an agent's run through the API.
    """
    rewritten = command.value is not None and changed.value != block.value and not merged
    return command.clear_taint or (rewritten and not command.actor.origin.run_id)


def _changed(block: Block, command: UpdateBlock) -> Block:
    return replace(
        block,
        label=block.label if command.label is None else command.label,
        value=block.value if command.value is None else command.value,
        description=block.description if command.description is None else command.description,
        limit=block.limit if command.limit is None else command.limit,
        read_only=block.read_only if command.read_only is None else command.read_only,
        metadata=merge_metadata(block.metadata, command.metadata or {}),
    )
