"""Requests to the proxy: read strictly, and written anew for the server that they are for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.url_guard import Target, parse_url

_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rf"({_WORD}) (\S+) HTTP/1\.[01]")
_FIELD = re.compile(rf"({_WORD}):[ \t]*([^\r\n\0]*)")
_AUTHORITY = re.compile(r"[^/?#@\\]+:[0-9]{1,5}")
_LENGTH = re.compile(r"[0-9]{1,15}")
# Of one connection and not of the request (RFC 9110, 7.6.1), or written by the proxy itself.
_DROPPED = frozenset(
    (
        *("connection", "proxy-connection", "proxy-authorization", "proxy-authenticate", "te"),
        *("keep-alive", "trailer", "upgrade", "host"),
    )
)


class ProxyError(Exception):
    """A request that is not carried out.

    Attributes:
        status: What the tool is answered with the words.
    """

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the proxy.

    Attributes:
        target: Where it is to go.
        tunnel: A connection to be passed through as it is (CONNECT).
        head: What the server is sent first; empty for a tunnel.
        body: Bytes that follow it.
    """

    target: Target
    tunnel: bool
    head: bytes = b""
    body: int = 0


def read_request(data: bytes) -> Request:
    """Reads the head of a request.

    Raises:
        ProxyError: It is malformed, or not of a kind that is forwarded.
        ForbiddenUrlError: Its target is none that may be reached.
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
            raise ProxyError(HTTPStatus.BAD_REQUEST, "CONNECT is written in capitals.")
        if not _AUTHORITY.fullmatch(where):
            raise ProxyError(HTTPStatus.BAD_REQUEST, "CONNECT wants a host and a port.")
        return Request(parse_url(f"https://{where}"), tunnel=True)
    if where[:1] == "/" or where == "*":
        raise ProxyError(HTTPStatus.BAD_REQUEST, "A proxy is asked for full URLs.")
    target = parse_url(where)
    if target.scheme != "http":
        raise ProxyError(HTTPStatus.BAD_REQUEST, "https goes through CONNECT.")
    body = _body(fields)
    named = {
        name.strip().lower()
        for key, value in fields
        if key.lower() == "connection"
        for name in value.split(",")
    } - {"content-length"}
    written = [
        f"{method} {target.path} HTTP/1.1",
        # Not what the tool says: one server may have many hosts.
        f"Host: {target.authority}",
        *(f"{key}: {value}" for key, value in fields if key.lower() not in _DROPPED | named),
        "Connection: close",
    ]
    head = "\r\n".join([*written, "", ""]).encode("latin-1")
    return Request(target, tunnel=False, head=head, body=body)


def _body(fields: list[tuple[str, str]]) -> int:
    # White space is what HTTP calls so, and not all that Unicode does: servers read it strictly.
    lengths = {value.strip(" \t") for key, value in fields if key.lower() == "content-length"}
    if any(key.lower() == "transfer-encoding" for key, _ in fields):
        # Where a body ends must be beyond doubt, or what follows is another request.
        raise ProxyError(
            HTTPStatus.LENGTH_REQUIRED, "A body to http is sent with a Content-Length, or to https."
        )
    if not lengths:
        return 0
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise ProxyError(HTTPStatus.BAD_REQUEST, "The Content-Length is malformed.")
    return int(length)


def check_name(target: Target) -> None:
    """Refuses addresses, however they are written.

    Raises:
        ForbiddenUrlError: It is one.
    """
    if target.literal is not None:
        raise ForbiddenUrlError("Hosts are reached by their names, not by addresses.")
