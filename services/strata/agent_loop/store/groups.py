"""Stores groups in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import asyncpg

from strata.agent_loop.domain.agent.agents import revision_mismatch
from strata.agent_loop.domain.agent.groups import (
    PAIRED,
    CreateGroup,
    Group,
    GroupMember,
    ManagerConfig,
    ManagerType,
    UpdateGroup,
    needs_manager_agent,
    wrong_field,
    wrong_member_count,
)
from strata.agent_loop.domain.agent.paired_groups import (
    SETTINGS_OF_THE_AGENT,
    ManagerAgent,
    members_of_pair,
)
from strata.agent_loop.store.agents import agent_not_found
from strata.agent_loop.store.request_table import REQUESTS
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.agent_types import AgentType
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, SqlStatement, sql
from strata.shared.idempotency.keys import RequestKey, check_same_request
from strata.shared.idempotency.request_table import LostRaceError

# Agents that are being deleted are not shown: they have left already.
_GROUP = """
    SELECT g.id, g.state, g.payload_hash, g.description, g.manager, g.shared_block_ids, g.revision,
           g.create_time, g.update_time, m.id AS manager_id, m.name AS manager_name,
           m.description AS manager_description,
           m.sleeptime_frequency AS sleeptime_agent_frequency, m.max_message_buffer_length,
           m.min_message_buffer_length, members.ids, members.names, members.descriptions,
           h.agent_id AS handed_to
    FROM agent_loop.groups g
    LEFT JOIN agent_loop.group_holders h ON h.project_id = g.project_id AND h.group_id = g.id
    LEFT JOIN agent_loop.agents m
      ON m.project_id = g.project_id AND m.id = g.manager_agent_id AND m.state = 'active'
    LEFT JOIN LATERAL (
        SELECT array_agg(a.id ORDER BY gm.position) AS ids,
               array_agg(a.name ORDER BY gm.position) AS names,
               array_agg(a.description ORDER BY gm.position) AS descriptions
        FROM agent_loop.group_members gm
        JOIN agent_loop.agents a
          ON a.project_id = gm.project_id AND a.id = gm.agent_id AND a.state = 'active'
        WHERE gm.project_id = g.project_id AND gm.group_id = g.id
    ) members ON true
    WHERE g.project_id = :project
