"""Requests to the proxy of a call, and their rewritten form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.protocol.errors import StrataError
from strata.tool_runner.egress.requests import ProxyError, read_request


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def test_a_request_is_rewritten_for_its_host() -> None:
    request = read_request(
        head(
            "POST http://API.example.com./a%20b?c#d HTTP/1.1",
            "Host: other.example.com",
            "X-Hop: 1",
            "Content-Length: 5",
            "Connection: keep-alive, X-Hop, Content-Length",
            "Proxy-Authorization: Basic eDp5",
            "Accept: */*",
        )
    )
    assert not request.tunnel
    assert request.body == 5
    assert request.head == head(
        "POST /a%20b?c HTTP/1.1",
        "Host: api.example.com",
        "Content-Length: 5",
        "Accept: */*",
        "Connection: close",
    )


def test_the_head_of_a_tunnel_request_is_not_forwarded() -> None:
    request = read_request(head("CONNECT api.example.com:443 HTTP/1.1", "Host: whatever"))
    assert (request.tunnel, request.head) == (True, b"")
    assert (request.target.host, request.target.port) == ("api.example.com", 443)


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1", "Host: api.example.com"],
        ["OPTIONS * HTTP/1.1"],
        ["GET https://api.example.com/ HTTP/1.1"],
        ["GET ftp://api.example.com/ HTTP/1.1"],
        ["GET http://api.example.com/ HTTP/2"],
        ["GET  http://api.example.com/ HTTP/1.1"],
        ["GET http://u:p@api.example.com/ HTTP/1.1"],
        ["GET http://api.example.com\\@b.com/ HTTP/1.1"],
        ["CONNECT api.example.com HTTP/1.1"],
        ["CONNECT https://api.example.com:443 HTTP/1.1"],
        ["CONNECT u@api.example.com:443 HTTP/1.1"],
        ["CONNECT api.example.com:99999 HTTP/1.1"],
        ["GET http://a.b/ HTTP/1.1", "Transfer-Encoding: chunked"],
        ["GET http://a.b/ HTTP/1.1", "Content-Length: 1", "content-length: 2"],
        ["GET http://a.b/ HTTP/1.1", "Content-Length: +1"],
        ["GET http://a.b/ HTTP/1.1", "Content-Length: 1, 1"],
        ["GET http://a.b/ HTTP/1.1", "Host : x"],
        ["GET http://a.b/ HTTP/1.1", " folded: x"],
        ["GET http://a.b/ HTTP/1.1", "X: a\nHost: b"],
        ["GET http://a.b/ HTTP/1.1", "X: a\rHost: b"],
    ],
)
def test_ambiguous_request_heads_are_refused(lines: list[str]) -> None:
    with pytest.raises((ProxyError, StrataError)):
        read_request(head(*lines))


@security_examples
@given(st.binary(max_size=200))
def test_any_bytes_result_in_a_request_or_an_error(data: bytes) -> None:
    try:
        request = read_request(b"GET http://a.b/ HTTP/1.1\r\n" + data + b"\r\n\r\n")
    except (ProxyError, StrataError):
        return
    assert request.head.count(b"\r\n\r\n") == 1
    assert request.head.startswith(b"GET / HTTP/1.1\r\nHost: a.b\r\n")
    assert request.head.lower().count(b"\r\nhost:") == 1
