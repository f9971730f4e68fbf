"""Strata for Python programs.

    async with strata.client.connect() as client:
        async for event in client.send(agent_id, "Hello!"):
            ...

Programs without an event loop use `connect_sync`. Calls raise the errors of
`strata.protocol.errors`, which this package exports too. Names are imported at their first use,
because the command line shares the errors and must not wait for gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.client.client_tools import ClientTools, Untrusted
    from strata.client.connection import Client, connect
    from strata.client.errors import ToolSourceError, UnreachableError
    from strata.client.images import image
    from strata.client.replies import RunFailedError, text_of
    from strata.client.run_follower import (
        BackOff,
        ConnectionBack,
        ConnectionLost,
        RunFollower,
        Update,
    )
    from strata.client.services import new_request_id
    from strata.client.source import tool_source
    from strata.client.sync import SyncClient, connect_sync
    from strata.client.tools import Effect, returned
    from strata.protocol.errors import (
        AbortedError,
        AlreadyExistsError,
        CancelledError,
        DataLossError,
        DeadlineExceededError,
        FailedPreconditionError,
        FieldViolation,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        OutOfRangeError,
        PermissionDeniedError,
        Reason,
        ResourceExhaustedError,
        StrataError,
        UnauthenticatedError,
        UnavailableError,
        UnimplementedError,
    )

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "BackOff",
    "CancelledError",
    "Client",
    "ClientTools",
    "ConnectionBack",
    "ConnectionLost",
    "DataLossError",
    "DeadlineExceededError",
    "Effect",
    "FailedPreconditionError",
    "FieldViolation",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "Reason",
    "ResourceExhaustedError",
    "RunFailedError",
    "RunFollower",
    "StrataError",
    "SyncClient",
    "ToolSourceError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnreachableError",
    "Untrusted",
    "Update",
    "connect",
    "connect_sync",
    "image",
    "new_request_id",
    "returned",
    "text_of",
    "tool_source",
]

_HOMES = {
    "ClientTools": "client_tools",
    "Untrusted": "client_tools",
    "Client": "connection",
    "connect": "connection",
    "ToolSourceError": "errors",
    "UnreachableError": "errors",
    "RunFailedError": "replies",
    "text_of": "replies",
    "BackOff": "run_follower",
    "ConnectionBack": "run_follower",
    "ConnectionLost": "run_follower",
    "RunFollower": "run_follower",
    "Update": "run_follower",
    "image": "images",
    "new_request_id": "services",
    "tool_source": "source",
    "SyncClient": "sync",
    "connect_sync": "sync",
    "Effect": "tools",
    "returned": "tools",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}" if name in _HOMES else "strata.protocol.errors"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
