"""The real local model: reproducible vectors, similarities, verified weights."""

import asyncio
import math
from pathlib import Path

import pytest

from loop_watch import counted_turns
from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.search.embedding import Embedder, embed_chunked
from strata.shared.search.embedding.minilm import WEIGHTS, MiniLmEmbedder

TEXTS = [
    "",
    "My sister lives in Lisbon.",
    "The quarterly report is due on Friday. " * 20,
    "私は寿司が好きです",
    "emoji 😀 and \x00 control \ud800 characters",
    "x" * 500,
]


def cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


async def test_the_embedder_has_its_dimension_and_token_limit(minilm: MiniLmEmbedder) -> None:
    assert isinstance(minilm, Embedder)
    assert (minilm.dim, minilm.max_tokens, minilm.normalized) == (384, 256, True)
    assert minilm.count_tokens("Hello, world!") == 6


async def test_a_batch_returns_the_same_vectors_as_single_texts(minilm: MiniLmEmbedder) -> None:
    together = await minilm.embed(TEXTS * 2, "document")
    alone = [(await minilm.embed([text], "query"))[0] for text in TEXTS]
    assert together == alone * 2


async def test_vectors_have_unit_length(minilm: MiniLmEmbedder) -> None:
    for vector in await minilm.embed(TEXTS, "document"):
        assert len(vector) == 384
        assert math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)


@pytest.mark.parametrize(
    ("query", "answer", "other"),
    [
        (
            "Where does my sister live?",
            "My sister moved to Lisbon last year.",
            "I am allergic to peanuts.",
        ),
        (
            "What food must I avoid?",
            "The user has a severe peanut allergy.",
            "The user plays chess on Sundays.",
        ),
        ("car", "automobile", "banana"),
    ],
)
async def test_a_paraphrase_is_nearer_than_another_fact(
    minilm: MiniLmEmbedder, query: str, answer: str, other: str
) -> None:
    asked, right, wrong = await minilm.embed([query, answer, other], "query")
    assert cosine(asked, right) > cosine(asked, wrong) + 0.15


async def test_similarities_equal_those_of_the_reference_model(minilm: MiniLmEmbedder) -> None:
    """The model card's example; fp32 gives 0.6660, 0.1411 and so on for its three texts."""
    first, second, third = await minilm.embed(
        [
            "The weather is lovely today.",
            "It's so sunny outside!",
            "He drove to the stadium.",
        ],
        "document",
    )
    assert cosine(first, second) == pytest.approx(0.6660, abs=0.01)
    assert cosine(first, third) == pytest.approx(0.1046, abs=0.01)
    assert cosine(second, third) == pytest.approx(0.1411, abs=0.01)


async def test_the_end_of_a_long_text_is_found_through_its_chunks(minilm: MiniLmEmbedder) -> None:
    filler = "The committee discussed the budget for road maintenance at length. " * 40
    text = filler + "By the way, the password of the safe is written under the piano."
    [chunks] = await embed_chunked(minilm, [text])
    [query] = await minilm.embed(["Where is the password for the safe?"], "query")
    assert len(chunks) > 1
    scores = [cosine(query, chunk.vector) for chunk in chunks]
    assert scores[-1] == max(scores)
    [whole] = await minilm.embed([text], "document")
    assert scores[-1] > cosine(query, whole) + 0.1


async def test_embedding_does_not_block_the_event_loop(minilm: MiniLmEmbedder) -> None:
    async with counted_turns() as turns:
        await minilm.embed(["a long text about many things " * 40] * 8, "document")
        assert turns() > 8


async def test_a_query_does_not_wait_for_a_whole_batch_of_documents(minilm: MiniLmEmbedder) -> None:
    bulk = asyncio.create_task(minilm.embed(["bulk text " * 50] * 64, "document"))
    await asyncio.sleep(0)
    await minilm.embed(["query"], "query")
    assert not bulk.done()
    assert len(await bulk) == 64


async def test_other_weights_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "model.onnx"
    content = bytearray(WEIGHTS.find().read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DataLossError, match="sha256") as caught:
        await MiniLmEmbedder.load(damaged)
    assert caught.value.metadata["path"] == str(damaged)


async def test_the_error_for_missing_weights_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FailedPreconditionError, match="no-such-file") as caught:
        await MiniLmEmbedder.load(tmp_path / "no-such-file")
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED


async def test_weights_are_loaded_from_a_given_path(tmp_path: Path, minilm: MiniLmEmbedder) -> None:
    copy = tmp_path / "elsewhere.onnx"
    copy.write_bytes(WEIGHTS.find().read_bytes())
    other = await MiniLmEmbedder.load(copy)
    try:
        assert await other.embed(["same"], "query") == await minilm.embed(["same"], "query")
    finally:
        await other.close()
