"""Embedding models other than the built-in ones, behind an HTTP server with `/v1/embeddings`.

`WORDS` has one dimension for each word, so texts are near when they share words. `NOISE` gives
every text a direction of its own, so no search finds a text.
"""

from __future__ import annotations

import math
import random
import re
from hashlib import sha256
from typing import Any

from contract.search.embedding.conftest import EmbeddingServer, Reply

WORDS, NOISE = "words-model", "noise-model"
DIM = 256


def vector_of(model: str, text: str) -> list[float]:
    if model == NOISE:
        draw = random.Random(sha256(text.encode()).digest())
        return [draw.uniform(-1, 1) for _ in range(DIM)]
    vector = [0.0] * DIM
    for word in re.findall(r"\w+", text.lower()):
        digest = sha256(word.encode()).digest()
        vector[digest[0]] += 1.0 if digest[1] % 2 else -1.0
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else [1.0] + [0.0] * (DIM - 1)


def answer(request: dict[str, Any]) -> Reply:
    """Returns the answer to one request."""
    data = [
        {"object": "embedding", "index": place, "embedding": vector_of(request["model"], text)}
        for place, text in enumerate(request["input"])
    ]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    body = {"object": "list", "data": data, "model": request["model"], "usage": usage}
    return Reply(body=body)


async def serve() -> EmbeddingServer:
    """Yields the endpoint, which is running."""
    server = EmbeddingServer()
    server.script = answer
    await server.start()
    return server


def endpoints(base_url: str) -> list[dict[str, Any]]:
    """Returns the configuration of the models for the settings."""
    return [
        {"name": name, "dim": DIM, "base_url": base_url, "api_key": "k"} for name in (WORDS, NOISE)
    ]
