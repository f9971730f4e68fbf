"""Failures of the database as the errors that a caller should see."""

from __future__ import annotations

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from strata.shared.errors import (
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

_LOST = (
    # asyncpg tells a dying server mostly as an error of its own protocol state.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    ConnectionError,
)
# The server is there and cannot work now: it is full, out of memory or connections, read-only (a
# standby that has not been promoted yet), starting or stopping. All of it passes without us.
_PASSING_STATES = ("53", "57P01", "57P02", "57P03", "57P05", "58030")
_READ_ONLY = "25006"
_CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
# PostgreSQL stores every character but NUL, in text and in jsonb.
_UNSTORABLE = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
)


class MissingTenantError(InternalError):
    """A transaction was asked for without a project: a defect of the caller."""

    default_reason = Reason.TENANT_MISSING


def driver_error(error: BaseException) -> BaseException:
    """Returns what the driver raised, out of SQLAlchemy's wrapping."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def is_lost_connection(error: BaseException) -> bool:
    """Returns whether the connection, and not the statement, is what failed."""
    cause = driver_error(error)
    if isinstance(cause, asyncpg.InterfaceError):
        return "closed" in str(cause)
    return isinstance(cause, _LOST)


def unavailable() -> UnavailableError:
    """Returns the error of a database that cannot be reached."""
    return UnavailableError(
        "the database cannot be reached now",
        retry_after=_RETRY_AFTER_SECONDS,
        metadata={"dependency": "postgres"},
    )


def unable() -> UnavailableError:
    """Returns the error of a database that answers, and that can neither be written nor asked."""
    return UnavailableError(
        "the database cannot do its work now",
        retry_after=_RETRY_AFTER_SECONDS,
        metadata={"dependency": "postgres"},
    )


def as_strata_error(error: BaseException, *, read_only: bool = False) -> StrataError | None:
    """Returns the error a caller should see; None if this is not the database's to explain.

    Args:
        error: What was raised.
        read_only: The transaction was begun as a read-only one: a write in it is our defect, and
            not the state of the server.

    Violated constraints are left to the store that knows what they mean.
    """
    if isinstance(error, PoolTimeoutError):
        return ResourceExhaustedError(
            "every database connection is busy", retry_after=_RETRY_AFTER_SECONDS
        )
    if is_lost_connection(error):
        return unavailable()
    cause = driver_error(error)
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith(_PASSING_STATES) or (state == _READ_ONLY and not read_only):
        return unable()
    if isinstance(cause, _CONFLICT):
        return AbortedError(
            "a concurrent change won; try again", reason=Reason.EDIT_CONFLICT, retry_after=0.0
        )
    if isinstance(cause, asyncpg.QueryCanceledError):
        return DeadlineExceededError("a database statement took too long")
    if isinstance(cause, _UNSTORABLE):
        # Services name the field where they check it; this is for those they do not check.
        return InvalidArgumentError("a text of the request holds the character NUL")
    return None