"""
_GET = sql(f"{_GROUP} AND g.id = :id")
_BY_REQUEST = sql(f"{_GROUP} AND g.request_id = :request AND g.request_id <> ''")
_PAGE = sql(
    f"""
    {_GROUP} AND g.state = 'active' AND g.id > :after
      AND (CAST(:type AS text) = '' OR g.manager_type = :type)
      AND (CAST(:agent AS text) = '' OR g.manager_agent_id = :agent OR EXISTS (
          SELECT FROM agent_loop.group_members gm
          WHERE gm.project_id = g.project_id AND gm.group_id = g.id AND gm.agent_id = :agent))
    ORDER BY g.id LIMIT :limit
    """
)
_ACTIVE_AGENTS = sql(
    "SELECT id FROM agent_loop.agents"
    " WHERE project_id = :project AND id = ANY(CAST(:ids AS text[])) AND state = 'active'"
)
# Locked, so that the agent has the same memory agent until the group is stored.
_MANAGER_OF_PAIR = sql(
    """
    SELECT id, type, memory_agent_id, sleeptime_frequency, max_message_buffer_length,
           min_message_buffer_length
    FROM agent_loop.agents
    WHERE project_id = :project AND id = :id AND state = 'active' FOR SHARE
    """
)
_INSERT = sql(
    """
    INSERT INTO agent_loop.groups (
        project_id, id, state, request_id, payload_hash, description, manager_type,
        manager_agent_id, manager, shared_block_ids)
    VALUES (:project, :id, 'creating', :request, :payload_hash, :description, :type,
            CAST(:manager_agent AS text), CAST(:manager AS jsonb), CAST(:blocks AS text[]))
    """
)
_INSERT_MEMBERS = sql(
    """
    INSERT INTO agent_loop.group_members (project_id, group_id, agent_id, position)
    SELECT :project, :id, r.agent_id, r.position
    FROM unnest(CAST(:agents AS text[])) WITH ORDINALITY r(agent_id, position)
    """
)
_REMOVE_MEMBERS = sql(
    "DELETE FROM agent_loop.group_members WHERE project_id = :project AND group_id = :id"
)
_ACTIVATE = sql(
    "UPDATE agent_loop.groups SET state = 'active' WHERE project_id = :project AND id = :id"
)
_LOCK = sql(
    "SELECT revision FROM agent_loop.groups"
    " WHERE project_id = :project AND id = :id AND state = 'active' FOR UPDATE"
)
_UPDATE = sql(
    """
    UPDATE agent_loop.groups
       SET description = :description, manager_type = :type,
           manager_agent_id = CAST(:manager_agent AS text), manager = CAST(:manager AS jsonb),
           shared_block_ids = CAST(:blocks AS text[]), revision = revision + 1,
           update_time = now()
     WHERE project_id = :project AND id = :id
    """
)
_DELETE = sql("DELETE FROM agent_loop.groups WHERE project_id = :project AND id = :id RETURNING id")


# The holder at the beginning of the run is kept: a run that is taken over repeats its turns.
_BEGIN_RUN = sql(
    """
    INSERT INTO agent_loop.group_holders AS h (project_id, group_id, run_id, first_agent_id,
                                               agent_id, hand_overs)
    SELECT project_id, id, :run, '', '', 0 FROM agent_loop.groups
    WHERE project_id = :project AND id = :id AND state = 'active'
    ON CONFLICT (project_id, group_id) DO UPDATE
       SET first_agent_id = CASE WHEN h.run_id = :run THEN h.first_agent_id ELSE h.agent_id END,
           hand_overs = CASE WHEN h.run_id = :run THEN h.hand_overs ELSE 0 END,
           run_id = :run
    RETURNING first_agent_id
    """
)
_HAND_OVER = sql(
    """
    WITH handed_over AS (
        UPDATE agent_loop.group_holders SET agent_id = :agent, hand_overs = :number
        WHERE project_id = :project AND group_id = :id AND run_id = :run AND hand_overs < :number
    )
    SELECT id FROM agent_loop.groups WHERE project_id = :project AND id = :id
    """
)


class PostgresGroupStore:
    """Implements `domain.agent.groups.GroupStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert(self, command: CreateGroup) -> Group:
        """See `GroupStore.insert`."""
        try:
            return await self._insert(command)
        except LostRaceError:
            return await self._insert(command)

    async def activate(self, group_id: str) -> Group:
        """See `GroupStore.activate`."""
        async with self._database.transaction() as connection:
            await connection.execute(_ACTIVATE, _bound(id=group_id))
            return await _get(connection, group_id)

    async def get(self, group_id: str) -> Group:
        """See `GroupStore.get`."""
        async with self._database.transaction(read_only=True) as connection:
            return await _get(connection, group_id)

    async def page(
        self, manager_type: ManagerType | None, agent_id: str, limit: int, after: str
    ) -> Sequence[Group]:
        """See `GroupStore.page`."""
        values = _bound(type=manager_type or "", agent=agent_id, limit=limit, after=after)
        async with self._database.transaction(read_only=True) as connection:
            rows = await connection.execute(_PAGE, values)
            return [_group(row) for row in rows]

    async def known_group(self, request: RequestKey) -> Group | None:
        """See `GroupStore.known_group`."""
        if not request.id:
            return None
        async with self._database.transaction(read_only=True) as connection:
            answer = await REQUESTS.find(connection, request)
            return None if answer is None else await _get(connection, answer["id"])

    async def check(self, command: UpdateGroup) -> tuple[ManagerConfig, tuple[str, ...]]:
        """See `GroupStore.check`."""
        # Not read-only, since the manager agent of a pair is locked.
        async with self._database.transaction() as connection:
            group = await _get(connection, command.group_id)
            manager, agent_ids = await _changed(connection, group, command)
        if agent_ids is None:
            agent_ids = tuple(member.agent_id for member in group.members)
        return manager, agent_ids

    async def update(self, command: UpdateGroup, revision: int) -> Group:
        """See `GroupStore.update`."""
        try:
            return await self._update(command, revision)
        except LostRaceError:
            stored_group = await self.known_group(command.request)
            assert stored_group is not None
            return stored_group

    async def begin_run(self, group_id: str, run_id: str) -> str:
        """See `GroupStore.begin_run`."""
        async with self._database.transaction() as connection:
            values = _bound(id=group_id, run=run_id)
            row = (await connection.execute(_BEGIN_RUN, values)).one_or_none()
        if row is None:
            raise group_not_found(group_id)
        return str(row.first_agent_id)

    async def hand_over(self, group_id: str, run_id: str, number: int, agent_id: str) -> None:
        """See `GroupStore.hand_over`."""
        values = _bound(id=group_id, run=run_id, number=number, agent=agent_id)
        async with self._database.transaction() as connection:
            row = (await connection.execute(_HAND_OVER, values)).one_or_none()
        if row is None:
            raise group_not_found(group_id)

    async def delete(self, group_id: str) -> None:
        """See `GroupStore.delete`."""
        async with self._database.transaction() as connection:
            row = (await connection.execute(_DELETE, _bound(id=group_id))).one_or_none()
        if row is None:
            raise group_not_found(group_id)

    async def _insert(self, command: CreateGroup) -> Group:
        request = command.request
        async with self._database.transaction() as connection:
            values = _bound(request=request.id)
            row = (await connection.execute(_BY_REQUEST, values)).one_or_none()
            if row is not None:
                check_same_request(request.id, row["payload_hash"], request.digest)
                return _group(row)
            agent_ids = command.agent_ids
            if command.manager.type in PAIRED:
                agent_ids = await _members_of_pair(
                    connection, command.manager, agent_ids, "agent_ids"
                )
            await _check_agents(connection, command.manager, agent_ids)
            await _write(
                connection,
                _INSERT,
                id=command.id,
                request=request.id,
                payload_hash=request.digest,
                description=command.description,
                blocks=list(command.shared_block_ids),
                **_manager(command.manager),
            )
            await _write(connection, _INSERT_MEMBERS, id=command.id, agents=list(agent_ids))
            return await _get(connection, command.id, active=False)

    async def _update(self, command: UpdateGroup, revision: int) -> Group:
        group_id = command.group_id
        async with self._database.transaction() as connection:
            locked = (await connection.execute(_LOCK, _bound(id=group_id))).one_or_none()
            if locked is None:
                raise group_not_found(group_id)
            if locked.revision != revision:
                raise revision_mismatch("group", locked.revision, revision)
            group = await _get(connection, group_id)
            manager, agent_ids = await _changed(connection, group, command)
            description, blocks = command.description, command.shared_block_ids
            changed = replace(
                group,
                description=group.description if description is None else description,
                shared_block_ids=group.shared_block_ids if blocks is None else tuple(blocks),
                manager=manager,
            )
            had = tuple(member.agent_id for member in group.members)
            agents = had if agent_ids is None else tuple(agent_ids)
            if (changed, agents) != (group, had):
                await _write(
                    connection,
                    _UPDATE,
                    id=group_id,
                    description=changed.description,
                    blocks=list(changed.shared_block_ids),
                    **_manager(manager),
                )
            if agents != had:
                await connection.execute(_REMOVE_MEMBERS, _bound(id=group_id))
                await _write(connection, _INSERT_MEMBERS, id=group_id, agents=list(agents))
            await REQUESTS.record(connection, command.request, {"id": group_id}, group_id)
            return await _get(connection, group_id)


async def _get(connection: DatabaseConnection, group_id: str, *, active: bool = True) -> Group:
    row = (await connection.execute(_GET, _bound(id=group_id))).one_or_none()
    if row is None or (active and row["state"] != "active"):
        raise group_not_found(group_id)
    return _group(row)


async def _changed(
    connection: DatabaseConnection, group: Group, command: UpdateGroup
) -> tuple[ManagerConfig, tuple[str, ...] | None]:
    """Returns the manager of a changed group, and its members if they change.

    Raises: as `GroupStore.check`.
    """
    manager, agent_ids = command.manager or group.manager, command.agent_ids
    field = "members.agent_ids"
    if manager.type in PAIRED:
        if command.manager is not None or agent_ids is not None:
            agent_ids = await _members_of_pair(connection, manager, agent_ids or (), field)
    elif agent_ids is not None and not agent_ids:
        raise wrong_field([wrong_member_count(field, 0)])
    await _check_agents(connection, manager, agent_ids or ())
    return manager, agent_ids


async def _members_of_pair(
    connection: DatabaseConnection, manager: ManagerConfig, agent_ids: Sequence[str], field: str
) -> tuple[str, ...]:
    agent_id = manager.manager_agent_id
    if not agent_id:
        # It was deleted.
        raise wrong_field([needs_manager_agent(manager.type)])
    row = (await connection.execute(_MANAGER_OF_PAIR, _bound(id=agent_id))).one_or_none()
    if row is None:
        raise agent_not_found(agent_id)
    agent = ManagerAgent(
        row.id,
        AgentType(row.type),
        row.memory_agent_id,
        row.sleeptime_frequency,
        row.max_message_buffer_length,
        row.min_message_buffer_length,
    )
    return members_of_pair(manager, agent, agent_ids, field)


async def _check_agents(
    connection: DatabaseConnection, manager: ManagerConfig, agent_ids: Sequence[str]
) -> None:
    member_ids = [*agent_ids, *filter(None, [manager.manager_agent_id])]
    rows = await connection.execute(_ACTIVE_AGENTS, _bound(ids=member_ids))
    active = {row.id for row in rows}
    for agent_id in member_ids:
        if agent_id not in active:
            raise agent_not_found(agent_id)


async def _write(
    connection: DatabaseConnection, statement: SqlStatement, **parameters: Any
) -> None:
    try:
        await connection.execute(statement, _bound(**parameters))
    except asyncpg.IntegrityConstraintViolationError as error:
        match error.constraint_name:
            case "groups_request":
                raise LostRaceError from error
            case "groups_manager":
                # The agent was removed concurrently.
                raise agent_not_found(parameters["manager_agent"]) from error
            case "group_members_agent":
                raise agent_not_found(", ".join(parameters["agents"])) from error
        raise


def _bound(**parameters: Any) -> dict[str, Any]:
    return {"project": current_project(), **parameters}


def _manager(manager: ManagerConfig) -> dict[str, Any]:
    settings = asdict(manager)
    agent_id = settings.pop("manager_agent_id")
    for name in SETTINGS_OF_THE_AGENT:
        # Read from the agent.
        del settings[name]
    return {
        "type": settings.pop("type").value,
        "manager_agent": agent_id or None,
        "manager": json.dumps({"type": manager.type.value, **settings}),
    }


def _group(row: Row) -> Group:
    manager_fields = row["manager"]
    settings: dict[str, Any] = (
        json.loads(manager_fields) if isinstance(manager_fields, str) else dict(manager_fields)
    )
    manager_agent = None
    kind = ManagerType(settings.pop("type"))
    for name in SETTINGS_OF_THE_AGENT:
        settings[name] = (row[name] or 0) if kind in PAIRED else 0
    if row["manager_id"] is not None:
        manager_agent = GroupMember(
            row["manager_id"], row["manager_name"], row["manager_description"]
        )
    columns = (row["ids"] or (), row["names"] or (), row["descriptions"] or ())
    return Group(
        id=row["id"],
        description=row["description"],
        manager=ManagerConfig(
            kind,
            manager_agent.agent_id if manager_agent else "",
            **settings,
        ),
        members=tuple(GroupMember(*member) for member in zip(*columns, strict=True)),
        manager_agent=manager_agent,
        shared_block_ids=tuple(row["shared_block_ids"]),
        revision=row["revision"],
        create_time=row["create_time"],
        update_time=row["update_time"],
        active=row["state"] == "active",
        handed_to=row["handed_to"] or "",
    )


def group_not_found(group_id: str) -> NotFoundError:
    """Returns the error for a group that does not exist in this project."""
    return NotFoundError(
        f"There is no group {group_id}.", reason=Reason.GROUP_NOT_FOUND, metadata={"id": group_id}
    )
