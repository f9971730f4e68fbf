"""What goes wrong between us and a server; the words are shown to models and people."""

from __future__ import annotations


class ConnectError(Exception):
    """A server cannot be reached or spoken with; it has been asked nothing."""


class LostError(Exception):
    """A server went away, or did not answer in time, after it had been asked: it may have acted."""


class RefusedError(Exception):
    """A server answered that it will not do what it was asked."""
