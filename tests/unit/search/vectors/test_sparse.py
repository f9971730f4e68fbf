"""Sparse vectors of queries and documents."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.shared.search.languages import stop_word_languages
from strata.shared.search.vectors.sparse import SparseEncoder

ENCODER = SparseEncoder()
IDEOGRAPHS = st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5), min_size=1)


def terms(text: str) -> set[int]:
    return set(ENCODER.query(text).indices)


def meets(query: str, document: str) -> bool:
    return not terms(query).isdisjoint(ENCODER.document(document).indices)


@given(st.text())
def test_vectors_are_well_formed_for_any_text(text: str) -> None:
    for vector in (ENCODER.document(text), ENCODER.query(text)):
        assert len(vector.indices) == len(vector.values) == len(set(vector.indices))
        assert all(0 <= index < 2**32 for index in vector.indices)
        assert all(value > 0 for value in vector.values)


@given(st.text())
@example("M:SI")
def test_a_text_matches_itself(text: str) -> None:
    assert not terms(text) or not ENCODER.document(text) or meets(text, text)


SENTENCES = {
    "english": "We were {} at the station",
    "german": "Wir haben {} nicht mehr gesehen",
    "french": "Nous avons {} dans la maison",
    "spanish": "Nosotros estamos {} con los amigos",
    "none": "{} 12",
}


@given(
    st.lists(
        st.text("abcdefghijklmnopqrstuvwxyz", min_size=4, max_size=12), min_size=1, max_size=3
    ),
    st.sampled_from(list(SENTENCES)),
    st.data(),
)
def test_words_match_within_a_language_and_if_the_language_is_unclear(
    words: list[str], document: str, data: st.DataObject
) -> None:
    unclear = document in ("english", "none")
    query = data.draw(st.sampled_from(list(SENTENCES) if unclear else [document, "none"]))
    shared = [word for word in words if not stop_word_languages(word)]
    if shared:
        question, text = SENTENCES[query].format(shared[0]), SENTENCES[document]
        assert meets(question, text.format(" ".join(shared)))


def test_a_chunk_without_a_language_has_english_terms_too() -> None:
    code = "projects = load_projects(path)"
    assert set(ENCODER.document(code).indices) & set(ENCODER.document("the projects").indices)
    assert len(ENCODER.document("projects").indices) == 1


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("Wo wohnen meine Schwestern?", "Meine Schwester wohnt in Bern."),
        ("Quelles maladies?", "La maladie de mon p\u00e8re est grave."),
        ("\u00bfD\u00f3nde est\u00e1n los gatos?", "El gato duerme en la cocina."),
        ("Which sisters?", "My sister is here."),
    ],
)
def test_words_are_stemmed_in_their_language(query: str, document: str) -> None:
    assert meets(query, document)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("Was ist mit dem Hund?", "Die Katze ist mit der Maus da."),
        ("O\u00f9 est la gare ?", "La maison est grande, o\u00f9 est le chat"),
        ("\u6211\u7684\u72d7\u53eb\u4ec0\u4e48", "\u6211\u7684\u732b\u5728\u5bb6"),
        (
            "\u72ac\u306f\u3069\u3053\u3067\u3059\u304b",
            "\u732b\u306f\u3069\u3053\u3067\u3059\u304b",
        ),
    ],
)
def test_stop_words_alone_do_not_match(query: str, document: str) -> None:
    assert terms(query)
    assert not meets(query, document)


@given(IDEOGRAPHS, IDEOGRAPHS, IDEOGRAPHS)
def test_any_part_of_a_text_without_spaces_is_found(before: str, part: str, after: str) -> None:
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
def test_forms_of_one_word_match(left: str, right: str) -> None:
    assert meets(left, right)
    assert meets(right, left)


@pytest.mark.parametrize("text", ["", "   ", "who are you", "!?", "\ud800"])
def test_texts_without_words_are_empty(text: str) -> None:
    assert not ENCODER.query(text)


def test_numbers_and_codes_are_terms() -> None:
    document = set(ENCODER.document("Order E-1042 costs 3.5 dollars, paid 2026-03-01").indices)
    for query in ("E-1042", "3.5", "2026-03-01", "1042", "is it E-1042"):
        assert terms(query)
        assert terms(query) <= document


def test_frequent_words_count_more_and_long_texts_count_less() -> None:
    index = min(terms("zebra") & set(ENCODER.document("zebra").indices))

    def weight(text: str) -> float:
        vector = ENCODER.document(text)
        return vector.values[list(vector.indices).index(index)]

    assert weight("zebra zebra house") > weight("zebra house street")
    assert weight("zebra house") > weight("zebra " + "house street lamp " * 100)


@pytest.mark.parametrize("word", ["ORD-77812", "c00064q", "0x7f3a", "ERR_4041", "AB12", "18456"])
def test_an_identifier_weighs_more_than_other_words(word: str) -> None:
    weights = ENCODER.query(f"Where did we discuss {word} yesterday?").values
    assert max(weights) > min(weights)


@pytest.mark.parametrize("word", ["2026", "21st", "10am", "250g", "100km", "12", "room7", "1999"])
def test_years_ordinals_times_and_units_weigh_as_other_words(word: str) -> None:
    weights = ENCODER.query(f"Where did we discuss {word} yesterday?").values
    assert max(weights) == min(weights)
