"""The error tree of Strata, free of any transport.

Services raise these; one server interceptor turns them into a gRPC status with
``google.rpc`` details, one client wrapper turns those back into the same tree::

    StrataError
    ├── InvalidArgumentError     ├── PermissionDeniedError    ├── UnimplementedError
    ├── NotFoundError            ├── UnauthenticatedError     ├── DataLossError
    ├── AlreadyExistsError       ├── ResourceExhaustedError   └── InternalError
    ├── FailedPreconditionError  ├── UnavailableError
    ├── AbortedError             ├── DeadlineExceededError
    └── OutOfRangeError          └── CancelledError

Each class represents one gRPC status (``status`` is its name). Most have a default reason.
`NotFoundError` and `FailedPreconditionError` have none: the code that raises one must name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar


class Reason(StrEnum):
    """Why a call failed, beyond its status.

    Equals ``strata.api.errors.v1.ErrorReason`` without the ``ERROR_REASON_``
    prefix; the proto defines the status and metadata of each value.
    """

    UNSPECIFIED = "UNSPECIFIED"
    CREDENTIALS_MISSING = "CREDENTIALS_MISSING"
    CREDENTIALS_INVALID = "CREDENTIALS_INVALID"
    SCOPE_MISSING = "SCOPE_MISSING"
    TENANT_MISSING = "TENANT_MISSING"
    INVALID_FIELD = "INVALID_FIELD"
    INVALID_ID = "INVALID_ID"
    INVALID_PAGE_TOKEN = "INVALID_PAGE_TOKEN"  # noqa: S105
    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    AGENT_NOT_FOUND = "AGENT_NOT_FOUND"
    CONVERSATION_NOT_FOUND = "CONVERSATION_NOT_FOUND"
    BLOCK_NOT_FOUND = "BLOCK_NOT_FOUND"
    MESSAGE_NOT_FOUND = "MESSAGE_NOT_FOUND"
    ARCHIVE_NOT_FOUND = "ARCHIVE_NOT_FOUND"
    PASSAGE_NOT_FOUND = "PASSAGE_NOT_FOUND"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND"
    PROJECT_NOT_FOUND = "PROJECT_NOT_FOUND"
    MCP_SERVER_NOT_FOUND = "MCP_SERVER_NOT_FOUND"
    VERSION_NOT_FOUND = "VERSION_NOT_FOUND"
    WINDOW_NOT_FOUND = "WINDOW_NOT_FOUND"
    API_KEY_NOT_FOUND = "API_KEY_NOT_FOUND"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    REINDEX_NOT_FOUND = "REINDEX_NOT_FOUND"
    ORGANIZATION_NOT_FOUND = "ORGANIZATION_NOT_FOUND"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    PROMPT_NOT_FOUND = "PROMPT_NOT_FOUND"
    NAME_TAKEN = "NAME_TAKEN"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    REVISION_MISMATCH = "REVISION_MISMATCH"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    EDIT_CONFLICT = "EDIT_CONFLICT"
    CONVERSATION_BUSY = "CONVERSATION_BUSY"
    BLOCK_READ_ONLY = "BLOCK_READ_ONLY"
    BLOCK_LIMIT_EXCEEDED = "BLOCK_LIMIT_EXCEEDED"
    EDIT_NOT_APPLICABLE = "EDIT_NOT_APPLICABLE"
    SCHEMA_OUTDATED = "SCHEMA_OUTDATED"
    MODEL_NOT_CONFIGURED = "MODEL_NOT_CONFIGURED"
    RUN_FINISHED = "RUN_FINISHED"
    APPROVAL_PENDING = "APPROVAL_PENDING"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    APPROVAL_OUTDATED = "APPROVAL_OUTDATED"
    IN_USE = "IN_USE"
    TOKEN_LIMIT_EXCEEDED = "TOKEN_LIMIT_EXCEEDED"  # noqa: S105
    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    MCP_STDIO_DISABLED = "MCP_STDIO_DISABLED"
    MCP_TOOL_UNUSABLE = "MCP_TOOL_UNUSABLE"
    MCP_SIGN_IN_FAILED = "MCP_SIGN_IN_FAILED"
    AGENT_WAITS = "AGENT_WAITS"
    CHAIN_TOO_LONG = "CHAIN_TOO_LONG"
    GROUP_INCOMPLETE = "GROUP_INCOMPLETE"
    PROMPT_UNUSABLE = "PROMPT_UNUSABLE"
    OVERLOADED = "OVERLOADED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    DEPENDENCY_UNAVAILABLE = "DEPENDENCY_UNAVAILABLE"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    INTERNAL_TOKEN_REFUSED = "INTERNAL_TOKEN_REFUSED"  # noqa: S105
    NOT_BUILT = "NOT_BUILT"
    INTERNAL = "INTERNAL"
    CORRUPT_DATA = "CORRUPT_DATA"
    MODEL_UNAVAILABLE = "MODEL_UNAVAILABLE"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    MODEL_AUTHENTICATION = "MODEL_AUTHENTICATION"
    MODEL_REQUEST_REFUSED = "MODEL_REQUEST_REFUSED"
    MODEL_REPLY_INVALID = "MODEL_REPLY_INVALID"
    SCHEDULE_NOT_FOUND = "SCHEDULE_NOT_FOUND"
    SCHEDULE_FINISHED = "SCHEDULE_FINISHED"
    TIME_ZONE_UNKNOWN = "TIME_ZONE_UNKNOWN"
    WEBHOOK_NOT_FOUND = "WEBHOOK_NOT_FOUND"
    DELIVERY_NOT_FOUND = "DELIVERY_NOT_FOUND"
    SECRETS_NOT_CONFIGURED = "SECRETS_NOT_CONFIGURED"
    RUN_NOT_RECORDABLE = "RUN_NOT_RECORDABLE"
    RUN_EVENTS_DELETED = "RUN_EVENTS_DELETED"
    PARTITION_NOT_CONFIGURED = "PARTITION_NOT_CONFIGURED"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field of a request.

    Attributes:
        field: Path from the request, as in the proto: ``blocks[2].label``.
        description: The problem and the valid form.
    """

    field: str
    description: str


