"""Searches tools by words and by meaning (embeddings)."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strata.protocol.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.search.embedding import Embedder
from strata.tool_execution.domain.registry import StoredVector, ToolStore
from strata.tool_execution.domain.tools import Tool

# Projects have a few hundred tools. Tools beyond this limit are not searched, only listed.
MOST_TOOLS = 2_000
_WORD = re.compile(r"[^\W_]+")
_NAME_WEIGHT = 2.0
_TAG_WEIGHT = 1.5
# Vectors are kept after each of these batches. A search makes a batch at least, and stops at the
# first one that ends after the time limit: where other work keeps all processors busy, the local
# model embeds documents at a tenth of its speed (`ModelThreads`), and a client waits 30 seconds.
_BATCH = 16
_LONGEST_S = 10.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolMatch:
    """A matching tool and its score; scores are comparable within one search."""

    tool: Tool
    score: float


class ToolSearch:
    """Searches the tools of the calling project and the built-in ones.

    There is no index: all tools of a project are read with one query, together with their vectors,
    and the sources of the matches with another one.
    Vectors of built-in tools are part of the release (`builtin_vectors`). Others are computed when
    they are first needed, and again when the text of the tool changes. If a search would take too
    long because many are needed, it compares the other tools by words only, and the next search
    computes more of them.

    Args:
        store: The project's tools.
        builtin: The built-in tools by name.
        open_embedder: Loads the embedding model; called once, for the first search.
        packaged_vectors: Returns the vectors of built-in tools that need not be computed, by the
            hash of their text; called in a thread for the first search.
    """

    def __init__(
        self,
        store: ToolStore,
        builtin: Mapping[str, Tool],
        open_embedder: Callable[[], Awaitable[Embedder]] | None = None,
        packaged_vectors: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        self._store = store
        self._builtin = builtin
        self._open = open_embedder
        self._embedder: Embedder | None = None
        self._opening = asyncio.Lock()
        self._packaged_vectors = packaged_vectors
        self._own_vectors: dict[str, bytes] = {}
        # The embeddings that run now, by the hash of their text.
        self._running: dict[str, asyncio.Task[Mapping[str, bytes]]] = {}

    async def search(self, query: str, limit: int) -> Sequence[ToolMatch]:
        """Returns the best matches, best first; tools that do not match are left out.

        Without an embedding model, only words are compared.
        """
        stored_tools = await self._store.searchable(MOST_TOOLS)
        tools_by_name = {tool.name: (tool, vector) for tool, vector in stored_tools}
        tools_by_name.update((tool.name, (tool, None)) for tool in self._builtin.values())
        tools = [tool for tool, _ in tools_by_name.values()]
        stored_vectors = {tool.id: vector for tool, vector in stored_tools if vector is not None}
        query_vector, vectors = await self._vectors_for(query, tools, stored_vectors)
        # In a thread: 2,000 tools take more than a tenth of a second.
        matches = await asyncio.to_thread(_best, query, query_vector, tools, vectors, limit)
        return await self._whole(matches)

    async def _whole(self, matches: Sequence[ToolMatch]) -> list[ToolMatch]:
        """Returns matches with the source of their tools; without tools that were deleted."""
        own_names = [match.tool.name for match in matches if match.tool.own is not None]
        own = await self._store.named(own_names) if own_names else {}
        whole = []
        for match in matches:
            tool = match.tool if match.tool.own is None else own.get(match.tool.name)
            if tool is not None:
                whole.append(replace(match, tool=tool))
        return whole

    async def _vectors_for(
        self, query: str, tools: Sequence[Tool], stored_vectors: Mapping[str, StoredVector]
    ) -> tuple[Sequence[float], Mapping[str, bytes]]:
        """Returns the vector of the query, and the tools' vectors by id; none without a model."""
        try:
            embedder = await self._model()
            if embedder is None:
                return (), {}
            vectors = await self._vectors(embedder, tools, stored_vectors)
            [query_vector] = await embedder.embed([query], "query")
        except StrataError as error:
            _log.warning("tools are searched by words only", reason=error.reason.value)
            return (), {}
        return query_vector, vectors

    async def _model(self) -> Embedder | None:
        if self._open is None:
            return None
        async with self._opening:
            if self._embedder is None:
                self._own_vectors.update(await asyncio.to_thread(self._packaged_vectors))
                self._embedder = await self._open()
        return self._embedder

    async def _vectors(
        self, embedder: Embedder, tools: Sequence[Tool], stored_vectors: Mapping[str, StoredVector]
    ) -> dict[str, bytes]:
        vectors: dict[str, bytes] = {}
        missing: list[tuple[Tool, str]] = []
        hashes = await asyncio.to_thread(_hashes, embedder.model_id, tools)
        for tool, name in zip(tools, hashes, strict=True):
            stored_vector = stored_vectors.get(tool.id)
            if tool.own is None and name in self._own_vectors:
                vectors[tool.id] = self._own_vectors[name]
            elif stored_vector is not None and stored_vector.text_hash == name:
                vectors[tool.id] = stored_vector.vector
            else:
                missing.append((tool, name))
        loop = asyncio.get_running_loop()
        latest = loop.time() + _LONGEST_S
        while missing:
            batch, missing = missing[:_BATCH], missing[_BATCH:]
            vectors.update(await self._new_vectors(embedder, batch))
            if missing and loop.time() >= latest:
                _log.warning("some tools are searched by words only", tools=len(missing))
                break
        return vectors

    async def _new_vectors(
        self, embedder: Embedder, tools: Sequence[tuple[Tool, str]]
    ) -> dict[str, bytes]:
        """Computes and keeps the vectors of tools, given with the hashes of their texts."""
        texts = {key: embedded_text(tool) for tool, key in tools}
        embeddings = await self._embedded(embedder, texts)
        self._own_vectors.update((key, embeddings[key]) for tool, key in tools if tool.own is None)
        keep = [
            StoredVector(tool.id, key, embeddings[key])
            for tool, key in tools
            if tool.own is not None
        ]
        if keep:
            await self._store.keep_vectors(keep)
        return {tool.id: embeddings[key] for tool, key in tools}

    async def _embedded(self, embedder: Embedder, texts: Mapping[str, str]) -> Mapping[str, bytes]:
        """Returns the vectors of texts by hash; concurrent searches embed equal texts once."""
        new = {key: text for key, text in texts.items() if key not in self._running}
        if new:
            task = asyncio.create_task(_embed(embedder, new))
            self._running.update(dict.fromkeys(new, task))
            task.add_done_callback(lambda _: self._ended(new))
        vectors: dict[str, bytes] = {}
        for task in {self._running[key] for key in texts}:
            # A search that is cancelled does not cancel what another one waits for.
            vectors.update(await asyncio.shield(task))
        return vectors

    def _ended(self, keys: Iterable[str]) -> None:
        for key in keys:
            task = self._running.pop(key)
            if not task.cancelled():
                # If no search waits any longer, asyncio would log that no code has read it.
                task.exception()


