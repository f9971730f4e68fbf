"""Agents and conversations in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import asyncpg

from strata.agent_loop.domain.agent.agents import (
    Agent,
    AgentFilter,
    AgentPatch,
    Conversation,
    ListedAgent,
    StoredAgent,
    apply_patch,
    check_revision,
    external_id_taken,
)
from strata.agent_loop.store.request_table import REQUESTS
from strata.agent_loop.store.rows import (
    AGENT_COLUMNS,
    AGENT_VALUES,
    CONVERSATION_COLUMNS,
    STORED_COLUMNS,
    UNCHANGING_COLUMNS,
    agent_parameters,
    answer,
    to_agent,
    to_conversation,
    to_keys,
    to_stored,
)
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, SqlStatement, sql
from strata.shared.idempotency.keys import RequestKey, check_same_request
from strata.shared.idempotency.request_table import ANY_SUBJECT, LostRaceError, answered_or
from strata.shared.record_fields import replace

_THIS = "project_id = :project AND id = :id"
_SET_VALUES = ", ".join(
    f"{column} = {value}"
    for column, value in AGENT_VALUES.items()
    if column not in UNCHANGING_COLUMNS
)

# A creation that is continued is not abandoned.
_INSERT = sql(
    f"""
    WITH continued AS (
        UPDATE agent_loop.agents SET create_time = now()
        WHERE project_id = :project AND request_id = :request AND request_id <> ''
          AND state = 'creating'
        RETURNING {STORED_COLUMNS}
    ), same_request AS (
        SELECT {STORED_COLUMNS} FROM agent_loop.agents
        WHERE project_id = :project AND request_id = :request AND request_id <> ''
          AND state <> 'creating'
    ), created AS (
        INSERT INTO agent_loop.agents (
            project_id, state, request_id, payload_hash, {", ".join(AGENT_VALUES)})
        SELECT :project, 'creating', :request, :payload_hash, {", ".join(AGENT_VALUES.values())}
        WHERE NOT EXISTS (SELECT FROM continued) AND NOT EXISTS (SELECT FROM same_request)
        RETURNING {STORED_COLUMNS}
    ), conversation AS (
        INSERT INTO agent_loop.conversations (project_id, id, agent_id, title)
        SELECT :project, CAST(:conversation AS text), id, '' FROM created
    )
    SELECT * FROM created UNION ALL SELECT * FROM continued UNION ALL SELECT * FROM same_request
    """
)
_ACTIVATE = sql(
    f"UPDATE agent_loop.agents SET state = 'active', memory_agent_id = CAST(:memory AS text)"
    f" WHERE {_THIS} AND state <> 'deleting' RETURNING {AGENT_COLUMNS}"
)
_ACTIVATE_MEMORY_AGENT = sql(
    f"UPDATE agent_loop.agents SET state = 'active' WHERE {_THIS} AND state <> 'deleting'"
    " RETURNING id"
)
_GET = sql(f"SELECT {STORED_COLUMNS} FROM agent_loop.agents WHERE {_THIS}")
_BY_NAME = sql(
    f"SELECT {STORED_COLUMNS} FROM agent_loop.agents WHERE project_id = :project AND name = :name"
)
_TENDING = sql(
    f"SELECT {STORED_COLUMNS} FROM agent_loop.agents"
    " WHERE project_id = :project AND tends_agent_id = :id AND tends_agent_id <> ''"
)
_LOAD = sql(
    f"""
    SELECT {", ".join(f"a.{column.strip()}" for column in AGENT_COLUMNS.split(","))},
           c.id AS conversation_id, k.providers, k.owners, k.sealed
    FROM agent_loop.agents a
    LEFT JOIN agent_loop.conversations c
      ON c.project_id = a.project_id AND c.agent_id = a.id AND c.id = :conversation
    LEFT JOIN LATERAL (
        SELECT array_agg(provider) AS providers, array_agg(agent_id) AS owners,
               array_agg(sealed) AS sealed
        FROM agent_loop.model_keys
        WHERE project_id = a.project_id AND agent_id IN ('', a.id)
    ) k ON true
    WHERE a.project_id = :project AND a.id = :id AND a.state = 'active'
    """
)
_LISTED = """
    FROM agent_loop.agents
    WHERE project_id = :project AND id > :after AND state = 'active'
      AND tags @> CAST(:tags AS text[])
      AND (CAST(:part AS text) = '' OR position(lower(:part) IN lower(name)) > 0)
      AND (cardinality(CAST(:ids AS text[])) = 0 OR id = ANY(CAST(:ids AS text[])))
    ORDER BY id LIMIT :limit
