"""Fetching from malicious servers, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from pathlib import Path

import pytest

from certificates import self_signed
from strata.shared.web.errors import FetchError, ForbiddenUrlError
from strata.shared.web.fetcher import Fetched, Fetcher, FetchLimits
from strata.shared.web.url_guard import Guard, Trusting
from web_servers import Names, RawServer, ok, raw_server, redirect

LOOPBACK = ["127.0.0.0/8"]


async def fetch(
    server: RawServer,
    url: str,
    *,
    names: Names | None = None,
    limits: FetchLimits | None = None,
    networks: list[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    ports: tuple[int, ...] = (),
    **options: object,
) -> Fetched:
    guard = Guard(
        names or Names(),
        private_networks=LOOPBACK if networks is None else networks,
        ports=ports or (server.port,),
    )
    async with Fetcher(guard, limits, ssl_context=ssl_context) as fetcher:
        return await fetcher.fetch(url, **options)  # type: ignore[arg-type]


async def test_a_page_is_fetched_under_its_name(server: RawServer) -> None:
    server.answers["/a?b=c"] = ok(b"hello", "Text/HTML; Charset=ISO-8859-1")
    names = Names()

    fetched = await fetch(server, server.url("/a?b=c", "page.example.com"), names=names)

    assert (fetched.status, fetched.body, fetched.truncated) == (200, b"hello", False)
    assert (fetched.content_type, fetched.charset) == ("text/html", "iso-8859-1")
    assert fetched.url == server.url("/a?b=c", "page.example.com")
    assert names.asked == ["page.example.com"]
    assert f"Host: page.example.com:{server.port}\r\n" in server.heads[0]


async def test_a_rebinding_name_is_resolved_once_and_its_first_answer_is_used(
    server: RawServer,
) -> None:
    server.answers["/"] = ok(b"first")
    # A second look-up would lead to a port without a listener.
    names = Names(["127.0.0.1"], ["127.9.9.9"], ["169.254.169.254"])

    fetched = await fetch(server, server.url("/", "rebind.example.com"), names=names)

    assert fetched.body == b"first"
    assert names.asked == ["rebind.example.com"]


async def test_a_name_with_a_private_address_is_never_connected_to(server: RawServer) -> None:
    url = server.url("/", "trap.example.com")
    for answer in (["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:127.0.0.1"]):
        with pytest.raises(ForbiddenUrlError):
            await fetch(server, url, names=Names(answer), networks=[])
    assert server.heads == []


async def test_the_next_address_is_tried_when_one_does_not_answer(server: RawServer) -> None:
    server.answers["/"] = ok(b"second")
    names = Names(["127.0.0.9", "127.0.0.1"])

    assert (await fetch(server, server.url("/", "two.example.com"), names=names)).body == b"second"


async def test_a_refused_connection_is_a_readable_error(server: RawServer) -> None:
    with pytest.raises(FetchError, match="cannot be reached"):
        await fetch(server, "http://127.0.0.1:1/", ports=(1,))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed_and_each_is_checked(server: RawServer, status: int) -> None:
    names = Names(["127.0.0.1"])
    server.answers["/"] = redirect("/b", status)
    server.answers["/b"] = redirect(server.url("/c", "other.example.com"), status)
    server.answers["/c"] = ok(b"end")

    fetched = await fetch(server, server.url("/", "one.example.com"), names=names)

    assert fetched.body == b"end"
    assert fetched.url == server.url("/c", "other.example.com")
    assert names.asked == ["one.example.com", "one.example.com", "other.example.com"]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata.google.internal/",
        "http://[::1]/",
        "http://0x7f.1/",
        "http://10.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "//127.1/",
        "http://user@example.com/",
        "http://example.com:6379/",
        "/a\\b",
    ],
)
async def test_a_redirect_to_a_forbidden_address_is_refused(
    server: RawServer, location: str
) -> None:
    server.answers["/"] = redirect(location)
    with pytest.raises(ForbiddenUrlError):
        await fetch(server, server.url(), ports=(80, server.port))
    assert len(server.heads) == 1


async def test_a_redirect_to_a_name_with_a_private_address_is_refused(server: RawServer) -> None:
    server.answers["/"] = redirect(server.url("/secret", "rebind.example.com"))
    server.answers["/secret"] = ok(b"secret")
    names = Names(["127.0.0.1"], ["10.0.0.1"])

    with pytest.raises(ForbiddenUrlError):
        await fetch(server, server.url("/", "one.example.com"), names=names)
    assert len(server.heads) == 1


async def test_a_loop_of_redirects_ends(server: RawServer) -> None:
    server.answers["/"] = redirect("/")
    with pytest.raises(FetchError, match="more than 5 times"):
        await fetch(server, server.url())
    assert len(server.heads) == 6


async def test_credentials_stay_with_their_origin(server: RawServer) -> None:
    server.answers["/"] = redirect("/same")
    server.answers["/same"] = redirect(server.url("/other", "other.example.com"))
    server.answers["/other"] = ok(b"end")

    await fetch(
        server, server.url("/", "one.example.com"), credentials={"Authorization": "Bearer key"}
    )

    assert ["Bearer key" in head for head in server.heads] == [True, True, False]


async def test_a_request_with_data_is_not_redirected(server: RawServer) -> None:
    server.answers["/"] = redirect("/b", 307)
    with pytest.raises(FetchError, match="carries data"):
        await fetch(server, server.url(), content=b"{}")
    assert len(server.heads) == 1


async def test_a_long_body_is_cut(server: RawServer) -> None:
    server.answers["/"] = ok(b"x" * 5000)

    fetched = await fetch(server, server.url(), limits=FetchLimits(body_bytes=1000))

    assert fetched.truncated
    assert fetched.body == b"x" * 1000


async def test_the_limit_may_depend_on_the_type(server: RawServer) -> None:
    server.answers["/"] = ok(b"x" * 5000, "application/pdf")
    limits = FetchLimits(body_bytes=1000, body_bytes_of={"application/pdf": 6000})

    assert len((await fetch(server, server.url(), limits=limits)).body) == 5000


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _deflate_raw)],
)
async def test_a_decompression_bomb_is_cut_at_the_limit(
    server: RawServer, encoding: str, pack: object
) -> None:
    bomb = pack(b"\0" * 200 * 1024 * 1024)  # type: ignore[operator]
    assert len(bomb) < 300_000
    server.answers["/"] = ok(bomb, "text/html", f"Content-Encoding: {encoding}")

    fetched = await fetch(server, server.url())

    assert fetched.truncated
    assert len(fetched.body) == 2 * 1024 * 1024


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "nonsense", "gzip,deflate"])
async def test_other_content_encodings_are_refused(server: RawServer, encoding: str) -> None:
    body = gzip.compress(gzip.compress(b"x"))
    server.answers["/"] = ok(body, "text/html", f"Content-Encoding: {encoding}")
    with pytest.raises(FetchError, match="was not requested"):
        await fetch(server, server.url())
    assert "accept-encoding: gzip, deflate\r\n" in server.heads[0].lower()


async def test_a_damaged_encoding_is_a_readable_error(server: RawServer) -> None:
    server.answers["/"] = ok(b"no gzip at all", "text/html", "Content-Encoding: gzip")
    with pytest.raises(FetchError, match="cannot be decompressed"):
        await fetch(server, server.url())


async def _forever(writer: asyncio.StreamWriter, piece: bytes, pause: float = 0) -> None:
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def test_an_endless_body_is_cut(server: RawServer) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await _forever(writer, b"x" * 65536)

    server.answers["/"] = endless

    fetched = await fetch(server, server.url())

    assert fetched.truncated
    assert len(fetched.body) == 2 * 1024 * 1024


async def test_a_slow_body_is_ended_by_the_total_time(server: RawServer) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await _forever(writer, b"x", 0.02)

    server.answers["/"] = slow
    with pytest.raises(FetchError, match=r"within 0\.5 seconds"):
        await fetch(server, server.url(), limits=FetchLimits(total_s=0.5))


async def test_a_silent_server_is_ended_by_the_total_time(server: RawServer) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    server.answers["/"] = silent
    with pytest.raises(FetchError, match=r"within 0\.3 seconds"):
        await fetch(server, server.url(), limits=FetchLimits(total_s=0.3))


async def test_redirects_share_the_total_time(server: RawServer) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(redirect("/"))

    server.answers["/"] = slow
    with pytest.raises(FetchError, match=r"within 0\.5 seconds"):
        await fetch(server, server.url(), limits=FetchLimits(total_s=0.5))


async def test_a_resolver_that_hangs_is_ended_by_the_total_time(server: RawServer) -> None:
    async def hanging(host: str, port: int) -> list[str]:
        await asyncio.sleep(30)
        return []

    async with Fetcher(Guard(hanging), FetchLimits(total_s=0.2)) as fetcher:
        with pytest.raises(FetchError, match=r"within 0\.2 seconds"):
            await fetcher.fetch("https://example.com/")


async def test_endless_headers_are_refused(server: RawServer) -> None:
    async def headers(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        await _forever(writer, b"X-Filler: " + b"x" * 1000 + b"\r\n")

    server.answers["/"] = headers
    with pytest.raises(FetchError, match="not valid HTTP"):
        await fetch(server, server.url())


async def test_an_endless_header_line_is_refused(server: RawServer) -> None:
    async def header(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Filler: ")
        await _forever(writer, b"x" * 1000)

    server.answers["/"] = header
    with pytest.raises(FetchError, match="not valid HTTP"):
        await fetch(server, server.url())


async def test_large_headers_are_refused(server: RawServer) -> None:
    server.answers["/"] = ok(b"", "text/html", "X-Filler: " + "x" * 70_000)
    with pytest.raises(FetchError, match="headers"):
        await fetch(server, server.url())


async def test_interim_answers_without_end_are_ended_by_the_total_time(server: RawServer) -> None:
    async def interim(writer: asyncio.StreamWriter) -> None:
        await _forever(writer, b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.001)

    server.answers["/"] = interim
    with pytest.raises(FetchError):
        await fetch(server, server.url(), limits=FetchLimits(total_s=0.5))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 999999 OK\r\n\r\n",
        bytes(range(256)) * 10,
    ],
)
async def test_an_answer_that_is_not_http_is_a_readable_error(
    server: RawServer, answer: bytes
) -> None:
    server.answers["/"] = answer
    with pytest.raises(FetchError, match="not valid HTTP"):
        await fetch(server, server.url())


async def test_a_body_of_an_unwanted_type_is_not_read(server: RawServer) -> None:
    async def film(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n")
        await asyncio.sleep(5)

    server.answers["/"] = film
    with pytest.raises(FetchError, match="a film"):
        await fetch(server, server.url(), takes=lambda kind: kind == "text/html")


async def test_a_failure_is_an_answer(server: RawServer) -> None:
    fetched = await fetch(server, server.url("/nowhere"), takes=lambda kind: False)
    assert fetched.status == 404
    assert fetched.status_text == "404 Not Found"


async def test_cookies_are_not_kept_and_the_environment_is_not_read(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1/")
    server.answers["/"] = redirect("/b")[:-2] + b"Set-Cookie: a=b\r\n\r\n"
    server.answers["/b"] = ok(b"end")

    assert (await fetch(server, server.url("/", "page.example.com"))).body == b"end"
    assert not any("cookie" in head.lower() for head in server.heads)


async def test_urls_of_the_operator_may_use_any_port(server: RawServer) -> None:
    server.answers["/"] = ok(b"inside")
    async with Fetcher(Trusting(Names())) as fetcher:
        assert (await fetcher.fetch(server.url("/", "searxng"))).body == b"inside"


async def test_pages_are_fetched_over_ipv6() -> None:
    try:
        async with raw_server(host="::1") as server:
            server.answers["/a"] = ok(b"six")
            url = f"http://page.example.com:{server.port}/a"
            names = Names(["::1"])
            assert (await fetch(server, url, names=names, networks=["::1"])).body == b"six"
            url = f"http://[0::0:1]:{server.port}/a"
            assert (await fetch(server, url, networks=["::1"])).body == b"six"
            assert f"Host: [::1]:{server.port}" in server.heads[1]
    except OSError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("//evil", "//evil"),
        ("/%2e%2e/a%20b?c=d?e&f=%00", "/%2e%2e/a%20b?c=d?e&f=%00"),
        ("/ü?ß", "/%C3%BC?%C3%9F"),
        ("?q", "/?q"),
        ('/<a>"{b}', "/%3Ca%3E%22%7Bb%7D"),
        ("/a#http://127.0.0.1/", "/a"),
    ],
)
async def test_a_path_is_sent_to_the_server_normalized(
    server: RawServer, path: str, sent: str
) -> None:
    await fetch(server, server.url(path))
    assert server.heads[0].split("\r\n")[0] == f"GET {sent} HTTP/1.1"


async def test_a_certificate_is_checked_for_the_name_and_not_the_address(tmp_path: Path) -> None:
    pem, key = self_signed(tmp_path, ["page.example.com"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem, key)
    trusting = ssl.create_default_context(cafile=str(pem))
    asked: list[str] = []
    serving.sni_callback = lambda _socket, name, _context: asked.append(name)

    async with raw_server(serving) as server:
        server.answers["/"] = ok(b"safe")
        good = f"https://page.example.com:{server.port}/"
        bad = f"https://other.example.com:{server.port}/"

        assert (await fetch(server, good, ssl_context=trusting)).body == b"safe"
        assert asked == ["page.example.com"]
        for url, context in ((bad, trusting), (good, None)):
            with pytest.raises(FetchError, match="certificate is not valid"):
                await fetch(server, url, ssl_context=context)
        with pytest.raises(FetchError, match="certificate is not valid"):
            await fetch(server, f"https://127.0.0.1:{server.port}/", ssl_context=trusting)


async def test_credentials_are_never_sent_after_a_redirect_from_https_to_http(
    tmp_path: Path, server: RawServer
) -> None:
    pem, key = self_signed(tmp_path, ["page.example.com"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pem, key)
    trusting = ssl.create_default_context(cafile=str(pem))
    server.answers["/"] = ok(b"plain")
    async with raw_server(serving) as secure:
        secure.answers["/"] = redirect(server.url("/", "page.example.com"))
        url = f"https://page.example.com:{secure.port}/"
        ports = (secure.port, server.port)

        with pytest.raises(ForbiddenUrlError, match="https to http"):
            await fetch(
                server,
                url,
                ports=ports,
                ssl_context=trusting,
                credentials={"Authorization": "Bearer key"},
            )
        assert server.heads == []
        # Without credentials it is an ordinary redirect.
        assert (await fetch(server, url, ports=ports, ssl_context=trusting)).body == b"plain"
