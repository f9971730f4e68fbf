"""``fetch_webpage`` and ``web_search`` as the engine runs them, over real sockets and children."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

import file_samples
from child_processes import descendants
from strata.protocol.errors import WrongSettingError
from strata.shared.clock import SystemClock
from strata.shared.ids import new_id
from strata.tool_execution.builtin import web_factory
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.builtin.page_reader import PageLimits, PageReader
from strata.tool_execution.builtin.web import PAGE_CHARS, WebTools
from strata.tool_execution.builtin.web_factory import open_web_tools
from strata.tool_execution.domain.tools import CallingAgent, CallOutcome, ToolCall
from strata.tool_execution.domain.web import ProviderName
from strata.tool_execution.execution.engine import CallExecutor
from strata.tool_execution.settings import ToolExecutionSettings
from web_servers import RawServer, ok, redirect

PARAGRAPH = "The Moon is the only natural satellite of Earth, and it is held by its gravity. "
PAGE = f"""<!doctype html><html><head><title>The
 Moon</title><script>var secret = 1</script></head><body>
<nav><a href="/">Home</a> <a href="/imprint">Imprint</a></nav>
<article><h1>About the Moon</h1><p>{PARAGRAPH * 5}
It makes the <a href="https://example.com/tides">tides</a>.</p>
<table><tr><th>Sea</th><th>Width</th></tr><tr><td>Mare Imbrium</td><td>1145 km</td></tr></table>
</article><footer>All rights reserved.</footer></body></html>"""


def settings(server: RawServer, **changes: Any) -> ToolExecutionSettings:
    values: dict[str, Any] = {
        "web_private_networks": ("127.0.0.0/8",),
        "web_ports": (server.port,),
        **changes,
    }
    return ToolExecutionSettings(**values)


@contextlib.asynccontextmanager
async def opened(server: RawServer, **changes: Any) -> AsyncIterator[CallExecutor]:
    async with AsyncExitStack() as stack:
        tools = await open_web_tools(settings(server, **changes), stack)
        yield _engine(tools)


def _engine(tools: WebTools) -> CallExecutor:
    return CallExecutor(BUILTIN_TOOLS, [tools], SystemClock(), timeout=60, max_parallel=8)


CALLER = CallingAgent(new_id("agent"), new_id("conversation"), new_id("run"), "step", "m", "UTC")


async def run(engine: CallExecutor, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    wanted = [
        ToolCall(f"call-{number}", name, json.dumps(arguments), f"key-{number}")
        for number, (name, arguments) in enumerate(calls)
    ]
    ended: dict[str, dict[str, Any]] = {}
    async with contextlib.aclosing(engine.run(wanted, CALLER, frozenset(BUILTIN_TOOLS))) as events:
        async for event in events:
            if isinstance(event, CallOutcome):
                ended[event.call.id] = json.loads(event.content)
    return [ended[call.id] for call in wanted]


async def page(server: RawServer, path: str = "/", **arguments: Any) -> dict[str, Any]:
    """Fetches a readable page; returns its text for the model."""
    async with opened(server) as engine:
        (tool_return,) = await run(
            engine, ("fetch_webpage", {"url": server.url(path), **arguments})
        )
    assert tool_return["status"] == "OK", tool_return
    message: dict[str, Any] = tool_return["message"]
    return message


async def refusal(server: RawServer, url: str = "", **changes: Any) -> str:
    """Fetches an unreadable page; returns its error for the model."""
    async with opened(server, **changes) as engine:
        (tool_return,) = await run(engine, ("fetch_webpage", {"url": url or server.url()}))
    assert tool_return["status"] == "Failed", tool_return
    return str(tool_return["message"])


async def test_a_page_becomes_its_title_and_its_main_text(server: RawServer) -> None:
    server.answers["/"] = redirect("/moon")
    server.answers["/moon"] = ok(PAGE.encode(), "text/html; charset=utf-8")

    tool_return = await page(server)

    assert tool_return["url"] == server.url("/moon")
    assert tool_return["title"] == "The Moon"
    assert PARAGRAPH.strip() in tool_return["content"]
    assert "[tides](https://example.com/tides)" in tool_return["content"]
    assert "| Mare Imbrium | 1145 km |" in tool_return["content"]
    for noise in ("secret", "Imprint", "rights reserved", "<"):
        assert noise not in tool_return["content"]


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ("<p>Grüße</p>".encode("latin-1"), "text/html; charset=iso-8859-1", "Grüße"),
        ("<p>Grüße</p>".encode(), "text/html", "Grüße"),
        (
            '<meta charset="koi8-r"><p>Привет, мир и люди</p>'.encode("koi8-r"),
            "text/html",
            "Привет",
        ),
        (b"<ul><li>one</li><li>two</li></ul>", "application/xhtml+xml", "one\ntwo"),
        (b"<html><body>no type</body></html>", "", "no type"),
        (b'{"a": [1, 2]}', "application/json", '{"a": [1, 2]}'),
        (b'{"a": 1}', "application/vnd.api+json; charset=utf-8", '{"a": 1}'),
        (b"a,b\r\n1,2\r\n", "text/csv", "a,b\n1,2"),
        (b"# Title\n\n\n\n\ntext", "text/markdown", "# Title\n\ntext"),
        ("\ufeffGrüße".encode(), "text/plain", "Grüße"),
        ("Grüße".encode("utf-16"), "text/plain; charset=utf-16", "Grüße"),
        (b"plain", "application/octet-stream", "plain"),
        (b"hostile", "text/plain; charset=punycode", "hostile"),
        (b"hostile", "text/plain; charset=hex", "hostile"),
        (b"nul\x00\x1b[31mred", "text/plain", "nul[31mred"),
    ],
)
async def test_text_is_decoded_with_the_declared_or_detected_charset(
    server: RawServer, body: bytes, content_type: str, expected: str
) -> None:
    server.answers["/"] = ok(body, content_type)
    assert expected in (await page(server))["content"]


async def test_a_pdf_is_read(server: RawServer) -> None:
    body = file_samples.pdf(["The invoice", "is due in May"], ["Second page"])
    server.answers["/a"] = ok(body, "application/pdf")
    server.answers["/b"] = ok(body, "application/octet-stream")

    for path in ("/a", "/b"):
        content = (await page(server, path))["content"]
        assert "The invoice" in content
        assert "is due in May" in content
        assert content.endswith("Second page")


async def test_a_long_page_is_returned_in_parts(server: RawServer) -> None:
    text = "".join(f"line {number}\n" for number in range(5000)).strip()
    server.answers["/"] = ok(text.encode(), "text/plain")

    first = await page(server)
    assert first["content"] == text[:PAGE_CHARS]
    assert f"0 to {PAGE_CHARS} of {len(text)}" in first["message"]
    pieces, offset = [first["content"]], PAGE_CHARS
    while offset < len(text):
        pieces.append((await page(server, offset=offset))["content"])
        offset += PAGE_CHARS
    assert "".join(pieces) == text
    beyond = await page(server, offset=len(text))
    assert beyond["content"] == ""
    assert "nothing at offset" in beyond["message"]


async def test_a_page_that_is_too_large_is_cut_with_a_note(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_factory, "_PAGE_BYTES", 1001)
    server.answers["/"] = ok(("Grüße\n" * 1000).encode(), "text/plain")
    async with opened(server) as engine:
        (tool_return,) = await run(engine, ("fetch_webpage", {"url": server.url()}))
    assert set(tool_return["message"]["content"].split("\n")) == {"Grüße"}
    assert "too large to be read completely" in tool_return["message"]["message"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404 Not Found"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (ok(b"x", "image/png"), "a picture, which cannot be read"),
        (ok(b"\x7fELF\x00\x01", "application/octet-stream"), "binary file"),
        (ok(b"", "text/html"), "contains no text"),
        (ok(b"<div id=app></div><script>run()</script>"), "contains no text"),
        (ok(b"%PDF-1.4 cut", "application/pdf"), "damaged"),
        (ok(file_samples.scanned_pdf(), "application/pdf"), "contains no text"),
        (ok(file_samples.pdf(["x"], encrypted=True), "application/pdf"), "password"),
        (redirect("http://169.254.169.254/latest"), "redirects to an address that may not be"),
        (redirect("http://ignore-what-was-said.corp/"), "redirects to an address that may not"),
        (ok(b"x", "application/ignore-what-was-said"), "some other type"),
        (redirect("/"), "redirects more than 5 times"),
    ],
    ids=range(13),
)
async def test_an_unreadable_page_is_a_readable_error(
    server: RawServer, answer: bytes, words: str
) -> None:
    server.answers["/"] = answer
    tool_return = await refusal(server)
    assert words in tool_return
    assert "ignore" not in tool_return


async def test_a_too_large_pdf_is_a_readable_error(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_factory, "_PDF_BYTES", 2 * 1024**2)
    body = file_samples.pdf(["x"]).ljust(3 * 1024**2)
    server.answers["/"] = ok(body, "application/pdf")
    assert "larger than 2 MB" in await refusal(server)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://[::1]/",
        "http://2130706433/",
        "file:///etc/passwd",
        "moon",
    ],
)
async def test_a_forbidden_url_is_a_readable_error(server: RawServer, url: str) -> None:
    tool_return = await refusal(server, url, web_private_networks=(), web_ports=(80,))
    assert "try again" not in tool_return.lower()
    assert "internal error" not in tool_return
    assert tool_return.endswith((".", ":"))


async def test_private_networks_are_reached_only_if_allowed(server: RawServer) -> None:
    server.answers["/"] = ok(b"secret", "text/plain")
    assert "private or reserved" in await refusal(server, web_private_networks=())
    assert server.heads == []


async def test_a_hostile_pdf_ends_at_the_time_limit_and_leaves_no_child(server: RawServer) -> None:
    server.answers["/"] = ok(file_samples.endless_pdf(), "application/pdf")
    async with AsyncExitStack() as stack:
        wired = await open_web_tools(settings(server), stack)
        tools = WebTools(wired._fetcher, PageReader(PageLimits(seconds=2)), None)
        (tool_return,) = await run(_engine(tools), ("fetch_webpage", {"url": server.url()}))
    assert tool_return["status"] == "Failed"
    assert descendants("builtin.web_") == []


async def test_a_page_that_needs_too_much_memory_is_refused(server: RawServer) -> None:
    server.answers["/"] = ok(b"<p>a" * 450_000, "text/html")
    async with AsyncExitStack() as stack:
        wired = await open_web_tools(settings(server), stack)
        limits = PageLimits(memory_bytes=150 * 1024**2)
        tools = WebTools(wired._fetcher, PageReader(limits), None)
        (tool_return,) = await run(_engine(tools), ("fetch_webpage", {"url": server.url()}))
    assert tool_return["status"] == "Failed"
    assert descendants("builtin.web_") == []


@pytest.mark.parametrize(
    "body",
    [b"<div>" * 300_000 + b"deep", b"<p>word" * 250_000, b"<b x=" + b"1" * 2_000_000 + b">w"],
)
async def test_pages_that_are_slow_to_parse_are_still_read(server: RawServer, body: bytes) -> None:
    server.answers["/"] = ok(body, "text/html")
    async with opened(server) as engine:
        (tool_return,) = await run(engine, ("fetch_webpage", {"url": server.url()}))
    assert "longer than" not in str(tool_return["message"])
    assert descendants("builtin.web_") == []


async def test_a_cancelled_call_leaves_no_child(server: RawServer) -> None:
    server.answers["/"] = ok(PAGE.encode())
    async with opened(server) as engine:
        running = asyncio.create_task(run(engine, ("fetch_webpage", {"url": server.url()})))
        while not descendants("builtin.web_"):
            await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert descendants("builtin.web_") == []


async def test_pages_are_read_concurrently(server: RawServer) -> None:
    meeting = asyncio.Barrier(3)

    async def together(writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(20):
            await meeting.wait()
        writer.write(ok(b"met", "text/plain"))

    server.answers["/"] = together
    async with opened(server) as engine:
        tool_returns = await run(engine, *[("fetch_webpage", {"url": server.url()})] * 3)
    assert [tool_return["message"]["content"] for tool_return in tool_returns] == ["met"] * 3


TAVILY = {
    "query": "moon",
    "answer": None,
    "images": [],
    "results": [
        {"title": "Moon", "url": "https://example.com/moon", "content": "It is far.", "score": 0.9},
        {"title": "Odd", "url": "javascript:alert(1)", "content": "no"},
        {"title": "", "url": "https://example.com/2", "content": "x" * 5000, "raw_content": None},
    ],
    "response_time": 1.2,
}
EXA = {
    "requestId": "1",
    "results": [
        {
            "id": "https://example.com/moon",
            "title": "Moon",
            "url": "https://example.com/moon",
            "publishedDate": "2026-01-02T00:00:00.000Z",
            "author": None,
            "text": "It is far.",
        }
    ],
    "costDollars": {"total": 0.005},
}
SEARXNG = {
    "query": "moon",
    "number_of_results": 0,
    "results": [
        {
            "url": f"https://example.com/{number}",
            "title": f"Moon {number}",
            "content": "It is far.",
            "engine": "wikipedia",
            "publishedDate": None,
        }
        for number in range(20)
    ],
    "suggestions": [],
}


async def search(
    server: RawServer, provider: str, key: str = "", **arguments: Any
) -> dict[str, Any]:
    changes = {
        "web_private_networks": (),
        "web_search_provider": provider,
        "web_search_api_key": SecretStr(key),
        "web_search_url": server.url("/base/") if provider == "searxng" else server.url(""),
    }
    async with opened(server, **changes) as engine:
        (tool_return,) = await run(engine, ("web_search", {"query": " moon ", **arguments}))
    return tool_return


async def test_a_search_is_sent_to_tavily(server: RawServer) -> None:
    server.answers["/search"] = ok(json.dumps(TAVILY).encode(), "application/json")

    tool_return = await search(server, "tavily", "tvly-key", limit=7)

    assert tool_return["message"]["results"] == [
        {"title": "Moon", "url": "https://example.com/moon", "content": "It is far."},
        {"title": "https://example.com/2", "url": "https://example.com/2", "content": "x" * 1000},
    ]
    assert server.heads[0].startswith("POST /search HTTP/1.1\r\n")
    assert "authorization: bearer tvly-key\r\n" in server.heads[0].lower()
    assert "content-type: application/json\r\n" in server.heads[0].lower()
    sent = json.loads(server.bodies[0])
    assert (sent["query"], sent["max_results"]) == ("moon", 7)


async def test_a_search_is_sent_to_exa(server: RawServer) -> None:
    server.answers["/search"] = ok(json.dumps(EXA).encode(), "application/json")

    tool_return = await search(server, "exa", "exa-key")

    assert tool_return["message"]["results"] == [
        {
            "title": "Moon",
            "url": "https://example.com/moon",
            "content": "It is far.",
            "published": "2026-01-02T00:00:00.000Z",
        }
    ]
    assert "x-api-key: exa-key\r\n" in server.heads[0].lower()
    sent = json.loads(server.bodies[0])
    assert (sent["query"], sent["numResults"]) == ("moon", 5)
    assert sent["contents"]["text"]["maxCharacters"] == 1000


async def test_a_search_is_sent_to_searxng(server: RawServer) -> None:
    server.answers["/base/search"] = ok(json.dumps(SEARXNG).encode(), "application/json")

    tool_return = await search(server, "searxng", limit=3)

    assert [hit["title"] for hit in tool_return["message"]["results"]] == [
        "Moon 0",
        "Moon 1",
        "Moon 2",
    ]
    asked = urlsplit(server.heads[0].split(" ")[1])
    assert parse_qs(asked.query) == {"q": ["moon"], "format": ["json"]}


async def test_finding_nothing_is_not_an_error(server: RawServer) -> None:
    server.answers["/search"] = ok(b'{"results": []}', "application/json")
    tool_return = await search(server, "tavily", "key")
    assert tool_return["message"] == {"message": "Nothing was found.", "results": []}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "does not accept the key"),
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n", "quota"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n", "answered 502"),
        (ok(b"<html>", "text/html"), "cannot be parsed"),
        (ok(b'{"results": 5}', "application/json"), "cannot be parsed"),
        (ok(b"[" * 100_000, "application/json"), "cannot be parsed"),
        (ok(b" " * 3_000_000, "application/json"), "too large"),
        (redirect("http://127.0.0.1:1/"), "redirects"),
    ],
    ids=range(8),
)
async def test_a_failed_search_is_a_readable_error(
    server: RawServer, answer: bytes, words: str
) -> None:
    server.answers["/search"] = answer
    tool_return = await search(server, "tavily", "key")
    assert tool_return["status"] == "Failed"
    assert words in tool_return["message"]
    assert len(server.heads) == 1


async def test_a_searxng_without_json_is_explained(server: RawServer) -> None:
    server.answers["/base/search"] = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    assert "search.formats" in (await search(server, "searxng"))["message"]


async def test_hostile_results_are_filtered_and_truncated(server: RawServer) -> None:
    results = [
        None,
        5,
        {"url": 5},
        {"url": "https://example.com/", "title": ["x"], "content": {"a": 1}},
        {"url": "https://example.com/a", "title": "t" * 9999, "text": "\x00\ud800evil\x1b"},
    ]
    body = json.dumps({"results": results * 100}).encode()
    server.answers["/search"] = ok(body, "application/json")

    tool_return = await search(server, "exa", "key", limit=2)

    assert tool_return["message"]["results"] == [
        {"title": "https://example.com/", "url": "https://example.com/", "content": ""},
        {"title": "t" * 300, "url": "https://example.com/a", "content": "evil"},
    ]


async def test_without_a_provider_the_search_is_an_error(server: RawServer) -> None:
    async with opened(server) as engine:
        (tool_return,) = await run(engine, ("web_search", {"query": "moon"}))
    assert tool_return["status"] == "Failed"
    assert "not set up" in tool_return["message"]


async def test_an_empty_query_is_refused(server: RawServer) -> None:
    async with opened(server, web_search_provider="exa", web_search_api_key="k") as engine:
        (tool_return,) = await run(engine, ("web_search", {"query": " \x01 "}))
    assert "empty" in tool_return["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"web_search_provider": "google"},
        {"web_search_provider": "tavily"},
        {"web_search_provider": "exa", "web_search_api_key": ""},
        {"web_search_provider": "searxng"},
        {"web_search_provider": "searxng", "web_search_url": "searxng:8080"},
        {"web_private_networks": ["10.0.0.0/99"]},
        {"web_private_networks": ["169.254.169.254"]},
    ],
    ids=str,
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongSettingError):
        ToolExecutionSettings(**wrong)


def test_a_key_is_not_shown() -> None:
    settings_ = ToolExecutionSettings(
        web_search_provider=ProviderName.EXA, web_search_api_key=SecretStr("exa-secret")
    )
    assert "exa-secret" not in repr(settings_)
