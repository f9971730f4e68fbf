"""Maps failures of the database to the errors that callers see."""

from __future__ import annotations

import asyncpg

from strata.protocol.errors import (
    AbortedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)

_RETRY_AFTER_SECONDS = 0.5
_MAX_DETAIL = 500

_LOST = (
    # asyncpg usually reports a dying server as an error of the driver's protocol state.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleSessionTimeoutError,
    ConnectionError,
)
# The server answers but cannot work now: out of disk, memory or connections, read-only (a standby
# that has not been promoted yet), starting or stopping. All of these are temporary.
_PASSING_STATES = ("53", "57P01", "57P02", "57P03", "57P05", "58030")
_READ_ONLY = "25006"
_CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
# The server or the driver holds a form of a statement that does not fit the schema any more.
_OUTDATED = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
# PostgreSQL stores every character but NUL, in text and in jsonb.
_UNSTORABLE = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
)


class MissingTenantError(InternalError):
    """A transaction was requested without a project: a defect of the caller."""

    default_reason = Reason.TENANT_MISSING


def is_lost_connection(error: BaseException) -> bool:
    """Returns whether the connection failed, and not the statement."""
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error)
    return isinstance(error, _LOST)


def was_not_sent(error: BaseException) -> bool:
    """Returns whether the connection failed before the server could begin the statement."""
    if isinstance(error, asyncpg.InterfaceError):
        # The driver's check before it sends.
        return "connection is closed" in str(error)
    # The server sends this to a session that waits for its next statement, and reads none after it.
    # If the connection breaks while the driver writes a statement, it is the cause of that error.
    cause = error
    if isinstance(error, asyncpg.ConnectionDoesNotExistError):
        cause = error.__cause__ or error
    return isinstance(cause, asyncpg.IdleSessionTimeoutError)


def is_outdated(error: BaseException) -> bool:
    """Returns whether a change of the schema has made a prepared statement invalid.

    The statement was refused, so it took no effect; it succeeds when it is prepared again.
    """
    return isinstance(error, _OUTDATED)


def unavailable(detail: str = "") -> UnavailableError:
    """Returns the error of a database that cannot be reached.

    Args:
        detail: See `unable`.
    """
    return _passing("the database cannot be reached now", detail)


def pool_exhausted() -> ResourceExhaustedError:
    """Returns the error of a pool in which no connection became free in time."""
    return ResourceExhaustedError(
        "every database connection is busy", retry_after=_RETRY_AFTER_SECONDS
    )


def unable(detail: str) -> UnavailableError:
    """Returns the error of a database that answers but cannot serve statements now.

    Args:
        detail: The message of the database or the driver, which names the cause in the log.
    """
    return _passing("the database cannot do its work now", detail)


def _passing(message: str, detail: str) -> UnavailableError:
    error = UnavailableError(
        message, retry_after=_RETRY_AFTER_SECONDS, metadata={"dependency": "postgres"}
    )
    error.detail = detail[:_MAX_DETAIL]
    return error


def as_strata_error(error: BaseException, *, read_only: bool = False) -> StrataError | None:
    """Returns the error that a caller should see; None if it did not come from the database.

    Violated constraints also give None: the store handles them, because it defines their meaning.

    Args:
        error: The error that was raised.
        read_only: The transaction was started as read-only, so that a refused write is a defect
            and not a state of the server.
    """
    if is_lost_connection(error):
        return unavailable(str(error))
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith(_PASSING_STATES) or (state == _READ_ONLY and not read_only):
        return unable(str(error))
    if isinstance(error, _CONFLICT):
        return AbortedError(
            "a concurrent change took effect first; try again",
            reason=Reason.EDIT_CONFLICT,
            retry_after=0.0,
        )
    if isinstance(error, asyncpg.QueryCanceledError):
        return DeadlineExceededError("a database statement took too long")
    if isinstance(error, _UNSTORABLE):
        # For fields that the service does not check itself; such a check would name the field.
        return InvalidArgumentError("a text of the request contains the character NUL")
    return None
