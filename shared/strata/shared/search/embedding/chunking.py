"""Splits texts that are longer than a model reads into overlapping chunks, and embeds these."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from strata.shared.search.embedding.base import Embedder
from strata.shared.text_work import run_text_work

_PIECE = re.compile(r"\s*\S+\s*")
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f][\"')\]]*\s*$|\n\s*$")
_DEFAULT_OVERLAP = 32
# Texts per call of the embedder, because the vectors of one call are processed in one piece.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class EmbeddedChunk:
    """A part of a text that a model reads whole, and its vector."""

    text: str
    vector: list[float]


def chunk_text(
    text: str, count_tokens: Callable[[str], int], max_tokens: int, overlap: int = _DEFAULT_OVERLAP
) -> list[str]:
    """Splits a text into chunks of at most `max_tokens`, preferably where a sentence ends.

    Every character except white space is in at least one chunk, in order. Where a chunk does not
    end with a sentence or a line, the next one starts with up to `overlap` tokens of it, so that
    the text at the boundary is complete in one of them.

    Args:
        text: The text; if it fits, it is returned unchanged as the only chunk.
        count_tokens: The model's count. MUST be approximately additive over words.
        max_tokens: Limit of one chunk, including the model's markers.
        overlap: Tokens repeated at the start of a chunk; less than half of `max_tokens`.
    """
    markers = count_tokens("")
    budget = max_tokens - markers
    if budget < 1 or not 0 <= overlap <= budget // 2:
        raise ValueError("chunks need space for one token and twice the overlap")
    if count_tokens(text) <= max_tokens:
        return [text]
    # Most words of a long text occur more than once in it.
    pieces = _pieces(text, cache(lambda part: count_tokens(part) - markers), budget)
    chunks: list[str] = []
    start = 0
    while start < len(pieces):
        end = _chunk_end(pieces, start, budget)
        chunks.append("".join(part for part, _ in pieces[start:end]).strip())
        if end == len(pieces):
            break
        whole = _SENTENCE_END.search(pieces[end - 1][0])
        start = end if whole else _step_back(pieces, start, end, overlap)
    return [chunk for chunk in chunks if chunk]


async def embed_chunked(
    embedder: Embedder, texts: Sequence[str], *, chunk_tokens: int | None = None
) -> list[list[EmbeddedChunk]]:
    """Embeds documents of any length; returns the chunks of each text, at least one, in order.

    Args:
        embedder: The model.
        texts: Any number.
        chunk_tokens: Maximum number of tokens of a chunk; None, or more than the model reads, means
            the model's own limit.
    """
    most = min(chunk_tokens or embedder.max_tokens, embedder.max_tokens)
    overlap = min(_DEFAULT_OVERLAP, most // 4)
    cut_texts = partial(_cut, texts, embedder.count_tokens, most, overlap)
    parts = await run_text_work(texts, cut_texts)
    chunks = [chunk for chunks in parts for chunk in chunks]
    vectors: list[list[float]] = []
    for start in range(0, len(chunks), _AT_ONCE):
        vectors += await embedder.embed(chunks[start : start + _AT_ONCE], "document")
    remaining = iter(vectors)
    return [[EmbeddedChunk(chunk, next(remaining)) for chunk in chunks] for chunks in parts]


def _cut(
    texts: Sequence[str], count_tokens: Callable[[str], int], most: int, overlap: int
) -> list[list[str]]:
    return [chunk_text(text, count_tokens, most, overlap) for text in texts]


def _pieces(text: str, tokens: Callable[[str], int], budget: int) -> list[tuple[str, int]]:
    """Returns words with their token counts; a word above the budget is halved until it fits."""
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
    """Returns the end of a chunk: as many pieces as fit, or less to end with a sentence."""
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
    """Returns the start of the next chunk: up to `overlap` tokens before the end, after `start`."""
    used = 0
    while end - 1 > start and used + pieces[end - 1][1] <= overlap:
        end -= 1
        used += pieces[end][1]
    return end