"""
_PAGE = sql(f"SELECT {AGENT_COLUMNS} {_LISTED}")
_NAMES = sql(f"SELECT id, name, description, tends_agent_id, create_time {_LISTED}")
_LOCK = sql(
    f"SELECT {AGENT_COLUMNS} FROM agent_loop.agents WHERE {_THIS} AND state = 'active'"
    " FOR NO KEY UPDATE"
)
_UPDATE = sql(
    f"UPDATE agent_loop.agents SET {_SET_VALUES}, revision = :revision, update_time = now()"
    f" WHERE {_THIS} RETURNING {AGENT_COLUMNS}"
)
_RENEW = sql(
    f"UPDATE agent_loop.agents SET {_SET_VALUES}, revision = revision + 1, create_time = now()"
    f" WHERE {_THIS} AND state = 'creating' RETURNING {AGENT_COLUMNS}"
)
_ABANDON = sql(
    f"UPDATE agent_loop.agents SET state = 'deleting'"
    f" WHERE {_THIS} AND state = 'creating' AND revision = :revision RETURNING id"
)
_HIDE_UNFINISHED = sql(
    """
    UPDATE agent_loop.agents SET state = 'deleting'
    WHERE project_id = :project AND state <> 'active'
      AND (state = 'deleting' OR create_time < now() - CAST(:age AS interval))
    RETURNING id
    """
)
# A memory agent is deleted with its agent, and before it: an interrupted deletion is repeated by
# the id of the agent.
_HIDE = sql(
    """
    UPDATE agent_loop.agents SET state = 'deleting'
    WHERE project_id = :project AND (id = :id OR tends_agent_id = :id)
    RETURNING id, tends_agent_id
    """
)
_LEAVE_WITHOUT_MEMORY_AGENT = sql(
    """
    UPDATE agent_loop.agents
    SET memory_agent_id = '', sleeptime_frequency = 0, revision = revision + 1,
        update_time = now()
    WHERE project_id = :project AND id = :tended AND memory_agent_id = :id
    """
)
# Answers to requests hold settings of agents, and titles of conversations. Only answers that an
# earlier release stored do not name the agent.
_REMOVE = sql(
    f"""
    WITH removed AS (
        DELETE FROM agent_loop.agents
        WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))
    )
    DELETE FROM agent_loop.requests
    WHERE project_id = :project AND (
        subject_id = ANY(CAST(:ids AS text[]))
        OR subject_id = '{ANY_SUBJECT}' AND (
            answer ->> 'id' = ANY(CAST(:ids AS text[]))
            OR answer ->> 'agent_id' = ANY(CAST(:ids AS text[]))))
    """
)
_INSERT_CONVERSATION = sql(
    f"""
    INSERT INTO agent_loop.conversations (
        project_id, id, agent_id, title, forked_from_id, external_id, request_id, payload_hash
    )
    SELECT :project, :id, a.id, :title, :forked_from_id, :external_id, :request, :payload_hash
    FROM agent_loop.agents a
    WHERE a.project_id = :project AND a.id = :agent AND a.state = 'active'
    RETURNING {CONVERSATION_COLUMNS}
    """
)
_ACTIVE_CONVERSATION = f"""
    SELECT {", ".join(f"c.{column.strip()}" for column in CONVERSATION_COLUMNS.split(","))}
    FROM agent_loop.conversations c
    JOIN agent_loop.agents a
      ON a.project_id = c.project_id AND a.id = c.agent_id AND a.state = 'active'
    WHERE c.project_id = :project
    """
_REQUESTED_CONVERSATION = sql(
    f"""
    SELECT {CONVERSATION_COLUMNS}, payload_hash FROM agent_loop.conversations
    WHERE project_id = :project AND request_id = :request AND request_id <> ''
    """
)
_CONVERSATION = sql(f"{_ACTIVE_CONVERSATION} AND c.id = :id")
_EXTERNAL_CONVERSATION = sql(
    f"{_ACTIVE_CONVERSATION} AND c.agent_id = :agent AND c.external_id = :external_id"
    " AND c.external_id <> ''"
)
_CONVERSATIONS = sql(
    f"""
    SELECT {", ".join(f"c.{column.strip()}" for column in CONVERSATION_COLUMNS.split(","))},
           a.id AS owner
    FROM agent_loop.agents a
    LEFT JOIN agent_loop.conversations c
      ON c.project_id = a.project_id AND c.agent_id = a.id AND c.id > :after
     AND (CAST(:title AS text) = '' OR c.title = :title)
    WHERE a.project_id = :project AND a.id = :agent AND a.state = 'active'
    ORDER BY c.id LIMIT :limit
    """
)


class PostgresAgentStore:
    """Implements `domain.agent.store.AgentStore` and `domain.ports.Agents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, agent: Agent, request: RequestKey) -> StoredAgent:
        """Stores an agent in creation."""
        try:
            return await self._insert(agent, request)
        except LostRaceError:
            return await self._insert(agent, request)

    async def activate(self, agent_id: str, memory_agent_id: str = "") -> Agent:
        """Ends the creation of an agent, and of its memory agent."""
        async with self._database.transaction() as connection:
            if memory_agent_id:
                await _activate_memory_agent(connection, memory_agent_id)
            row = await _one(connection, _ACTIVATE, id=agent_id, memory=memory_agent_id)
        if row is None:
            raise agent_not_found(agent_id)
        return to_agent(row)

    async def get(self, agent_id: str) -> StoredAgent:
        """Returns an agent in any state."""
        async with self._database.transaction(read_only=True) as connection:
            row = await _one(connection, _GET, id=agent_id)
        if row is None:
            raise agent_not_found(agent_id)
        return to_stored(row)

    async def by_name(self, name: str) -> StoredAgent:
        """Returns the agent of that name, in any state."""
        async with self._database.transaction(read_only=True) as connection:
            row = await _one(connection, _BY_NAME, name=name)
        if row is None:
            raise agent_not_found(name, key="name")
        return to_stored(row)

    async def memory_agent_of(self, agent_id: str) -> StoredAgent | None:
        """Returns the memory agent of an agent, in any state."""
        async with self._database.transaction(read_only=True) as connection:
            row = await _one(connection, _TENDING, id=agent_id)
        return None if row is None else to_stored(row)

    async def renew_creation(self, agent: Agent) -> Agent | None:
        """Gives an agent in creation the settings of a call that continues the creation."""
        async with self._database.transaction() as connection:
            row = await _one(connection, _RENEW, taken=agent.name, **agent_parameters(agent))
        return None if row is None else to_agent(row)

    async def abandon_creation(self, agent_id: str, revision: int) -> bool:
        """Hides an agent in creation permanently, unless another call continues the creation."""
        async with self._database.transaction() as connection:
            row = await _one(connection, _ABANDON, id=agent_id, revision=revision)
        return row is not None

    async def load(self, agent_id: str, conversation_id: str) -> Agent:
        """Returns the active agent of a conversation, with its model keys."""
        rows = await self._database.query(_LOAD, id=agent_id, conversation=conversation_id)
        if not rows:
            raise agent_not_found(agent_id)
        row = dict(rows[0])
        if row["conversation_id"] is None:
            raise _conversation_not_found(
                f"Agent {agent_id} has no conversation {conversation_id}.", conversation_id
            )
        return replace(to_agent(row), model_keys=to_keys(row))

    async def page(self, agent_filter: AgentFilter, limit: int, after: str) -> Sequence[Agent]:
        """Lists active agents."""
        rows = await self._listed(_PAGE, agent_filter, limit, after)
        # In a thread: the largest page takes more than 20 ms.
        return await asyncio.to_thread(lambda: [to_agent(row) for row in rows])

    async def names(
        self, agent_filter: AgentFilter, limit: int, after: str
    ) -> Sequence[ListedAgent]:
        """Lists the names of active agents."""
        rows = await self._listed(_NAMES, agent_filter, limit, after)
        return [ListedAgent(**row) for row in rows]

    async def _listed(
        self, statement: SqlStatement, agent_filter: AgentFilter, limit: int, after: str
    ) -> Sequence[Mapping[str, Any]]:
        async with self._database.transaction(read_only=True) as connection:
            return await _all(
                connection,
                statement,
                tags=list(agent_filter.tags),
                part=agent_filter.name_contains,
                ids=list(agent_filter.agent_ids),
                limit=limit,
                after=after,
            )

    async def known_agent(self, request: RequestKey) -> Agent | None:
        """Returns the agent as an earlier request changed it."""
        if not request.id:
            return None
        async with self._database.transaction(read_only=True) as connection:
            stored_answer = await REQUESTS.find(connection, request)
        return to_agent(stored_answer) if stored_answer is not None else None

    async def update(self, patch: AgentPatch, request: RequestKey) -> Agent:
        """Changes an active agent."""
        try:
            return await self._update(patch, request)
        except LostRaceError:
            return await self._update(patch, request)

    async def begin_deletion(self, agent_id: str) -> Sequence[str]:
        """Hides an agent and its memory agent permanently."""
        async with self._database.transaction() as connection:
            rows = await _all(connection, _HIDE, id=agent_id)
            for row in rows:
                if row["id"] == agent_id and row["tends_agent_id"]:
                    await _run(
                        connection,
                        _LEAVE_WITHOUT_MEMORY_AGENT,
                        id=agent_id,
                        tended=row["tends_agent_id"],
                    )
        if not any(row["id"] == agent_id for row in rows):
            raise agent_not_found(agent_id)
        return [row["id"] for row in rows]

    async def hide_unfinished(self, age: timedelta) -> Sequence[str]:
        """Hides agents in creation permanently that are older, and returns all in deletion."""
        rows = await self._database.execute(
            _HIDE_UNFINISHED, {"project": current_project(), "age": age}
        )
        return [row.id for row in rows]

    async def remove(self, agent_ids: Sequence[str]) -> None:
        """Deletes the rows of agents, and the stored answers that hold them."""
        async with self._database.transaction() as connection:
            await connection.execute(
                _REMOVE, {"project": current_project(), "ids": list(agent_ids)}
            )

    async def known_conversation(self, request: RequestKey) -> Conversation | None:
        """Returns the conversation that an earlier request made."""
        if not request.id:
            return None
        async with self._database.transaction(read_only=True) as connection:
            return await _requested_conversation(connection, request)

    async def insert_conversation(
        self, conversation: Conversation, request: RequestKey
    ) -> Conversation:
        """Stores a conversation."""

        async def insert() -> Conversation:
            try:
                return await self._insert_conversation(conversation, request)
            except LostRaceError:
                return await self._insert_conversation(conversation, request)

        return await answered_or(insert(), lambda: self.known_conversation(request))

    async def conversation(self, conversation_id: str) -> Conversation:
        """Returns a conversation of an active agent."""
        async with self._database.transaction(read_only=True) as connection:
            row = await _one(connection, _CONVERSATION, id=conversation_id)
        if row is None:
            raise _conversation_not_found(
                f"There is no conversation {conversation_id}.", conversation_id
            )
        return to_conversation(row)

    async def external_conversation(self, agent_id: str, external_id: str) -> Conversation:
        """Returns a conversation of an active agent by its external id."""
        async with self._database.transaction(read_only=True) as connection:
            row = await _one(
                connection, _EXTERNAL_CONVERSATION, agent=agent_id, external_id=external_id
            )
        if row is None:
            raise _conversation_not_found(
                f"Agent {agent_id} has no conversation with the external id {external_id!r}.",
                external_id,
            )
        return to_conversation(row)

    async def conversations(
        self, agent_id: str, limit: int, after: str, title: str = ""
    ) -> Sequence[Conversation]:
        """Lists the conversations of an agent."""
        async with self._database.transaction(read_only=True) as connection:
            rows = await _all(
                connection, _CONVERSATIONS, agent=agent_id, limit=limit, after=after, title=title
            )
        if not rows:
            raise agent_not_found(agent_id)
        return [to_conversation(row) for row in rows if row["id"] is not None]

    async def _insert(self, agent: Agent, request: RequestKey) -> StoredAgent:
        async with self._database.transaction() as connection:
            row = await _one(
                connection,
                _INSERT,
                taken=agent.name,
                **agent_parameters(agent),
                request=request.id,
                payload_hash=request.digest,
                conversation=agent.default_conversation_id,
            )
        # Without a row, the first request with this id was committed a moment ago.
        if row is None:
            raise LostRaceError
        stored = to_stored(row)
        check_same_request(request.id, stored.payload_hash, request.digest)
        return stored

    async def _update(self, patch: AgentPatch, request: RequestKey) -> Agent:
        async with self._database.transaction() as connection:
            # Locked first, so that the second of two equal requests finds the answer of the first.
            row = await _one(connection, _LOCK, id=patch.agent_id)
            if (stored_answer := await REQUESTS.find(connection, request)) is not None:
                return to_agent(stored_answer)
            if row is None:
                raise agent_not_found(patch.agent_id)
            agent = to_agent(row)
            check_revision(agent, patch.expected_revision)
            changed = apply_patch(agent, patch)
            changed = await _settle_memory_agent(connection, agent, changed)
            if replace(changed, revision=agent.revision) == agent:
                await REQUESTS.record(connection, request, answer(row), agent.id)
                return agent
            row = await _one(
                connection,
                _UPDATE,
                taken=changed.name,
                **agent_parameters(changed),
                revision=changed.revision,
            )
            assert row is not None
            await REQUESTS.record(connection, request, answer(row), changed.id)
            return to_agent(row)

    async def _insert_conversation(
        self, conversation: Conversation, request: RequestKey
    ) -> Conversation:
        async with self._database.transaction() as connection:
            if (existing := await _requested_conversation(connection, request)) is not None:
                return existing
            row = await _one(
                connection,
                _INSERT_CONVERSATION,
                id=conversation.id,
                agent=conversation.agent_id,
                title=conversation.title,
                forked_from_id=conversation.forked_from_id,
                external_id=conversation.external_id,
                request=request.id,
                payload_hash=request.digest,
                taken=conversation.external_id,
            )
            if row is None:
                raise agent_not_found(conversation.agent_id)
            await REQUESTS.record(connection, request, answer(row), conversation.agent_id)
            return to_conversation(row)


async def _requested_conversation(
    connection: DatabaseConnection, request: RequestKey
) -> Conversation | None:
    """Returns the conversation that an earlier request made; None if the request is new.

    An earlier release stores the request only in the table of requests.

    Raises:
        AlreadyExistsError: REQUEST_ID_REUSED.
    """
    stored_answer = await REQUESTS.find(connection, request)
    if stored_answer is not None:
        return to_conversation(stored_answer)
    row = await _one(connection, _REQUESTED_CONVERSATION, request=request.id)
    if row is None:
        return None
    check_same_request(request.id, row["payload_hash"], request.digest)
    return to_conversation(row)


async def _activate_memory_agent(connection: DatabaseConnection, agent_id: str) -> None:
    if await _one(connection, _ACTIVATE_MEMORY_AGENT, id=agent_id) is None:
        raise agent_not_found(agent_id)


async def _settle_memory_agent(
    connection: DatabaseConnection, before: Agent, changed: Agent
) -> Agent:
    """Activates or hides the memory agent that a change sets; returns the agent with it."""
    had, wanted = before.memory_agent_id, changed.memory_agent_id
    if wanted == had:
        return changed
    if not wanted:
        await _all(connection, _HIDE, id=had)
        return changed
    if had:
        return replace(changed, memory_agent_id=had)
    await _activate_memory_agent(connection, wanted)
    return changed


async def _one(
    connection: DatabaseConnection,
    statement: SqlStatement,
    *,
    taken: str = "",
    **parameters: Any,
) -> Mapping[str, Any] | None:
    rows = await _all(connection, statement, taken=taken, **parameters)
    return rows[0] if rows else None


async def _all(
    connection: DatabaseConnection,
    statement: SqlStatement,
    *,
    taken: str = "",
    **parameters: Any,
) -> Sequence[Mapping[str, Any]]:
    bound = {"project": current_project(), **parameters}
    try:
        result = await connection.execute(statement, bound)
    except asyncpg.IntegrityConstraintViolationError as error:
        match error.constraint_name:
            case "agents_name":
                raise AlreadyExistsError(
                    f"There is already an agent named {taken!r}.", metadata={"name": taken}
                ) from error
            case "agents_request" | "conversations_request":
                raise LostRaceError from error
            case "conversations_external_id":
                raise external_id_taken(taken) from error
        raise
    return [dict(row) for row in result]


async def _run(connection: DatabaseConnection, statement: SqlStatement, **parameters: Any) -> None:
    await connection.execute(statement, {"project": current_project(), **parameters})


def _conversation_not_found(message: str, conversation_id: str) -> NotFoundError:
    return NotFoundError(
        message, reason=Reason.CONVERSATION_NOT_FOUND, metadata={"id": conversation_id}
    )


def agent_not_found(value: str, *, key: str = "id") -> NotFoundError:
    """Returns the error for an agent that does not exist in this project."""
    return NotFoundError(
        f"There is no agent {value}.", reason=Reason.AGENT_NOT_FOUND, metadata={key: value}
    )
