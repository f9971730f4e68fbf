"""Errors of MCP sessions; the messages are shown to models and people."""

from __future__ import annotations


class ConnectError(Exception):
    """A server cannot be reached or used; the request was not sent."""


class LostError(Exception):
    """A server ended or did not answer in time after the request was sent; it may have acted."""


class RefusedError(Exception):
    """A server refused a request."""
