"""Converts fetched pages to text: HTML and PDF in a child process, other text formats directly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import strata
from strata.shared.fair_slots import FairSlots
from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.logs import get_logger
from strata.shared.web.fetcher import Fetched
from strata.tool_execution.builtin.web_texts import (
    HTML,
    MAX_TEXT_CHARS,
    PDF,
    TEXT,
    encoding_of,
    tidy,
)
from strata.tool_execution.domain.tools import ToolError

_CHILDREN = {
    HTML: "strata.tool_execution.builtin.web_html_child",
    PDF: "strata.tool_execution.builtin.web_pdf_child",
}
# JSON writes a character as 12 bytes at most.
_MAX_ANSWER_BYTES = 12 * MAX_TEXT_CHARS + 64 * 1024
_HTML = frozenset(("text/html", "application/xhtml+xml"))
PDF_TYPES = frozenset(("application/pdf", "application/x-pdf"))
_TEXT = frozenset(
    (
        *("application/json", "application/ld+json", "application/xml", "application/yaml"),
        *("application/javascript", "application/x-ndjson", "application/toml"),
        *("application/x-yaml", "application/sql", "application/x-sh", "application/csv"),
    )
)
# Content types that say nothing about the format; the first bytes decide.
_UNKNOWN = frozenset(("", "application/octet-stream", "binary/octet-stream"))
_SNIFFED_BYTES = 1024
_GUESSED_BYTES = 64 * 1024
_log = get_logger(__name__)


def takes(content_type: str) -> bool:
    """Returns whether a response with this content type may be readable."""
    return (
        content_type in _HTML | PDF_TYPES | _TEXT | _UNKNOWN
        or content_type.startswith("text/")
        or content_type.endswith(("+json", "+xml"))
    )


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page.

    Attributes:
        title: Empty if the page has none.
        text: Plain text or Markdown.
    """

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Limits of converting one page.

    Attributes:
        seconds: Time to wait for the child process, and its CPU time.
        memory_bytes: Address space of the child process.
        children: How many child processes may run at the same time.
    """

    seconds: int = 20
    memory_bytes: int = 768 * 1024 * 1024
    children: int = 4


class PageReader:
    """Converts pages to text.

    Args:
        limits: Limits of each page that needs a child process.
    """

    def __init__(self, limits: PageLimits | None = None) -> None:
        self._limits = limits or PageLimits()
        self._slots = FairSlots(self._limits.children, "pages to convert")

    async def read(self, fetched: Fetched) -> PageText:
        """Returns the text of a page.

        Raises:
            ToolError: The page cannot be read.
        """
        kind = _kind(fetched)
        if kind == TEXT:
            return PageText("", await asyncio.to_thread(_as_text, fetched))
        if kind == PDF and fetched.truncated:
            size = len(fetched.body) / 1024**2
            raise ToolError(f"The PDF is larger than {size:.0f} MB, the maximum.")
        async with self._slots.slot():
            answer = await self._ask_child(kind, fetched)
        if "refusal" in answer:
            raise ToolError(answer["refusal"])
        return PageText(answer["title"], answer["text"])

    async def _ask_child(self, kind: str, fetched: Fetched) -> dict[str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-s", "-P", "-B", "-X", "utf8", "-m", _CHILDREN[kind]),
            *(str(os.getpid()), str(self._limits.seconds), str(self._limits.memory_bytes)),
            encoding_of(fetched.charset),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # No key or address of the service may reach a process that parses untrusted pages.
            env={"PYTHONPATH": os.pathsep.join(str(Path(p).parent) for p in strata.__path__)},
        )
        try:
            async with asyncio.timeout(self._limits.seconds):
                output = await _converse(process, fetched.body)
        except TimeoutError:
            raise ToolError(
                f"Reading the page took longer than {self._limits.seconds} seconds."
            ) from None
        finally:
            await asyncio.shield(_end(process))
        try:
            answer = parse_json(output)
        except JsonTextError:
            _log.warning("a page-reading child process gave no answer", code=process.returncode)
            raise ToolError("The page uses features that cannot be read.") from None
        return {key: str(value) for key, value in answer.items()}


async def _converse(process: asyncio.subprocess.Process, body: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    # A child that died closes the pipe, and the caller gets no answer.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(body)
        await process.stdin.drain()
        process.stdin.close()
    output = bytearray()
    while len(output) <= _MAX_ANSWER_BYTES:
        data = await process.stdout.read(1024 * 1024)
        if not data:
            break
        output += data
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _kind(fetched: Fetched) -> str:
    head = fetched.body[:_SNIFFED_BYTES].lstrip()
    if fetched.content_type in PDF_TYPES or (
        fetched.content_type in _UNKNOWN and head.startswith(b"%PDF-")
    ):
        return PDF
    looks_like_html = head[:200].lower().startswith((b"<!doctype html", b"<html"))
    if fetched.content_type in _HTML or (fetched.content_type in _UNKNOWN and looks_like_html):
        return HTML
    if fetched.content_type in _UNKNOWN and b"\x00" in head:
        raise ToolError("It is a binary file, which cannot be read.")
    return TEXT


def _as_text(fetched: Fetched) -> str:
    body = fetched.body
    if fetched.truncated:
        # The body may be cut inside a character.
        body = body[: len(body) // 4 * 4]
        body = body[: body.rfind(b"\n") + 1] or body
    for name in (encoding_of(fetched.charset), "utf-8-sig"):
        with contextlib.suppress(UnicodeDecodeError):
            if name:
                return tidy(body.decode(name))
    from charset_normalizer import from_bytes  # noqa: PLC0415 - 2 MB, seldom needed

    best = from_bytes(body[:_GUESSED_BYTES]).best()
    return tidy(body.decode(best.encoding if best else "utf-8", "replace"))
