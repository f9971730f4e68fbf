"""The streams of a session, independent of the transport."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams between a session and a server.

    Attributes:
        incoming: Messages from the server.
        outgoing: Messages to the server.
        details: Returns details of a failure, such as the program's error output, or "".
        status: Returns the HTTP status of the last response; 0 without one.
        ended: Returns whether the server has ended, so that nothing can be sent.
    """

    incoming: Any
    outgoing: Any
    details: Callable[[], str]
    status: Callable[[], int] = int
    ended: Callable[[], bool] = bool


Opener = Callable[[], AbstractAsyncContextManager[Streams]]


def status_text(status: int) -> str:
    """Returns an HTTP status with its phrase: ``401 Unauthorized``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
