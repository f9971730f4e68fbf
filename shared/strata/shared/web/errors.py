"""Errors of fetching a page; the messages are written for a model or a person."""

from __future__ import annotations

from strata.protocol.errors import InvalidArgumentError, UnavailableError


class ForbiddenUrlError(InvalidArgumentError):
    """The URL, or its destination, may not be reached; a retry does not help."""


class FetchError(UnavailableError):
    """The server could not be reached, was too slow, or sent an unusable answer."""
