# ruff: noqa: E501 - lists of attacks
"""Attacks on network access and requirements: unusual forms are refused."""

from __future__ import annotations

import encodings
import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.protocol.errors import StrataError
from strata.shared.web.addresses import is_allowed, read_networks
from strata.shared.web.errors import ForbiddenUrlError
from strata.shared.web.host_patterns import listed
from strata.shared.web.host_patterns import problem_of as problem_of_host
from strata.shared.web.url_guard import Guard, parse_url
from strata.tool_execution.builtin.web_texts import encoding_of
from strata.tool_execution.packages.requirements import normal, problem_of
from strata.tool_runner.egress.requests import ProxyError, check_name, read_request
from web_servers import Names

LISTED = ("api.example.com", "*.example.org")


def refused(first: str, *fields: str) -> bool:
    """Returns whether a request is refused or leads only to an allowed host."""
    data = "\r\n".join([first, *fields, "", ""]).encode("latin-1")
    try:
        request = read_request(data)
        check_name(request.target)
    except (ProxyError, StrataError):
        return True
    return not listed(request.target.host, LISTED)


@pytest.mark.parametrize(
    "target",
    [
        "api.example.com:443@10.0.0.1:443", "api.example.com\\@10.0.0.1:443", "10.0.0.1#@api.example.com:443",
        "10.0.0.1?api.example.com:443", "10.0.0.1/api.example.com:443", "api.example.com%00.evil.net:443",
        "api.example.com%2eevil.net:443", "%61pi.example.com:443", "api.example.com.evil.net:443",
        "api.example.com..:443", ".api.example.com:443", "api..example.com:443", "-api.example.com:443",
        "api.example.com:", "api.example.com:+443", "api.example.com:-1", "api.example.com: 443",
        "api.example.com:0", "api.example.com:65536", "api.example.com:0x1bb", "api.example.com:4 43",
        "api.example.com:443:80", "api.example.com:\xb2", "[api.example.com]:443", "[::1:443", "::1:443",
        "[::ffff:10.0.0.1]:443", "[::10.0.0.1]:443", "[64:ff9b::a00:1]:443", "[2002:a00:1::]:443",
        "[fe80::1%25lo]:443", "[fe80::1%lo]:443", "0:443", "0x0a000001:443", "012.0.0.1:443", "10.1:443",
        "10.0.0.0x1:443", "0xa.0x0.0x0.0x1:443", "167772161:443", "127.0.0.1.:443", "0.0.0.0:443",
        "localhost:443", "localhost.:443", "api\xadexample.com:443", "\xe0pi.example.com:443",
        "api.example.com\x00:443", "api.example.com\t:443", "*:443", "*.example.org:443", "example.org:443",
        "xexample.org:443", "a.example.org.evil.net:443", "xn--:443", "xn--a-.example.org:443", "a" * 70 + ".example.org:443",
    ],
)  # fmt: skip
def test_no_spelling_of_a_tunnel_target_bypasses_the_check(target: str) -> None:
    assert refused(f"CONNECT {target} HTTP/1.1")


