"""The context of the call being served: caller, ids and deadline.

The server interceptors set it for the duration of one call; any code below can read it. It is not
passed to another service automatically: the client side sends it as metadata (token, request id,
traceparent), and the server side rebuilds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from strata.protocol.errors import PermissionDeniedError, Reason, UnauthenticatedError
from strata.shared.partitions import DEFAULT_PARTITION
from strata.shared.tracing.spans import Span


@dataclass(frozen=True, slots=True)
class Caller:
    """A verified identity.

    Attributes:
        organization_id: The organization that owns the project.
        project_id: The tenant; every row that is read or written belongs to it. Empty for an
          organization key, which has no access to rows of tenants.
        principal: Id of the API key or user.
        scopes: The scopes of the caller.
        run_id: The run on whose behalf the call is made, if any.
        token: The signed internal token, forwarded on outgoing calls; never logged.
        partition: The partition that the project is placed on.
    """

    organization_id: str
    project_id: str
    principal: str
    scopes: frozenset[str] = frozenset()
    run_id: str | None = None
    token: str = field(default="", repr=False)
    partition: str = DEFAULT_PARTITION


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of the call that is being served.

    Attributes:
        caller: The verified identity; None before authentication and in background work.
        request_id: Identifies the call in logs; the same on every hop.
        trace_id: 32 hex digits of the W3C trace.
        deadline: Time of the running event loop (`loop.time()`) at which the caller stops
            waiting; None for no deadline.
        span: The span of the work under way; None if it is not traced here.
        sampled: Whether the spans of the trace are exported; also set where this process has
            no tracer.
    """

    caller: Caller | None = None
    request_id: str = ""
    trace_id: str = ""
    deadline: float | None = None
    span: Span | None = None
    sampled: bool = False

    def remaining(self) -> float | None:
        """Returns the seconds left until the deadline (negative when past), None without one."""
        if self.deadline is None:
            return None
        return self.deadline - asyncio.get_running_loop().time()

    # Spelled out: dataclasses.replace is slow enough to show in every call.
    def with_caller(self, caller: Caller) -> RequestContext:
        """Returns the same context with this caller."""
        return RequestContext(
            caller, self.request_id, self.trace_id, self.deadline, self.span, self.sampled
        )

    def with_deadline(self, deadline: float | None) -> RequestContext:
        """Returns the same context with this deadline."""
        return RequestContext(
            self.caller, self.request_id, self.trace_id, deadline, self.span, self.sampled
        )

    def with_span(self, span: Span) -> RequestContext:
        """Returns the same context with this span."""
        return RequestContext(
            self.caller, self.request_id, self.trace_id, self.deadline, span, self.sampled
        )


_EMPTY = RequestContext()
_current: ContextVar[RequestContext] = ContextVar("strata_request", default=_EMPTY)
_background_project: ContextVar[str] = ContextVar("strata_background_project", default="")


current: Callable[[], RequestContext] = _current.get
"""Returns the context of the call being served, an empty one outside of any call."""


class _Use:
    """A class and not a generator: three interceptors of every call have such a block."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    def __enter__(self) -> RequestContext:
        self._token = _current.set(self._context)
        return self._context

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)


use: Callable[[RequestContext], AbstractContextManager[RequestContext]] = _Use
"""Makes a context the current one for the block and everything awaited in it."""


def require_caller() -> Caller:
    """Returns the verified caller.

    Raises:
        UnauthenticatedError: There is none (``CREDENTIALS_MISSING``).
    """
    caller = _current.get().caller
    if caller is None:
        raise UnauthenticatedError(
            "This call needs credentials.", reason=Reason.CREDENTIALS_MISSING
        )
    return caller


def current_project() -> str:
    """Returns the id of the project (the tenant) the call acts in.

    Raises:
        UnauthenticatedError: There is no verified caller (``CREDENTIALS_MISSING``).
    """
    return require_caller().project_id


def calling_project() -> str:
    """Returns the project of the call being served, or of background work; empty without one."""
    caller = current().caller
    return caller.project_id if caller is not None else _background_project.get()


@contextmanager
def background_work_of(project_id: str) -> Iterator[None]:
    """Makes a project the `calling_project` of work that no call has started."""
    token = _background_project.set(project_id)
    try:
        yield
    finally:
        _background_project.reset(token)


def require_scope(scope: str) -> Caller:
    """Returns the caller if it has the scope.

    Raises:
        UnauthenticatedError: There is no verified caller.
        PermissionDeniedError: The scope is missing (``SCOPE_MISSING``).
    """
    caller = require_caller()
    if scope not in caller.scopes:
        raise PermissionDeniedError(
            f"The key lacks the scope {scope!r}.",
            reason=Reason.SCOPE_MISSING,
            metadata={"scope": scope},
        )
    return caller
