"""A client of the web console without a browser."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any, Self

import httpx2
from markupsafe import escape

from strata.gateway.http.console_path import CONSOLE_PATH

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"' {{ 7*7 }} \u202eevil\u202c"
"""A text that must be shown unchanged, except for the characters that change its direction."""

_TOKEN = re.compile(r'"x-csrf-token": "([0-9a-f]+)"')


def shown(text: str) -> str:
    """Returns the escaped form of a text in a page."""
    return str(escape(re.sub("[\u202a-\u202e]", "\ufffd", text)))


class ConsoleClient:
    """Signs in to the console, and sends requests as a browser does.

    Args:
        http_url: Base URL of the HTTP port.
    """

    def __init__(self, http_url: str) -> None:
        self.http = httpx2.AsyncClient(base_url=http_url, timeout=60.0)
        self.origin = http_url
        self.csrf_token = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def sign_in(self, api_key: str) -> httpx2.Response:
        """Signs in with a key, and sets `csrf_token` to the token of the session."""
        response = await self.http.post(
            f"{CONSOLE_PATH}/sign-in", data={"api_key": api_key}, headers={"origin": self.origin}
        )
        if response.status_code == 303:
            await self.read_token()
        return response

    async def read_token(self) -> None:
        """Reads the token of the session from a page."""
        page = await self.get("/projects")
        match = _TOKEN.search(page.text)
        assert match is not None, page.text
        self.csrf_token = match.group(1)

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        """Gets a page, by its path below the console."""
        return await self.http.get(CONSOLE_PATH + path, **options)

    async def operations(
        self, run_id: str, *, begun: asyncio.Event | None = None
    ) -> list[dict[str, Any]]:
        """Follows a run to its end, and returns the changes of the page.

        Args:
            run_id: The run.
            begun: Set when the first event arrives.
        """
        done: list[dict[str, Any]] = []
        async with self.http.stream("GET", f"{CONSOLE_PATH}/live/{run_id}") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    if begun is not None:
                        begun.set()
                    done += json.loads(line.removeprefix("data: "))
        return done

    async def post(
        self,
        path: str,
        data: dict[str, Any] | None = None,
        *,
        token: str | None = None,
        origin: str = "",
        headers: dict[str, str] | None = None,
        files: Sequence[tuple[str, tuple[str, bytes]]] | None = None,
    ) -> httpx2.Response:
        """Sends a form.

        Args:
            path: Path below the console.
            data: The fields.
            token: The token to send; that of the session by default.
            origin: The origin to name; that of the console by default.
            headers: Additional headers.
            files: Name and bytes of a file, by field name; the form is then sent as multipart.
        """
        sent = {"csrf": self.csrf_token if token is None else token, **(data or {})}
        more = {"origin": origin or self.origin, **(headers or {})}
        return await self.http.post(CONSOLE_PATH + path, data=sent, headers=more, files=files)

    async def put(
        self,
        path: str,
        content: bytes = b"",
        *,
        token: str | None = None,
        origin: str = "",
        content_type: str = "application/octet-stream",
    ) -> httpx2.Response:
        """Sends bytes with the token of the session in a header; see `post`."""
        headers = {
            "x-csrf-token": self.csrf_token if token is None else token,
            "origin": origin or self.origin,
            "content-type": content_type,
        }
        return await self.http.put(CONSOLE_PATH + path, content=content, headers=headers)