@pytest.mark.parametrize(
    ("first", "fields"),
    [
        ("connect http://api.example.com/ HTTP/1.1", []),
        ("Connect api.example.com:443 HTTP/1.1", []),
        ("GET HTTP://api.example.com@10.0.0.1/ HTTP/1.1", []),
        ("GET http://api.example.com:80:81/ HTTP/1.1", []),
        ("GET http:api.example.com/ HTTP/1.1", []),
        ("GET http:///api.example.com/ HTTP/1.1", []),
        ("GET http:\\\\api.example.com/ HTTP/1.1", []),
        ("GET //api.example.com/ HTTP/1.1", []),
        ("GET h2c://api.example.com/ HTTP/1.1", []),
        ("GET ws://api.example.com/ HTTP/1.1", []),
        ("GET gopher://api.example.com/ HTTP/1.1", []),
        ("GET file:///etc/passwd HTTP/1.1", []),
        ("GET data:text/plain,x HTTP/1.1", []),
        ("GET api.example.com:80 HTTP/1.1", []),
        ("GET http://api.example.com/ HTTP/0.9", []),
        ("GET http://api.example.com/", []),
        ("GET http://api.example.com/ HTTP/1.1 HTTP/1.1", []),
        ("GET http://api.example.com/\x00 HTTP/1.1", []),
        ("GET\thttp://api.example.com/\tHTTP/1.1", []),
        ("GET http://api.example.com/\nHost:x HTTP/1.1", []),
        (" GET http://api.example.com/ HTTP/1.1", []),
        ("PRI * HTTP/2.0", ["", "SM"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 5\xa0"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 5\x0b"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 5\x85"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: \x1c5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 5;5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 0x5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 5", "Content-Length: 05"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length:"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length: 1" + "0" * 20]),
        ("POST http://api.example.com/ HTTP/1.1", ["Content-Length : 5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Transfer-Encoding: identity"]),
        ("POST http://api.example.com/ HTTP/1.1", ["transfer-ENCODING: \x0bchunked"]),
        ("POST http://api.example.com/ HTTP/1.1", ["Transfer-Encoding:", "Content-Length: 5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["X: y", "\tContent-Length: 5"]),
        ("POST http://api.example.com/ HTTP/1.1", ["X\x00: y"]),
        ("POST http://api.example.com/ HTTP/1.1", [": y"]),
        ("POST http://api.example.com/ HTTP/1.1", ["nothing"]),
    ],
)  # fmt: skip
def test_ambiguous_requests_are_refused(first: str, fields: list[str]) -> None:
    assert refused(first, *fields)


def test_connection_headers_are_not_forwarded() -> None:
    """A protocol switch would hide the following requests."""
    fields = ["Upgrade: h2c", "HTTP2-Settings: x", "Connection: Upgrade, HTTP2-Settings", "TE: trailers",
              "Trailer: Host", "Proxy-Connection: keep-alive", "Host: b.net", "Keep-Alive: 5"]  # fmt: skip
    lines = ["GET http://api.example.com/ HTTP/1.1", *fields, "", ""]
    sent = read_request("\r\n".join(lines).encode()).head.decode()
    assert sent == "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"


_LAST = st.sampled_from(
    ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0"]
)


@given(_LAST, st.integers(0, 0xFFFF_FFFF))
@settings(max_examples=40)
def test_no_allowed_network_exposes_metadata_services_through_translation(
    text: str, rest: int
) -> None:
    """A cluster without IPv4 must allow the NAT64 network."""
    inner = int(ipaddress.IPv4Address(text))
    opened = read_networks(["::/0", "64:ff9b::/96", "2002::/16", "2001::/32", "::ffff:0:0/96"])
    forms = [
        inner,
        0xFFFF << 32 | inner,
        0xFFFF << 48 | inner,
        0x64FF9B << 96 | inner,
        0x64FF9B0001 << 80 | rest << 40 | inner,
        0x2002 << 112 | inner << 80 | rest,
        0x20010000 << 96 | inner << 64 | rest,
        0x20010000 << 96 | rest << 64 | inner ^ 0xFFFF_FFFF,
    ]
    for form in forms:
        assert not is_allowed(ipaddress.IPv6Address(form), opened), ipaddress.IPv6Address(form)


def test_networks_allowed_through_a_translator_are_reachable() -> None:
    opened = read_networks(["64:ff9b::/96"])
    assert is_allowed(ipaddress.IPv6Address("64:ff9b::a01:203"), opened)
    assert not is_allowed(ipaddress.IPv6Address("64:ff9c::a01:203"), opened)


@pytest.mark.parametrize(
    "answer",
    [["93.184.216.34", "10.0.0.1"], ["2606:4700::1", "::ffff:127.0.0.1"], ["93.184.216.34", "fe80::1%lo"],
     ["64:ff9b::7f00:1"], ["2002:7f00:1::"], ["2001:0:7f00:1::"], ["fec0::1"], ["::"], ["0.0.0.0"], ["not one"],
     ["127.0.0.1\x00"], ["010.0.0.1"], [""]],
)  # fmt: skip
async def test_a_name_with_one_forbidden_address_is_refused(answer: list[str]) -> None:
    with pytest.raises(ForbiddenUrlError):
        await Guard(Names(answer)).resolve(parse_url("https://api.example.com/"))


@pytest.mark.parametrize(
    "host",
    ["*", "*.com", "*.*.com", "a.*.com", "*a.example.com", "example.com.", ".example.com", "a b.com", "a\n.com",
     "a.com:80", "a.com/x", "a.com@b.com", "127.0.0.1", "1.2", "0x7f.0x1", "[::1]", "A.com", "\u0430.com", "com", "", "*."],
)  # fmt: skip
def test_host_entries_cover_only_matching_names(host: str) -> None:
    assert problem_of_host(host)


@pytest.mark.parametrize(
    "text",
    ["a --index-url=http://x.org", "a -r /etc/passwd", "a\r-e .", "a\u2028--pre", "a #x\n--pre", "a ; \\", "-e a",
     "a@file:///etc/passwd", "a @ git+https://x.org/a", "a @ ./b.whl", "./a-1-py3-none-any.whl", "a.whl/..", "/a",
     "a[b]@ https://x.org", "${HOME}", "a==${HOME}", "a; python_version<'${X}'", "a==1 --hash=sha256:00",
     "a\x00", "\ufeffa", "\u0430", "\uff41", "a/b", "a%2fb", "https://x.org/a.whl", "a @ C:\\a.whl", "a,b", "a b",
     "0_", "a-", "a.>=1"],
)  # fmt: skip
def test_a_requirement_contains_only_a_name_and_versions(text: str) -> None:
    assert problem_of(text)


@given(st.text(max_size=60))
@settings(max_examples=40)
def test_requirements_for_uv_are_one_equivalent_line(text: str) -> None:
    if problem_of(text):
        return
    (line,) = normal([text])
    assert line.isprintable()
    assert not line.startswith("-")
    assert problem_of(line) == ""


def test_invalid_encoding_names_are_not_cached() -> None:
    before = len(encodings._cache)
    for number in range(20):
        assert encoding_of(f"{number}" + "x" * 60_000) == ""
    assert len(encodings._cache) == before
    for name in (
        "punycode",
        "idna",
        "unicode_escape",
        "hex",
        "rot13",
        "undefined",
        "mbcs",
        "utf-7",
        "\x00",
        "../x",
        "os",
    ):
        assert encoding_of(name) == ""
