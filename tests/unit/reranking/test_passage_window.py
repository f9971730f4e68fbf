"""What of a question and a text is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.shared.reranking.passage_window import fit_pair

TOKENS = st.lists(st.integers(min_value=0, max_value=20), max_size=80)


@given(TOKENS, TOKENS, st.integers(min_value=5, max_value=60), st.integers(1, 60))
def test_what_is_read_fits_and_is_a_part_of_what_there_is(
    question: list[int], text: list[int], service: int, most: int
) -> None:
    asked, read = fit_pair(question, text, service, most)
    assert len(asked) + len(read) <= service
    assert len(read) <= most
    assert asked == question[: len(asked)]
    assert any(read == text[n : n + len(read)] for n in range(len(text) + 1))
    # Nothing is left out for nothing.
    wanted = min(len(text), most)
    assert len(asked) + len(read) == min(service, len(question) + wanted)
    assert min(len(question), service // 2) <= len(asked) <= max(service - wanted, service // 2)
    assert len(read) == min(wanted, service - len(asked))


@given(TOKENS, TOKENS, st.integers(1, 30))
def test_the_same_is_read_every_time(question: list[int], text: list[int], most: int) -> None:
    assert fit_pair(question, text, 200, most) == fit_pair([*question], [*text], 200, most)


@given(st.integers(min_value=0, max_value=400), st.integers(min_value=4, max_value=50))
def test_a_rare_token_of_the_question_is_read_wherever_it_stands(at: int, most: int) -> None:
    text = [1, 2, 3, 4] * 100
    text[at:at] = [99]
    # 1 is in every part and tells nothing.
    _, read = fit_pair([1, 99], text, 500, most)
    assert 99 in read


def test_where_no_part_has_more_the_beginning_is_read() -> None:
    text = list(range(100, 200))
    for question in ([], [7], [*range(100, 200)]):
        assert fit_pair(question, text, 512, 20)[1] == text[:20]
