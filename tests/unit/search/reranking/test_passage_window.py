"""The part of a text that a reranker reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.reranking.passage_window import fit_pair

TOKENS = st.lists(st.integers(min_value=0, max_value=20), max_size=80)


@given(TOKENS, TOKENS, st.integers(min_value=5, max_value=60), st.integers(1, 60))
def test_the_selected_tokens_fit_and_are_parts_of_the_input(
    question: list[int], text: list[int], service: int, most: int
) -> None:
    asked, read = fit_pair(question, text, service, most)
    assert len(asked) + len(read) <= service
    assert len(read) <= most
    assert asked == question[: len(asked)]
    assert any(read == text[n : n + len(read)] for n in range(len(text) + 1))
    # Nothing is cut without need.
    wanted = min(len(text), most)
    assert len(asked) + len(read) == min(service, len(question) + wanted)
    assert min(len(question), service // 2) <= len(asked) <= max(service - wanted, service // 2)
    assert len(read) == min(wanted, service - len(asked))


@given(TOKENS, TOKENS, st.integers(1, 30))
def test_the_selection_is_deterministic(question: list[int], text: list[int], most: int) -> None:
    assert fit_pair(question, text, 200, most) == fit_pair([*question], [*text], 200, most)


@given(st.integers(min_value=0, max_value=400), st.integers(min_value=4, max_value=50))
def test_a_rare_token_of_the_query_is_in_the_selected_part(at: int, most: int) -> None:
    text = [1, 2, 3, 4] * 100
    text[at:at] = [99]
    # 1 is in every part and does not distinguish them.
    _, read = fit_pair([1, 99], text, 500, most)
    assert 99 in read


def test_among_equal_parts_the_first_is_selected() -> None:
    text = list(range(100, 200))
    for question in ([], [7], [*range(100, 200)]):
        assert fit_pair(question, text, 512, 20)[1] == text[:20]
