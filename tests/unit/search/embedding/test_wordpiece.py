"""The WordPiece tokenizer, compared with the reference implementation."""

import hashlib
import json
import math
import unicodedata
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.embedding.wordpiece import LetterPairs, WordPieceTokenizer

# Made with `tokenizers` 0.23 and the model's own tokenizer.json, truncation off.
REFERENCE = json.loads((Path(__file__).parent / "reference_tokens.json").read_text())
TOKENIZER = WordPieceTokenizer.bert_uncased()
CLS, SEP, UNKNOWN, VOCABULARY_SIZE = 101, 102, 100, 30_522


@pytest.mark.parametrize("case", REFERENCE, ids=[ascii(case["text"])[:40] for case in REFERENCE])
def test_ids_equal_those_of_the_reference(case: dict[str, object]) -> None:
    assert TOKENIZER.encode(str(case["text"]), 10_000) == case["ids"]


def test_the_vocabulary_is_the_published_file() -> None:
    file = (
        resources.files("strata.shared.search.embedding") / "data" / "bert-base-uncased-vocab.txt"
    )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def test_encode_cuts_at_the_limit_and_keeps_the_end_marker() -> None:
    ids = TOKENIZER.encode("word " * 300, 256)
    assert len(ids) == 256
    assert (ids[0], ids[-1]) == (CLS, SEP)


def test_typed_markers_are_text() -> None:
    assert SEP not in TOKENIZER.tokenize("ignore [SEP] this [CLS]")


def test_lone_surrogates_are_dropped() -> None:
    assert TOKENIZER.tokenize("a\ud800b") == TOKENIZER.tokenize("ab")


def test_a_long_word_becomes_one_unknown_token() -> None:
    assert TOKENIZER.tokenize("x" * 101) == [UNKNOWN]


@given(st.text())
def test_any_text_is_tokenized_to_ids_of_the_vocabulary(text: str) -> None:
    ids = TOKENIZER.tokenize(text)
    assert all(0 <= number < VOCABULARY_SIZE for number in ids)
    assert CLS not in ids
    assert SEP not in ids


@given(st.text(), st.text())
def test_texts_separated_by_a_space_are_tokenized_independently(left: str, right: str) -> None:
    # A combining mark at the start of a text would change the preceding blank.
    together = TOKENIZER.tokenize(f"{left} {right}")
    if not any(unicodedata.combining(char) for char in right):
        assert together == TOKENIZER.tokenize(left) + TOKENIZER.tokenize(right)


@given(st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=50))
def test_every_ideograph_is_a_separate_token(text: str) -> None:
    assert len(TOKENIZER.tokenize(text)) == len(text)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_tokenization_ignores_case(text: str) -> None:
    assert TOKENIZER.tokenize(text.upper()) == TOKENIZER.tokenize(text.lower())


@given(st.text(max_size=200), st.integers(min_value=0, max_value=40))
def test_a_limit_returns_the_first_ids(text: str, limit: int) -> None:
    assert TOKENIZER.tokenize(text, limit) == TOKENIZER.tokenize(text)[:limit]


@given(st.text(max_size=50), st.text(max_size=50))
def test_the_texts_of_a_pair_are_separated_and_numbered(first: str, second: str) -> None:
    left, right = TOKENIZER.tokenize(first), TOKENIZER.tokenize(second)
    ids, types = TOKENIZER.join(left, right)
    assert ids == [CLS, *left, SEP, *right, SEP]
    assert types == [0] * (len(left) + 2) + [1] * (len(right) + 1)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 1),
        ("?!", 1),
        ("What must she not eat?", 1),
        ("\U0001f389", 0),
        ("\U0001f389!", 0),
        ("\U0001f389 birthday", 0.5),
        ("x" * 120, 0),
        ("zzzqqq", 0),
        ("zxcvbnm asked", 0.5),
        ("asdf qwer", 0),
        ("what is sdfsdf", 2 / 3),
        ("blorptz", 0),
        ("Kubernetes metformin Geburtstag config debug cursor hypotenuse", 1),
        ("parse_iso_date", 1),
        ("\u0434\u0435\u043d\u044c", 1),
        ("\u65c5\u884c", 0),
        ("\u30e2\u30e2", 0),
        ("\uc548\ub155", 0),
        ("\u0e44\u0e17\u0e22", 0),
        ("Porto \u65c5\u884c", 1 / 3),
        ("2026-11-24", 1),
        ("jwt", 1),
    ],
)
def test_the_known_share_excludes_words_without_whole_pieces(text: str, share: float) -> None:
    assert TOKENIZER.known_share(text) == pytest.approx(share)


def test_random_letters_have_more_information_than_english_words() -> None:
    pairs = LetterPairs(["sing", "song", "ring", "bring", "long"])
    assert pairs.bits("sing") < pairs.bits("song") < pairs.bits("gnis")
    assert LetterPairs([]).bits("a") == pytest.approx(math.log2(27))
