"""Transactions on blocks in PostgreSQL, and the errors that its constraints mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from strata.core_memory.domain.blocks import (
    Authorship,
    Block,
    EditSelection,
    Version,
    agent_not_found,
)
from strata.core_memory.domain.ports import LabelledBlock, ReplayedError
from strata.core_memory.domain.prompt.limits import (
    NO_LIMIT,
    PromptLimit,
    PromptSize,
    memory_too_large,
)
from strata.core_memory.domain.text_edits.messages import label_taken
from strata.core_memory.files.store.rows import to_prompt_limit
from strata.core_memory.request_table import REQUESTS
from strata.core_memory.store.queries import edits_parameters, edits_statement
from strata.core_memory.store.rows import records, to_block, to_version
from strata.core_memory.store.statements import (
    ATTACH,
    ATTACHED,
    BEGIN_AGENT,
    DETACH,
    DETACH_ALL,
    FOLLOW,
    INSERT,
    INSERT_ALL,
    KNOWN_AGENT,
    LABELS,
    LOCK_BLOCK,
    LOCK_BLOCKS,
    LOCK_FOLLOWED,
    LOCK_LABELLED,
    LOCK_MADE_FOR,
    LOCK_PROMPT,
    MADE_FOR,
    PROMPT_SIZE,
    PURGE,
    RAISE_PROMPT,
    REVERTS,
    SET_PROMPT,
    UPDATE,
    VALUE_AT,
    VERSIONS_AT,
)
from strata.shared.context import current_project
from strata.shared.db import DatabaseConnection, SqlStatement, StatementResult
from strata.shared.idempotency.keys import RequestKey
from strata.shared.idempotency.request_table import ANY_SUBJECT, LostRaceError


class PostgresUnit:
    """One transaction over the blocks of the calling project; see `domain.ports.Unit`."""

    def __init__(self, connection: DatabaseConnection, request: RequestKey) -> None:
        self._connection = connection
        self._request = request
        self._project = current_project()

    async def check_request(self) -> None:
        """Raises `ReplayedError` if the request was done before."""
        response = await REQUESTS.find(self._connection, self._request)
        if response is not None:
            raise ReplayedError(response)

    async def lock_block(self, block_id: str) -> Block | None:
        """Returns the newest state of a block and locks it until the transaction ends."""
        result = await self._run(LOCK_BLOCK, request=self._request.id, block=block_id)
        row = result.one()
        self._replay(row)
        return None if row.id is None else to_block(row)

    async def lock_blocks(self, block_ids: Sequence[str]) -> dict[str, Block]:
        """Locks several blocks as `lock_block` does, including deleted ones; returns them by id."""
        result = await self._run(LOCK_BLOCKS, request=self._request.id, ids=list(block_ids))
        rows = result.all()
        self._replay(rows[0])
        return {row.id: to_block(row) for row in rows if row.id is not None}

    async def lock_labelled(self, agent_id: str, label: str) -> LabelledBlock:
        """Locks the agent's block of a label as `lock_block` does."""
        blocks, labels = await self.lock_all(agent_id, [label])
        return LabelledBlock(blocks.get(label), labels)

    async def lock_all(
        self, agent_id: str, labels: Sequence[str]
    ) -> tuple[dict[str, Block], tuple[str, ...]]:
        """Locks the agent's blocks of some labels as `lock_block` does; returns them by label."""
        result = await self._run(
            LOCK_LABELLED, request=self._request.id, agent=agent_id, labels=list(labels)
        )
        rows = result.all()
        self._replay(rows[0])
        blocks = [to_block(row) for row in rows if row.id is not None]
        return {block.label: block for block in blocks}, tuple(rows[0].labels)

    async def value_at(self, block_id: str, revision: int) -> str | None:
        """Returns the text of a block at a revision; None if there is none."""
        row = (await self._run(VALUE_AT, block=block_id, revision=revision)).first()
        return None if row is None else row.value

    async def versions_at(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, Version]:
        """Returns the existing ones of some versions of a block, by revision."""
        result = await self._run(VERSIONS_AT, block=block_id, revisions=list(revisions))
        return {row.revision: to_version(row) for row in result}

    async def edits(self, selection: EditSelection) -> Mapping[str, Sequence[int]]:
        """Returns the revisions that match, newest first, by block."""
        result = await self._run(edits_statement(selection), **edits_parameters(selection))
        revisions: dict[str, list[int]] = {}
        for row in result:
            revisions.setdefault(row.block_id, []).append(row.revision)
        return revisions

    async def reverts(self, block_ids: Sequence[str]) -> Mapping[str, Mapping[int, str]]:
        """Returns, by block and revision, what each revert undid."""
        undone: dict[str, dict[int, str]] = {}
        for row in await self._run(REVERTS, ids=list(block_ids)):
            undone.setdefault(row.block_id, {})[row.revision] = row.undoes
        return undone

    async def insert(
        self,
        block: Block,
        authorship: Authorship,
        *,
        agent_id: str,
        made_for: str,
        response: bytes,
    ) -> None:
        """Stores a new block, its first version, and the response."""
        await self._run(
            INSERT,
            taken=block.label,
            records=records((block, authorship)),
            agent=agent_id,
            made_for=made_for,
            **REQUESTS.values(self._request, response, block.id),
        )

    async def update(self, block: Block, authorship: Authorship, *, response: bytes) -> None:
        """Stores a changed block, its version, and the response."""
        await self._update(
            [(block, authorship)], REQUESTS.values(self._request, response, block.id)
        )

    async def update_all(
        self, changes: Sequence[tuple[Block, Authorship]], *, response: bytes
    ) -> None:
        """Stores changed blocks, their versions, and the response."""
        await self._update(changes, REQUESTS.values(self._request, response, ANY_SUBJECT))

    async def check_update_all(self, changes: Sequence[tuple[Block, Authorship]]) -> None:
        """Raises the errors of `update_all`, and stores nothing."""
        # Labels and the sizes of prompts are checked by the database, so only a write finds them.
        async with self._connection.undone():
            await self._update(changes, REQUESTS.values(RequestKey(), b"", ANY_SUBJECT))

    async def _update(
        self, changes: Sequence[tuple[Block, Authorship]], request: Mapping[str, Any]
    ) -> None:
        await self._run(
            UPDATE,
            taken="', '".join(block.label for block, _ in changes),
            records=records(*changes),
            **request,
        )

    async def purge(self, block_id: str) -> bool:
        """Destroys a block with its history, attachments and responses; False if there is none."""
        if not (await self._run(PURGE, block=block_id)).rowcount:
            return False
        # After the lock of the block: concurrent changes have stored their responses by then.
        await REQUESTS.purge(self._connection, block_id)
        return True

    async def attach(self, agent_id: str, labels: Mapping[str, str], time: datetime) -> None:
        """Attaches blocks to an agent, in order, after those that are attached already."""
        await self._run(
            ATTACH,
            taken=", ".join(labels.values()),
            agent=agent_id,
            ids=list(labels),
            labels=list(labels.values()),
            time=time,
        )

    async def detach(self, agent_id: str, block_id: str, time: datetime) -> bool:
        """Detaches a block from an agent; False if it was not attached."""
        return (await self._run(DETACH, agent=agent_id, block=block_id, time=time)).rowcount > 0

    async def knows_agent(self, agent_id: str) -> bool:
        """Returns whether there is such an agent."""
        return (await self._run(KNOWN_AGENT, agent=agent_id)).first() is not None

    async def begin_agent(
        self, agent_id: str, limit: PromptLimit = NO_LIMIT, revision: int = 0
    ) -> bool:
        """Records that the agent's first blocks are made; False if they were made before."""
        result = await self._run(BEGIN_AGENT, **_prompt(agent_id, limit, revision))
        return result.rowcount > 0

    async def follow(self, agent_id: str, followed_id: str, time: datetime) -> bool:
        """Makes an agent share the blocks of another, present and future.

        A block whose label the agent has already is not shared.

        Returns:
            False if there is no such other agent.
        """
        if (await self._run(LOCK_FOLLOWED, followed=followed_id)).first() is None:
            return False
        await self._run(FOLLOW, agent=agent_id, followed=followed_id, time=time)
        return True

    async def lock_prompt(self, agent_id: str) -> PromptLimit | None:
        """Returns the memory limit of an agent; no other transaction can grow its memory then."""
        row = (await self._run(LOCK_PROMPT, agent=agent_id)).first()
        return None if row is None else to_prompt_limit(row)

    async def prompt_size(self, agent_id: str) -> PromptSize:
        """Returns how large the memory of an agent is in its prompt."""
        row = (await self._run(PROMPT_SIZE, agent=agent_id)).first()
        return PromptSize() if row is None else PromptSize(row.plain_bytes, row.numbered_bytes)

    async def raise_prompt(self, agent_id: str, limit: PromptLimit) -> None:
        """Raises the limit of an agent to the bytes of another, for the rendering that it has."""
        await self._run(RAISE_PROMPT, agent=agent_id, limit=limit.bytes)

    async def set_prompt(self, agent_id: str, limit: PromptLimit, revision: int) -> None:
        """Sets the limit of an agent, unless a later one is set."""
        await self._run(SET_PROMPT, **_prompt(agent_id, limit, revision))

    async def insert_all(
        self, blocks: Sequence[Block], authorship: Authorship, *, made_for: str
    ) -> None:
        """Stores new blocks with their first versions, not attached."""
        await self._run(
            INSERT_ALL,
            records=records(*((block, authorship) for block in blocks)),
            made_for=made_for,
        )

    async def labels(self, block_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns the labels, by id, of those ids that are blocks of the project."""
        return {row.id: row.label for row in await self._run(LABELS, ids=list(block_ids))}

    async def attached(self, agent_id: str) -> list[Block]:
        """Returns all blocks of an agent in order of attachment."""
        return [to_block(row) for row in await self._run(ATTACHED, agent=agent_id)]

    async def detach_all(self, agent_id: str, time: datetime) -> frozenset[str]:
        """Deletes an agent's record and detaches its blocks; returns their ids."""
        await self._run(LOCK_MADE_FOR, agent=agent_id)
        return frozenset(row[0] for row in await self._run(DETACH_ALL, agent=agent_id, time=time))

    async def made_for(self, agent_id: str) -> list[Block]:
        """Returns the blocks made for an agent that are attached to none; after `detach_all`."""
        return [to_block(row) for row in await self._run(MADE_FOR, agent=agent_id)]

    async def finish(self, response: bytes) -> None:
        """Stores the response of a mutation, if no write took it."""
        await REQUESTS.record(self._connection, self._request, response)

    def _replay(self, row: Any) -> None:
        response = REQUESTS.replayed(self._request, row)
        if response is not None:
            raise ReplayedError(response)

    async def _run(
        self, statement: SqlStatement, *, taken: str = "", **parameters: Any
    ) -> StatementResult:
        """Executes a statement; `taken` is the label that the error names if it is taken."""
        try:
            return await self._connection.execute(
                statement, {"project": self._project, **parameters}
            )
        except asyncpg.IntegrityConstraintViolationError as error:
            match error.constraint_name:
                case "attachments_label":
                    raise label_taken(taken) from error
                case "attachments_agent":
                    raise agent_not_found(parameters["agent"]) from error
                case "requests_once" | "attachments_block":
                    raise LostRaceError from error
                case "memory_within_prompt":
                    detail = json.loads(error.detail or "")
                    raise memory_too_large(
                        detail["agent_id"], detail["size"], detail["limit"]
                    ) from error
            raise


def _prompt(agent_id: str, limit: PromptLimit, revision: int) -> dict[str, Any]:
    return {
        "agent": agent_id,
        "limit": limit.bytes,
        "line_numbers": limit.line_numbers,
        "files_bytes": limit.files_bytes,
        "max_open": limit.max_open,
        "view_chars": limit.view_chars,
        "revision": revision,
    }
