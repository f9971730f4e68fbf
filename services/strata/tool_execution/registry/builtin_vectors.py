"""Embeddings of the built-in tools, which are part of the release.

    python -m strata.tool_execution.registry.builtin_vectors

computes them again after the text of a tool has changed. Each process would otherwise embed all
built-in tools at its first search. A vector whose text hash does not match is not used.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from strata.shared.search.embedding import Embedder
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.registry.search import embedded_text, packed_vector, text_hash

_FILE = "builtin_vectors.json"


def packaged_vectors() -> Mapping[str, bytes]:
    """Returns the vectors as packed 32-bit floats, by the hash of model and text."""
    content = (resources.files(__package__) / _FILE).read_text(encoding="utf-8")
    return {name: _unpacked(encoded) for name, encoded in json.loads(content).items()}


def _unpacked(encoded: str) -> bytes:
    # Half precision changes similarities by less than a thousandth.
    halves = struct.iter_unpack("<e", base64.b64decode(encoded))
    return packed_vector([number for (number,) in halves])


async def _encoded_vectors(embedder: Embedder) -> Mapping[str, str]:
    """Returns half-precision vectors in base64, by hash."""
    tools = sorted(BUILTIN_TOOLS.values(), key=lambda tool: tool.name)
    embeddings = await embedder.embed([embedded_text(tool) for tool in tools], "document")
    return {
        text_hash(embedder.model_id, tool): base64.b64encode(
            struct.pack(f"<{len(embedding)}e", *embedding)
        ).decode("ascii")
        for tool, embedding in zip(tools, embeddings, strict=True)
    }


async def _content() -> str:
    """Returns the content of the file, computed with the model."""
    from strata.shared.search.embedding.minilm import (  # noqa: PLC0415 - loads onnxruntime
        MiniLmEmbedder,
    )

    embedder = await MiniLmEmbedder.load()
    try:
        return json.dumps(await _encoded_vectors(embedder), indent=0) + "\n"
    finally:
        await embedder.close()


def main() -> None:
    """Stores the vectors."""
    path = Path(str(resources.files(__package__) / _FILE))
    path.write_text(asyncio.run(_content()), encoding="utf-8")


if __name__ == "__main__":
    main()