class StrataError(Exception):
    """A failure whose reason and message may be shown to the caller.

    Attributes:
        reason: Machine-readable cause.
        message: One sentence for a person; safe to show outside.
        metadata: The dynamic parts of the message, by name.
        violations: Wrong fields of the request.
        retry_after: Seconds after which a retry may succeed, if known.
        lost: The call ended without an answer of the service: it is unknown whether it had an
            effect.
        unsent: The call had no effect: there was no connection, or the peer refused the call
            before a method began.
        detail: The message of the transport or of the database, with addresses and paths; for the
            log, never for a caller.
    """

    status: ClassVar[str] = "INTERNAL"
    default_reason: ClassVar[Reason] = Reason.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        reason: Reason | None = None,
        metadata: Mapping[str, object] | None = None,
        violations: Iterable[FieldViolation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = self.default_reason if reason is None else reason
        self.metadata: Mapping[str, str] = MappingProxyType(
            {key: str(value) for key, value in (metadata or {}).items()}
        )
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.lost = False
        self.unsent = False
        self.detail = ""

    def __repr__(self) -> str:
        detail = f", detail={self.detail!r}" if self.detail else ""
        return f"{type(self).__name__}({self.message!r}, reason={self.reason.value}{detail})"


class InvalidArgumentError(StrataError):
    """The request is wrong, independent of the state of the system."""

    status = "INVALID_ARGUMENT"
    default_reason = Reason.INVALID_FIELD


def invalid_fields(
    violations: Sequence[FieldViolation], reason: Reason = Reason.INVALID_FIELD
) -> InvalidArgumentError:
    """Returns the error for wrong fields of a request; its message names all of them."""
    problems = "; ".join(f"{violation.field} {violation.description}" for violation in violations)
    return InvalidArgumentError(
        f"The request has wrong fields: {problems}.", reason=reason, violations=violations
    )


def invalid_field(field: str, description: str) -> InvalidArgumentError:
    """Returns the error for one wrong field of a request."""
    return invalid_fields([FieldViolation(field, description)])


class WrongSettingError(InvalidArgumentError):
    """Environment variables have values that are not valid for their settings.

    The message and the violations name the variables, never their values, which may be secret.
    """


class _ReasonNamedError(StrataError):
    """A status without a default reason: the code that raises it must name one."""

    default_reason = Reason.UNSPECIFIED

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        metadata: Mapping[str, object] | None = None,
        violations: Iterable[FieldViolation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(
            message,
            reason=reason,
            metadata=metadata,
            violations=violations,
            retry_after=retry_after,
        )


class NotFoundError(_ReasonNamedError):
    """The named object does not exist, or not in this project."""

    status = "NOT_FOUND"


class AlreadyExistsError(StrataError):
    """The name or id is taken."""

    status = "ALREADY_EXISTS"
    default_reason = Reason.NAME_TAKEN


class FailedPreconditionError(_ReasonNamedError):
    """The request is valid but the present state does not allow it; a retry alone will not help."""

    status = "FAILED_PRECONDITION"


class AbortedError(StrataError):
    """A concurrent change took effect first; read again and retry at a higher level."""

    status = "ABORTED"
    default_reason = Reason.REVISION_MISMATCH


class OutOfRangeError(StrataError):
    """A position lies outside what exists."""

    status = "OUT_OF_RANGE"
    default_reason = Reason.INVALID_FIELD


class PermissionDeniedError(StrataError):
    """The caller is known but may not do this."""

    status = "PERMISSION_DENIED"
    default_reason = Reason.SCOPE_MISSING


class UnauthenticatedError(StrataError):
    """The caller could not be authenticated."""

    status = "UNAUTHENTICATED"
    default_reason = Reason.CREDENTIALS_INVALID


class ResourceExhaustedError(StrataError):
    """A limit is reached: load, quota, size."""

    status = "RESOURCE_EXHAUSTED"
    default_reason = Reason.OVERLOADED


class UnavailableError(StrataError):
    """A dependency cannot be reached now; an idempotent call may be repeated."""

    status = "UNAVAILABLE"
    default_reason = Reason.DEPENDENCY_UNAVAILABLE


class DeadlineExceededError(StrataError):
    """The time for the call has passed; the outcome is unknown."""

    status = "DEADLINE_EXCEEDED"
    default_reason = Reason.DEADLINE_EXCEEDED


class CancelledError(StrataError):
    """The other side cancelled. `asyncio.CancelledError` is a cancellation on this side."""

    status = "CANCELLED"
    default_reason = Reason.CANCELLED


class UnimplementedError(StrataError):
    """The contract declares the method, but this release does not implement it."""

    status = "UNIMPLEMENTED"
    default_reason = Reason.NOT_BUILT


class DataLossError(StrataError):
    """Stored data contradicts itself."""

    status = "DATA_LOSS"
    default_reason = Reason.CORRUPT_DATA


class InternalError(StrataError):
    """A defect of Strata; the message shows no internals."""

    status = "INTERNAL"
    default_reason = Reason.INTERNAL


ERRORS: tuple[type[StrataError], ...] = (
    InvalidArgumentError,
    NotFoundError,
    AlreadyExistsError,
    FailedPreconditionError,
    AbortedError,
    OutOfRangeError,
    PermissionDeniedError,
    UnauthenticatedError,
    ResourceExhaustedError,
    UnavailableError,
    DeadlineExceededError,
    CancelledError,
    UnimplementedError,
    DataLossError,
    InternalError,
)
"""One class per status; the tables of `strata.protocol.status` are made from it."""


def is_transient(error: StrataError) -> bool:
    """Returns whether the same call may succeed later: the service is down or overloaded."""
    if isinstance(error, ResourceExhaustedError):
        return error.reason is Reason.OVERLOADED
    return isinstance(error, UnavailableError | DeadlineExceededError | CancelledError)
