"""The way to a server, as a session sees it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Streams:
    """The way to a server.

    Attributes:
        incoming: Messages of the server.
        outgoing: Messages for it.
        told: What else is known of a failure, such as the program's last words.
        status: Status of the last answer over HTTP; 0 without one.
        ended: Whether the server is known to have ended, so that nothing can be sent.
    """

    incoming: Any
    outgoing: Any
    told: Callable[[], str]
    status: Callable[[], int] = int
    ended: Callable[[], bool] = bool


Opener = Callable[[], AbstractAsyncContextManager[Streams]]


def status_text(status: int) -> str:
    """``401 Unauthorized``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
