"""Sparse vectors: well formed for any text, the same terms for query and document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.vectors.sparse import SparseEncoder

ENCODER = SparseEncoder()
IDEOGRAPHS = st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5), min_size=1)


def terms(text: str) -> set[int]:
    return set(ENCODER.query(text).indices)


@given(st.text())
def test_vectors_are_well_formed_for_any_text(text: str) -> None:
    for vector in (ENCODER.document(text), ENCODER.query(text)):
        assert len(vector.indices) == len(vector.values) == len(set(vector.indices))
        assert all(0 <= index < 2**32 for index in vector.indices)
        assert all(value > 0 for value in vector.values)


@given(st.text())
def test_a_text_has_all_terms_of_itself(text: str) -> None:
    assert terms(text) <= set(ENCODER.document(text).indices)


@given(IDEOGRAPHS, IDEOGRAPHS, IDEOGRAPHS)
def test_any_part_of_an_unspaced_text_is_found(before: str, part: str, after: str) -> None:
    assert terms(part) <= set(ENCODER.document(before + part + after).indices)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("running", "runs"),
        ("Café", "cafe"),
        ("\uff21\uff22\uff23", "abc"),
        ("ｽｼ", "スシ"),
        ("peanuts", "Peanut"),
    ],
)
def test_forms_of_one_word_are_one_term(left: str, right: str) -> None:
    assert terms(left) == terms(right) != set()


@pytest.mark.parametrize("text", ["", "   ", "who are you", "!?", "\ud800"])
def test_texts_without_words_are_empty(text: str) -> None:
    assert not ENCODER.query(text)


def test_numbers_and_codes_are_terms() -> None:
    document = set(ENCODER.document("Order E-1042 costs 3.5 dollars, paid 2026-03-01").indices)
    for query in ("E-1042", "3.5", "2026-03-01", "1042"):
        assert terms(query)
        assert terms(query) <= document


def test_frequent_words_count_more_and_long_texts_less() -> None:
    [index] = ENCODER.query("zebra").indices

    def weight(text: str) -> float:
        vector = ENCODER.document(text)
        return vector.values[list(vector.indices).index(index)]

    assert weight("zebra zebra house") > weight("zebra house street")
    assert weight("zebra house") > weight("zebra " + "house street lamp " * 100)
