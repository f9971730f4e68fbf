"""What a search of the web finds, and who can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProviderName(StrEnum):
    """The known search engines."""

    TAVILY = "tavily"
    EXA = "exa"
    SEARXNG = "searxng"


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that was found.

    Attributes:
        text: What of it answers the query.
        published: A date as the engine writes it; empty if it names none.
    """

    title: str
    url: str
    text: str
    published: str = ""
