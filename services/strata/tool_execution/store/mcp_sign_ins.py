"""Store of sign-ins to MCP servers in PostgreSQL; secrets are encrypted by the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from strata.protocol.errors import Reason, ResourceExhaustedError
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, sql
from strata.tool_execution.domain.mcp import CompletedSignIn, server_missing
from strata.tool_execution.domain.mcp_sign_in import MAX_PENDING, Renewal, SealedTokens
from strata.tool_execution.store import mcp_statements

_OF = "WHERE project_id = :project AND server_id = :id"
_TIDY = sql(f"DELETE FROM tool_execution.mcp_sign_ins {_OF} AND expire_time <= now()")
_COUNT = sql(f"SELECT count(*) FROM tool_execution.mcp_sign_ins {_OF}")
_BEGIN = sql(
    """
    INSERT INTO tool_execution.mcp_sign_ins (project_id, state_hash, server_id, sealed, expire_time)
    VALUES (:project, :state, :id, :sealed, :expires)
    """
)
_TAKE = sql(
    f"""
    DELETE FROM tool_execution.mcp_sign_ins {_OF} AND state_hash = :state
    RETURNING sealed, expire_time > now() AS counts
    """
)
_PUT = sql(
    """
    INSERT INTO tool_execution.mcp_tokens AS t (
        project_id, server_id, sealed, version, issuer, principal, sign_in_time)
    VALUES (:project, :id, :sealed, 1, :issuer, :principal, :time)
    ON CONFLICT (project_id, server_id) DO UPDATE SET
        sealed = EXCLUDED.sealed, version = t.version + 1, issuer = EXCLUDED.issuer,
        principal = EXCLUDED.principal, sign_in_time = EXCLUDED.sign_in_time, problem = ''
    """
)
# The columns of `mcp_tokens` that `_to_tokens` reads.
_TOKENS = "sealed, version, problem"
_GET = f"SELECT {_TOKENS} FROM tool_execution.mcp_tokens {_OF}"
_ONE, _LOCKED = sql(_GET), sql(f"{_GET} FOR UPDATE")
_RENEW = sql(
    f"""
    UPDATE tool_execution.mcp_tokens SET sealed = :sealed, version = version + 1 {_OF}
    RETURNING {_TOKENS}
    """
)
_GIVE_UP = sql(
    f"UPDATE tool_execution.mcp_tokens SET problem = :problem, version = version + 1 {_OF}"
)
_FORGET = sql(f"DELETE FROM tool_execution.mcp_tokens {_OF}")
_FORGET_BEGUN = sql(f"DELETE FROM tool_execution.mcp_sign_ins {_OF}")


class PostgresSignInStore:
    """Implements `domain.mcp_sign_in.SignInStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, server_id: str, state_hash: str, sealed: bytes, expire_time: datetime
    ) -> None:
        """Stores a pending sign-in."""
        bound = _of(server_id)
        async with self._database.transaction() as connection:
            await _lock_server(connection, server_id)
            await connection.execute(_TIDY, bound)
            if (await connection.execute(_COUNT, bound)).scalar_one() >= MAX_PENDING:
                raise ResourceExhaustedError(
                    f"{MAX_PENDING} sign-ins to this server are pending. The oldest expires within"
                    " ten minutes.",
                    reason=Reason.QUOTA_EXCEEDED,
                    metadata={"quota": "mcp_sign_ins"},
                )
            values = {"state": state_hash, "sealed": sealed, "expires": expire_time}
            await connection.execute(_BEGIN, {**bound, **values})

    async def take(self, server_id: str, state_hash: str) -> bytes | None:
        """Removes and returns a pending sign-in."""
        async with self._database.transaction() as connection:
            rows = await connection.execute(_TAKE, {**_of(server_id), "state": state_hash})
            row = rows.one_or_none()
        return bytes(row.sealed) if row is not None and row.counts else None

    async def put(self, server_id: str, sealed: bytes, sign_in: CompletedSignIn) -> None:
        """Stores tokens."""
        values = {
            "sealed": sealed,
            "issuer": sign_in.issuer,
            "principal": sign_in.principal,
            "time": sign_in.time,
        }
        async with self._database.transaction() as connection:
            await _lock_server(connection, server_id)
            await connection.execute(_PUT, {**_of(server_id), **values})

    async def get(self, server_id: str) -> SealedTokens | None:
        """Returns the tokens of a server."""
        async with self._database.transaction(read_only=True) as connection:
            row = (await connection.execute(_ONE, _of(server_id))).one_or_none()
        return None if row is None else _to_tokens(row)

    async def forget(self, server_id: str) -> None:
        """Deletes the tokens and the pending sign-ins of a server."""
        async with self._database.transaction() as connection:
            await connection.execute(_FORGET, _of(server_id))
            await connection.execute(_FORGET_BEGUN, _of(server_id))

    @asynccontextmanager
    async def renewing(self, server_id: str) -> AsyncIterator[Renewal | None]:
        """Locks the tokens of a server for a refresh."""
        # A long transaction, since the authorization server is called meanwhile.
        async with self._database.transaction(long=True) as connection:
            row = (await connection.execute(_LOCKED, _of(server_id))).one_or_none()
            if row is None:
                yield None
                return
            tokens = _to_tokens(row)
            yield _Renewal(connection, server_id, tokens)


class _Renewal:
    """Implements `Renewal`."""

    def __init__(
        self, connection: DatabaseConnection, server_id: str, tokens: SealedTokens
    ) -> None:
        self.current = tokens
        self._connection = connection
        self._server_id = server_id

    async def put(self, sealed: bytes) -> SealedTokens:
        """Stores refreshed tokens."""
        bound = {**_of(self._server_id), "sealed": sealed}
        row = (await self._connection.execute(_RENEW, bound)).one()
        return _to_tokens(row)

    async def require_sign_in(self, problem: str) -> None:
        """Records why a new sign-in is needed."""
        await self._connection.execute(_GIVE_UP, {**_of(self._server_id), "problem": problem})


async def _lock_server(connection: DatabaseConnection, server_id: str) -> None:
    if (await connection.execute(mcp_statements.LOCK, _of(server_id))).one_or_none() is None:
        raise server_missing(server_id)


def _to_tokens(row: Any) -> SealedTokens:
    return SealedTokens(bytes(row.sealed), row.version, row.problem)


def _of(server_id: str) -> dict[str, str]:
    return {"project": current_project(), "id": server_id}
