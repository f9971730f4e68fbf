"""What goes wrong on the way to a page; the messages are written for a model or a person."""

from __future__ import annotations

from strata.shared.errors import InvalidArgumentError, UnavailableError


class ForbiddenUrlError(InvalidArgumentError):
    """The URL, or where it leads, may not be reached; trying again does not help."""


class FetchError(UnavailableError):
    """The server could not be reached, was too slow or answered something unusable."""
