"""Search engines behind one interface: Tavily, Exa and SearXNG.

Their addresses come from the settings, so the URL guard of pages does not apply: a self-hosted
SearXNG is usually on a private network. Their responses are limited in size, and their text is
untrusted content, as pages are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from strata.shared.json_text import JsonTextError, parse_json
from strata.shared.redaction import key_redactor
from strata.shared.web.errors import FetchError
from strata.shared.web.fetcher import Fetched, Fetcher
from strata.tool_execution.builtin.web_texts import tidy
from strata.tool_execution.domain.web import ProviderName, WebResult

_TEXT_CHARS = 1_000
_TITLE_CHARS = 300
_URL_CHARS = 2_000


DEFAULT_URLS = {
    ProviderName.TAVILY: "https://api.tavily.com",
    ProviderName.EXA: "https://api.exa.ai",
}


class SearchProvider(Protocol):
    """A search engine."""

    async def search(self, query: str, limit: int) -> list[WebResult]:
        """Returns pages, best first.

        Raises:
            FetchError: The engine could not be reached, refused, or gave an invalid response.
        """
        ...


def open_provider(name: ProviderName, url: str, key: str, fetcher: Fetcher) -> SearchProvider:
    """Returns a search engine.

    Args:
        name: The engine.
        url: Root of its API; empty for the engine's public one.
        key: API key; SearXNG needs none.
        fetcher: Reaches every address, and follows no redirects.
    """
    root = (url or DEFAULT_URLS.get(name, "")).rstrip("/")
    engines: dict[ProviderName, Callable[[str, str, Fetcher], SearchProvider]] = {
        ProviderName.TAVILY: Tavily,
        ProviderName.EXA: Exa,
        ProviderName.SEARXNG: SearXNG,
    }
    return engines[name](root, key, fetcher)


class _Engine:
    def __init__(self, root: str, key: str, fetcher: Fetcher) -> None:
        self._root = root
        self._key = key
        self._fetcher = fetcher
        self._redactor = key_redactor(key, root)

    def _results(self, fetched: Fetched) -> Any:
        """Returns the results of a response, with the API key redacted if it is repeated there."""
        return self._redactor.value(_results_of(fetched))

    async def _post(self, credentials: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        fetched = await self._fetcher.fetch(
            f"{self._root}/search",
            accept="application/json",
            credentials=credentials,
            content=json.dumps(body).encode(),
        )
        return self._results(fetched)


class Tavily(_Engine):
    """``POST /search`` with a bearer token."""

    async def search(self, query: str, limit: int) -> list[WebResult]:
        """Returns pages, best first; see `SearchProvider`."""
        results = await self._post(
            {"Authorization": f"Bearer {self._key}"},
            {"query": query, "max_results": limit, "search_depth": "basic"},
        )
        return _hits(results, "content", "published_date")


class Exa(_Engine):
    """``POST /search`` with an ``x-api-key`` and the text of the pages."""

    async def search(self, query: str, limit: int) -> list[WebResult]:
        """Returns pages, best first; see `SearchProvider`."""
        results = await self._post(
            {"x-api-key": self._key},
            {
                "query": query,
                "numResults": limit,
                "type": "auto",
                "contents": {"text": {"maxCharacters": _TEXT_CHARS}},
            },
        )
        return _hits(results, "text", "publishedDate")


class SearXNG(_Engine):
    """``GET /search?format=json``, which has no parameter for the number of results."""

    async def search(self, query: str, limit: int) -> list[WebResult]:
        """Returns pages, best first; see `SearchProvider`."""
        fetched = await self._fetcher.fetch(
            f"{self._root}/search?{urlencode({'q': query, 'format': 'json'})}",
            accept="application/json",
            credentials={"Authorization": f"Bearer {self._key}"} if self._key else None,
        )
        if fetched.status == 403:
            raise FetchError(
                "The search engine refuses to answer in JSON: its settings must list json"
                " under search.formats."
            )
        return _hits(self._results(fetched), "content", "publishedDate")[:limit]


def _results_of(fetched: Fetched) -> Any:
    if fetched.status in (401, 403):
        raise FetchError("The search engine does not accept the key that is set up for it.")
    if fetched.status in (402, 429, 432, 433):
        raise FetchError("The search engine's quota is used up for now.")
    if fetched.status != 200:
        raise FetchError(f"The search engine answered {fetched.status_text}.")
    if fetched.truncated:
        raise FetchError("The search engine's answer is too large.")
    try:
        answer = parse_json(fetched.body)
    except JsonTextError:
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
        raise FetchError("The search engine sent a response that cannot be parsed.")
    return answer["results"]


def _hits(results: list[Any], text: str, published: str) -> list[WebResult]:
    hits = []
    for result in results:
        if not isinstance(result, dict):
            continue
        url = _string(result, "url", _URL_CHARS)
        # Other addresses cannot be fetched.
        if url.startswith(("https://", "http://")):
            hits.append(
                WebResult(
                    title=_string(result, "title", _TITLE_CHARS) or url,
                    url=url,
                    text=_string(result, text, _TEXT_CHARS),
                    published=_string(result, published, 40),
                )
            )
    return hits


def _string(result: Mapping[str, Any], name: str, limit: int) -> str:
    value = result.get(name)
    return tidy(value)[:limit] if isinstance(value, str) else ""
