"""Results of a web search, and the supported search engines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProviderName(StrEnum):
    """The supported search engines."""

    TAVILY = "tavily"
    EXA = "exa"
    SEARXNG = "searxng"


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that a search engine returned.

    Attributes:
        text: Excerpt that matches the query.
        published: Date of publication in the engine's format; empty if unknown.
    """

    title: str
    url: str
    text: str
    published: str = ""
