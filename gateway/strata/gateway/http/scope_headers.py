"""Headers of a request in the scope of an ASGI application."""

from __future__ import annotations

from strata.shared.http_listener import Scope


def header_of(scope: Scope, name: bytes) -> str | None:
    """Returns the value of a header, by its lower-case name; None if it is missing."""
    for header, value in scope["headers"]:
        if header == name:
            text: str = value.decode("latin-1")
            return text
    return None


def with_header(scope: Scope, name: bytes, value: bytes) -> Scope:
    """Returns a request in which a header has one value.

    Args:
        scope: The request.
        name: The lower-case name of the header.
        value: Its value.
    """
    other_headers = [header for header in scope["headers"] if header[0] != name]
    return {**scope, "headers": [*other_headers, (name, value)]}
