"""Extracts the searchable text of messages, and splits scripts without spaces into pairs.

PostgreSQL's parsers split at spaces. Runs of Han, Kana, Hangul and Thai characters are
therefore also stored as overlapping pairs of characters, so that words within them match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strata.protocol.images import image_text
from strata.recall.domain.messages import Message
from strata.shared.json_text import JsonTextError, encodable_text, parse_json
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance
from strata.shared.search.folded_text import compatible
from strata.shared.tool_catalogue import HISTORY_TOOLS
from strata.shared.tool_returns import result_of

# A tsvector is limited to 1 MB, so only this many characters of a message are searchable.
MAX_SEARCH_CHARS = 100_000
MAX_PAIR_CHARS = 20_000

_UNSPACED = re.compile(
    "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
INDEXED_ROLES = frozenset({MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SUMMARY})
"""Roles of messages in the vector index; messages of the others are searched by words only."""
_SEARCHABLE_ROLES = INDEXED_ROLES | {MessageRole.TOOL}


@dataclass(frozen=True, slots=True)
class SearchText:
    """Text for PostgreSQL's parser, and character pairs for scripts without spaces."""

    words: str
    pairs: str

    def __bool__(self) -> bool:
        return bool(self.words.strip() or self.pairs)


def split_text(text: str) -> SearchText:
    """Splits text into words (unspaced runs become spaces) and character pairs."""
    text = compatible(text[:MAX_SEARCH_CHARS])
    runs = _UNSPACED.findall(text[:MAX_PAIR_CHARS])
    pairs = " ".join(pair for run in runs for pair in _pairs(run))
    return SearchText(words=_UNSPACED.sub(" ", text[:MAX_SEARCH_CHARS]), pairs=pairs)


def searchable_text(message: Message) -> str:
    """Returns the searchable text of a message; empty if it has none.

    It starts with the name of the user, if there is one. An image is found by its description
    and by the word "image". Not searchable are system and approval messages, heartbeats and logins
    (which the system writes in the user's role), reasoning, and arguments of tool calls, except the
    text of ``send_message``. Of a return the message is searchable, not its package. Calls and
    returns of tools that show messages (`HISTORY_TOOLS`) are excluded too, so that a search does
    not find the results of earlier searches.
    """
    if message.role not in _SEARCHABLE_ROLES:
        return ""
    if message.role is MessageRole.USER and message.provenance == (Provenance.SYSTEM,):
        return ""
    calls = [part for part in message.parts if part["type"] == "tool_call"]
    if any(call["name"] in HISTORY_TOOLS for call in calls):
        return ""
    pieces = [str(part["text"]) for part in message.parts if part["type"] in {"text", "summary"}]
    pieces += [
        image_text(part.get("alt_text", "")) for part in message.parts if part["type"] == "image"
    ]
    if message.role is MessageRole.USER and message.name:
        pieces.insert(0, f"{message.name}:")
    pieces += [_sent_text(call["arguments"]) for call in calls if call["name"] == "send_message"]
    pieces += [
        result_of(str(part["content"]))
        for part in message.parts
        if part["type"] == "tool_return" and part["name"] not in HISTORY_TOOLS
    ]
    return "\n".join(piece for piece in pieces if piece)


def is_indexed(message: Message) -> bool:
    """Returns whether the vector index contains a message: of a user or agent, or a summary.

    Returns of tools are long and rarely prose, so they are only searched by words.
    """
    return message.role in INDEXED_ROLES and bool(searchable_text(message).strip())


def _sent_text(arguments: str) -> str:
    try:
        value = parse_json(arguments)
    except JsonTextError:
        return ""
    message = value.get("message", "") if isinstance(value, dict) else ""
    # Escape sequences in the arguments may decode to text that the database cannot store.
    return encodable_text(message.replace("\0", "")) if isinstance(message, str) else ""


def _pairs(run: str) -> list[str]:
    if len(run) == 1:
        return [run]
    return [run[index : index + 2] for index in range(len(run) - 1)]
