"""Parses requests to the proxy strictly, and rewrites them for the target server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import UrlTarget, parse_url

_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rf"({_WORD}) (\S+) HTTP/1\.[01]")
_FIELD = re.compile(rf"({_WORD}):[ \t]*([^\r\n\0]*)")
_AUTHORITY = re.compile(r"[^/?#@\\]+:[0-9]{1,5}")
_LENGTH = re.compile(r"[0-9]{1,15}")
# Header fields of a single connection (RFC 9110, 7.6.1), and those that the proxy writes itself.
_DROPPED = frozenset(
    (
        *("connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te"),
        *("keep-alive", "trailer", "upgrade", "host"),
    )
)


class ProxyError(Exception):
    """The proxy refuses a request; the tool gets the message with a status.

    Attributes:
        status: HTTP status of the response.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request to the proxy.

    Attributes:
        target: The server.
        tunnel: Whether bytes are passed through unchanged (CONNECT).
        head: The rewritten head for the server; empty for a tunnel.
        body: Length of the body in bytes.
    """

    target: UrlTarget
    tunnel: bool
    head: bytes = b""
    body: int = 0


def read_request(data: bytes) -> ProxyRequest:
    """Parses the head of a request.

    Raises:
        ProxyError: The request is malformed or of a kind that is not forwarded.
        ForbiddenUrlError: The target is not allowed.
    """
    lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    first = _LINE.fullmatch(lines[0])
    if first is None:
        raise ProxyError(HTTPStatus.BAD_REQUEST, "The request line is malformed.")
    method, where = first[1], first[2]
    fields: list[tuple[str, str]] = []
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ProxyError(HTTPStatus.BAD_REQUEST, "A header field is malformed.")
        fields.append((field[1], field[2]))
    if method.upper() == "CONNECT":
        if method != "CONNECT":
            raise ProxyError(HTTPStatus.BAD_REQUEST, "The method CONNECT must be in capitals.")
        if not _AUTHORITY.fullmatch(where):
            raise ProxyError(HTTPStatus.BAD_REQUEST, "CONNECT needs a host and a port.")
        return ProxyRequest(parse_url(f"https://{where}"), tunnel=True)
    if where[:1] == "/" or where == "*":
        raise ProxyError(HTTPStatus.BAD_REQUEST, "A request to a proxy must have a full URL.")
    target = parse_url(where)
    if target.scheme != "http":
        raise ProxyError(HTTPStatus.BAD_REQUEST, "Use CONNECT for https.")
    body = _body(fields)
    named = {
        name.strip().lower()
        for key, value in fields
        if key.lower() == "connection"
        for name in value.split(",")
    } - {"content-length"}
    written = [
        f"{method} {target.path} HTTP/1.1",
        # Not the tool's Host field: a server may have other hosts that are not allowed.
        f"Host: {target.authority}",
        *(f"{key}: {value}" for key, value in fields if key.lower() not in _DROPPED | named),
        "Connection: close",
    ]
    head = "\r\n".join([*written, "", ""]).encode("latin-1")
    return ProxyRequest(target, tunnel=False, head=head, body=body)


def _body(fields: list[tuple[str, str]]) -> int:
    # Strips only white space of HTTP, not of Unicode: servers parse strictly.
    lengths = {value.strip(" \t") for key, value in fields if key.lower() == "content-length"}
    if any(key.lower() == "transfer-encoding" for key, _ in fields):
        # The end of the body must be unambiguous, or a second request could follow (smuggling).
        raise ProxyError(
            HTTPStatus.LENGTH_REQUIRED,
            "A request body over http needs a Content-Length; or use https.",
        )
    if not lengths:
        return 0
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise ProxyError(HTTPStatus.BAD_REQUEST, "The Content-Length is malformed.")
    return int(length)


def check_name(target: UrlTarget) -> None:
    """Checks that a target is a name and not an IP address in any notation.

    Raises:
        ForbiddenUrlError: The target is an IP address.
    """
    if target.literal is not None:
        raise ForbiddenUrlError("Hosts are reached by their names, not by addresses.")