async def _embed(embedder: Embedder, texts: Mapping[str, str]) -> Mapping[str, bytes]:
    embeddings = await embedder.embed(list(texts.values()), "document")
    return dict(zip(texts, map(packed_vector, embeddings), strict=True))


# Highest cosine similarity of unrelated texts with the local model.
_UNRELATED = 0.2


def embedded_text(tool: Tool) -> str:
    """Returns the text whose embedding stands for a tool."""
    words = " ".join(_words(tool.name))
    arguments = ", ".join(tool.parameters.get("properties", {}))
    return f"{words}. {tool.description}\n{arguments} {' '.join(tool.tags)}"


def text_hash(model: str, tool: Tool) -> str:
    """Returns the hash of an embedding model's id and the text of a tool that it embeds."""
    return hashlib.sha256(f"{model}\n{embedded_text(tool)}".encode()).hexdigest()


def _hashes(model: str, tools: Sequence[Tool]) -> list[str]:
    return [text_hash(model, tool) for tool in tools]


def _best(
    query: str,
    query_vector: Sequence[float],
    tools: Sequence[Tool],
    vectors: Mapping[str, bytes],
    limit: int,
) -> list[ToolMatch]:
    """Returns the best matches, best first; a tool without a vector is compared by words only."""
    hits = []
    for tool in tools:
        words = _overlap(query, tool)
        vector = vectors.get(tool.id)
        meaning = 0.0 if vector is None else max(0.0, _cosine(query_vector, _unpacked(vector)))
        if words or meaning > _UNRELATED:
            hits.append(ToolMatch(tool, (words + meaning) / 2))
    hits.sort(key=lambda hit: (-hit.score, hit.tool.name))
    return hits[:limit]


def _overlap(query: str, tool: Tool) -> float:
    """Returns the weighted share of the query's words that a tool contains; 0 to 1."""
    query_words = set(_words(query))
    if not query_words:
        return 0.0
    name, tags = set(_words(tool.name)), set(_words(" ".join(tool.tags)))
    described = set(_words(tool.description))
    gained = 0.0
    for word in query_words:
        if word in name:
            gained += _NAME_WEIGHT
        elif word in tags:
            gained += _TAG_WEIGHT
        elif word in described or (len(word) > 3 and any(w.startswith(word) for w in described)):
            gained += 1.0
    return gained / (_NAME_WEIGHT * len(query_words))


def _words(text: str) -> list[str]:
    # Splits getWeather into two words, like get_weather.
    return _WORD.findall(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower())


def packed_vector(vector: Sequence[float]) -> bytes:
    """Returns a vector as packed 32-bit floats."""
    return struct.pack(f"<{len(vector)}f", *vector)


def _unpacked(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def _cosine(left: Sequence[float], right: Sequence[float]) -> float:
    if len(left) != len(right):
        return 0.0
    size = math.sqrt(sum(a * a for a in left)) * math.sqrt(sum(b * b for b in right))
    return sum(a * b for a, b in zip(left, right, strict=True)) / size if size else 0.0
