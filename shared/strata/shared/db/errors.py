"""Maps failures of the database to the errors that callers see."""

from __future__ import annotations

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

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


def driver_error(error: BaseException) -> BaseException:
    """Returns the driver's error, unwrapped from SQLAlchemy's."""
    if not isinstance(error, DBAPIError) or error.orig is None:
        return error
    if isinstance(error.orig, asyncpg.PostgresError | asyncpg.InterfaceError):
        return error.orig
    # A statement that passed SQLAlchemy.
    return error.orig.__cause__ or error.orig


def is_lost_connection(error: BaseException) -> bool:
    """Returns whether the connection failed, and not the statement."""
    cause = driver_error(error)
    if isinstance(cause, asyncpg.InterfaceError):
        return "closed" in str(cause)
    return isinstance(cause, _LOST)


def was_not_sent(error: BaseException) -> bool:
    """Returns whether the connection failed before the server could begin the statement."""
    cause = driver_error(error)
    if isinstance(cause, asyncpg.InterfaceError):
        # The driver's check before it sends.
        return "connection is closed" in str(cause)
    # The server sends this to a session that waits for its next statement, and reads none after it.
    # If the connection breaks while the driver writes a statement, it is the cause of that error.
    if isinstance(cause, asyncpg.ConnectionDoesNotExistError):
        cause = cause.__cause__ or cause
    return isinstance(cause, asyncpg.IdleSessionTimeoutError)


def is_outdated(error: BaseException) -> bool:
    """Returns whether a change of the schema has made a prepared statement invalid.

    The statement was refused, so it took no effect; it succeeds when it is prepared again.
    """
    return isinstance(driver_error(error), _OUTDATED)


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
    if isinstance(error, PoolTimeoutError):
        return pool_exhausted()
    cause = driver_error(error)
    if is_lost_connection(error):
        return unavailable(str(cause))
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith(_PASSING_STATES) or (state == _READ_ONLY and not read_only):
        return unable(str(cause))
    if isinstance(cause, _CONFLICT):
        return AbortedError(
            "a concurrent change took effect first; try again",
            reason=Reason.EDIT_CONFLICT,
            retry_after=0.0,
        )
    if isinstance(cause, asyncpg.QueryCanceledError):
        return DeadlineExceededError("a database statement took too long")
    if isinstance(cause, _UNSTORABLE):
        # For fields that the service does not check itself; such a check would name the field.
        return InvalidArgumentError("a text of the request contains the character NUL")
    return None
