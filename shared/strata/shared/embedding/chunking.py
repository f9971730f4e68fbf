"""Texts longer than a model reads: overlapping chunks, one vector each."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from strata.shared.embedding.base import Embedder, Kind

_PIECE = re.compile(r"\s*\S+\s*")
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f][\"')\]]*\s*$|\n\s*$")
_DEFAULT_OVERLAP = 32
_SHORT_TEXT = 2_000
# What is done with the vectors of one call is done in one piece.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text that a model reads whole, and its vector."""

    text: str
    vector: list[float]


def chunk_text(
    text: str, count_tokens: Callable[[str], int], max_tokens: int, overlap: int = _DEFAULT_OVERLAP
) -> list[str]:
    """Cut a text into chunks of at most `max_tokens`, preferably where a sentence ends.

    Every character that is not white space is in at least one chunk, in order. A chunk
    starts with up to `overlap` tokens of the one before, so that a sentence that straddles
    the cut is whole in one of them.

    Args:
        text: The text; when it fits it is returned as it is, as the only chunk.
        count_tokens: The model's count. MUST be about additive over words.
        max_tokens: Limit of one chunk, the model's own markers included.
        overlap: Tokens repeated at the start of a chunk; less than half of `max_tokens`.
    """
    markers = count_tokens("")
    budget = max_tokens - markers
    if budget < 1 or not 0 <= overlap <= budget // 2:
        raise ValueError("chunks need space for one token and twice the overlap")
    if count_tokens(text) <= max_tokens:
        return [text]
    pieces = _pieces(text, lambda part: count_tokens(part) - markers, budget)
    chunks: list[str] = []
    start = 0
    while start < len(pieces):
        end = _chunk_end(pieces, start, budget)
        chunks.append("".join(part for part, _ in pieces[start:end]).strip())
        if end == len(pieces):
            break
        start = _step_back(pieces, start, end, overlap)
    return [chunk for chunk in chunks if chunk]


async def embed_chunked(
    embedder: Embedder,
    texts: Sequence[str],
    kind: Kind = "document",
    *,
    chunk_tokens: int | None = None,
) -> list[list[Chunk]]:
    """Embed texts of any length: for each text its chunks, at least one, in order.

    Args:
        embedder: The model.
        texts: Any number.
        kind: Whether they ask or are asked for.
        chunk_tokens: Most tokens of a chunk; None, or what the model cannot read, is the model's
            own limit.
    """
    most = min(chunk_tokens or embedder.max_tokens, embedder.max_tokens)
    overlap = min(_DEFAULT_OVERLAP, most // 4)
    cut = partial(_cut, texts, embedder.count_tokens, most, overlap)
    # Counting the tokens of a long text, or of many, would hold up the event loop.
    short = sum(map(len, texts)) <= _SHORT_TEXT
    parts = cut() if short else await asyncio.to_thread(cut)
    chunks = [chunk for chunks in parts for chunk in chunks]
    vectors: list[list[float]] = []
    for start in range(0, len(chunks), _AT_ONCE):
        vectors += await embedder.embed(chunks[start : start + _AT_ONCE], kind)
    remaining = iter(vectors)
    return [[Chunk(chunk, next(remaining)) for chunk in chunks] for chunks in parts]


def _cut(
    texts: Sequence[str], count_tokens: Callable[[str], int], most: int, overlap: int
) -> list[list[str]]:
    return [chunk_text(text, count_tokens, most, overlap) for text in texts]


def _pieces(text: str, tokens: Callable[[str], int], budget: int) -> list[tuple[str, int]]:
    """Words with their token counts; a word above the budget is halved until it fits."""
    result: list[tuple[str, int]] = []
    stack = [match.group() for match in reversed(list(_PIECE.finditer(text)))]
    while stack:
        part = stack.pop()
        count = tokens(part)
        if count <= budget or len(part) == 1:
            result.append((part, min(count, budget)))
        else:
            middle = len(part) // 2
            stack += [part[middle:], part[:middle]]
    return result


def _chunk_end(pieces: list[tuple[str, int]], start: int, budget: int) -> int:
    """One past the last piece: as many as fit, back to a sentence end in the last third."""
    used = 0
    end = start
    sentence_end = None
    while end < len(pieces) and used + pieces[end][1] <= budget:
        used += pieces[end][1]
        end += 1
        if used * 3 >= budget * 2 and _SENTENCE_END.search(pieces[end - 1][0]):
            sentence_end = end
    if end == len(pieces) or sentence_end is None:
        return end
    return sentence_end


def _step_back(pieces: list[tuple[str, int]], start: int, end: int, overlap: int) -> int:
    """Where the next chunk starts: up to `overlap` tokens before the cut, past `start`."""
    used = 0
    while end - 1 > start and used + pieces[end - 1][1] <= overlap:
        end -= 1
        used += pieces[end][1]
    return end
